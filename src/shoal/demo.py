"""`shoal demo`: learns CartPole, or another environment, and shows the progress.

A bundled environment runs on the native engine, any other Gymnasium environment in worker processes; the
learner (`shoal.learner`) is the same for both.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

from shoal import _core
from shoal.cluster import ActorPolicy, Fleet, FleetLearner, SimulatedCluster
from shoal.dashboard import Progress, format_count, format_percent, show_live, write_curve
from shoal.errors import ShoalError
from shoal.learner import Learner
from shoal.vector import VectorEnv, make_vec

__all__ = ["run"]

_EPISODES = 100
_PACE_S = 0.02
_VIEWER_S = 20.0


def run(
    env: str = "CartPole-v1",
    num_envs: int = 64,
    num_workers: int | None = None,
    seed: int = 0,
    steps: int = 1_000_000,
    seconds: float | None = None,
    watch: bool = False,
    png: str | None = None,
    history: str | None = None,
    cluster: int | None = None,
) -> int:
    """Trains until the environment is solved or `steps` or `seconds` are used up; returns the exit status.

    The environment is solved if the mean return of the last 100 episodes reaches its `reward_threshold` in
    Gymnasium. With `watch` in a terminal, the trained policy then plays slowly until Ctrl-C. With `cluster`,
    this machine simulates a Ray cluster of that many nodes, with `num_envs` environments on each.
    `history` is a file for the run's history.
    """
    if cluster is not None:
        if history is not None:
            raise ShoalError("--history keeps the history of one session, but --cluster has one per node")
        if watch:
            raise ShoalError(
                "--watch shows environments of this process, but --cluster uses nodes; leave one of them out"
            )
        return _run_cluster(env, num_envs, num_workers, seed, steps, seconds, png, cluster)
    with contextlib.ExitStack() as stack:
        envs = stack.enter_context(_make_envs(env, num_envs, num_workers, history))
        learner = Learner(envs, seed, steps)
        viewer = f"shoal watch {envs.session}" if envs.session else "none (sessions are off)"
        if watch:
            viewer = stack.enter_context(_run_viewer(envs.session))
        if envs.backend == "process":
            where = f"{envs.num_workers} worker processes"
        else:
            where = f"native engine, {_core.cpu_count()} cores"
        title = f"PPO on {num_envs} x {env}, {where}, seed {seed}"
        progress = Progress(title, _find_goal(env), steps, viewer)
        outcome = _learn(learner, progress, seconds)
        if png is not None:
            _write_png(png, progress)
        _report(outcome, progress)
        if watch and outcome != "interrupted" and sys.stdout.isatty():
            _play(learner)
    return 130 if outcome == "interrupted" else 0


def _run_cluster(
    env: str,
    num_envs: int,
    num_workers: int | None,
    seed: int,
    steps: int,
    seconds: float | None,
    png: str | None,
    nodes: int,
) -> int:
    """Runs the demo on a simulated cluster: the nodes send rollouts to the learner as they finish."""
    options: dict[str, Any] = (
        {} if num_workers is None else {"backend": "process", "num_workers": num_workers}
    )
    with (
        SimulatedCluster(nodes),
        Fleet(env, num_envs, nodes=nodes, policy=ActorPolicy, seed=seed, max_in_flight=1, **options) as fleet,
    ):
        learner = FleetLearner(fleet, seed, steps)
        title = f"PPO on {nodes} x {num_envs} x {env}, {nodes} simulated nodes of a Ray cluster, seed {seed}"
        progress = Progress(title, _find_goal(env), steps, "none (the environments are on nodes)")
        outcome = _learn(learner, progress, seconds)
        if png is not None:
            _write_png(png, progress)
        _report(outcome, progress, is_remote=True)
    return 130 if outcome == "interrupted" else 0


def _learn(learner: Learner, progress: Progress, seconds: float | None) -> str:
    """Trains; returns why it stopped: "solved", "steps", "seconds" or "interrupted"."""
    begin, outcome = time.monotonic(), ""
    with show_live(progress) as show:
        try:
            while not outcome:
                learner.collect()
                learner.update()
                _update_progress(learner, progress, time.monotonic() - begin)
                outcome = _find_outcome(learner, progress, seconds)
                show(bool(outcome))
        except KeyboardInterrupt:
            outcome = "interrupted"
    return outcome


def _update_progress(learner: Learner, progress: Progress, elapsed_s: float) -> None:
    progress.steps, progress.episodes, progress.elapsed_s = learner.steps, learner.episodes, elapsed_s
    progress.times = dict(learner.times)
    if learner.episodes:
        progress.mean_return = float(np.mean(learner.returns))
        progress.mean_length = float(np.mean(learner.lengths))
        progress.history.append((learner.steps, progress.mean_return))


def _find_outcome(learner: Learner, progress: Progress, seconds: float | None) -> str:
    goal = progress.goal
    if goal is not None and learner.episodes >= _EPISODES and progress.mean_return >= goal:
        return "solved"
    if learner.steps >= progress.budget:
        return "steps"
    return "seconds" if seconds is not None and progress.elapsed_s >= seconds else ""


def _report(outcome: str, progress: Progress, is_remote: bool = False) -> None:
    """Prints the result. `is_remote`: the time "env" was spent waiting for environments on other nodes."""
    reached = f"mean return of the last {_EPISODES} episodes {progress.mean_return:.1f}"
    if progress.goal is not None:
        reached += f" (goal {progress.goal:g})"
    verdict = {
        "solved": "Solved",
        "interrupted": "Interrupted",
        "steps": "Step limit reached",
        "seconds": "Time limit reached",
    }[outcome]
    if outcome in ("steps", "seconds") and progress.goal is not None:
        verdict = f"Goal not reached, {verdict.lower()}"
    print(f"{verdict}: {reached} after {progress.steps:,} steps, {progress.elapsed_s:.1f} s.")
    spent = ", ".join(f"{name} {format_percent(share)}" for name, share in progress.shares.items())
    env_rate = progress.steps / (progress.times.get("env") or float("inf"))
    rates = f"{format_count(progress.rate)} learning"
    if not is_remote:
        rates += f", {format_count(env_rate)} in the environments alone"
    print(f"Time: {spent}.\nSteps/s: {rates}.")
    other = "Acrobot-v1" if "Pendulum" in progress.title else "Pendulum-v1"
    print(f"Next: `shoal demo --env {other} --watch`, or write your own: `shoal new my_env`.", flush=True)


def _find_goal(env: str) -> float | None:
    try:
        threshold = gymnasium.spec(env.removeprefix("shoal/")).reward_threshold
    except gymnasium.error.Error:
        return None
    return None if threshold is None else float(threshold)


def _make_envs(env: str, num_envs: int, num_workers: int | None, history: str | None) -> VectorEnv:
    try:
        if num_workers is None:
            return make_vec(env, num_envs, history=history)
        return make_vec(env, num_envs, backend="process", num_workers=num_workers, history=history)
    except gymnasium.error.Error as error:
        raise ShoalError(f"Gymnasium cannot make {env!r}: {error}; check --env") from error


def _write_png(path: str, progress: Progress) -> None:
    try:
        write_curve(path, progress)
    except OSError as error:
        raise ShoalError(f"cannot write {path}: {error.strerror}") from error


def _play(learner: Learner) -> None:
    print("The trained policy keeps playing in the viewer; press Ctrl-C to end.", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            learner.play()
            time.sleep(_PACE_S)


@contextlib.contextmanager
def _run_viewer(session: str | None) -> Iterator[str]:
    """Runs `shoal watch` in a child process; yields its link."""
    if session is None:
        raise ShoalError("--watch needs a session, but SHOAL_SESSIONS is off; unset it")
    command = [sys.executable, "-m", "shoal", "watch", session]
    viewer = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert viewer.stdout is not None
    timer = threading.Timer(_VIEWER_S, viewer.kill)
    previous = signal.getsignal(signal.SIGTERM)
    try:
        if threading.current_thread() is threading.main_thread():  # SIGTERM must end the viewer too
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        timer.start()
        output = []
        for line in viewer.stdout:
            output.append(line.strip())
            if output[-1].startswith("http://"):
                break
        else:
            printed = " ".join(output) or "nothing"
            raise ShoalError(f"`shoal watch {session}` printed no link but: {printed}; run it by itself")
        timer.cancel()
        yield output[-1]
    finally:
        timer.cancel()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, previous)
        viewer.terminate()
        viewer.wait()
        viewer.stdout.close()
