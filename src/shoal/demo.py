"""`shoal demo`: learns CartPole, or another environment, while you look.

A bundled environment runs on the native engine, any other Gymnasium environment in worker processes; the
learner (`shoal.learner`) is the same for both, and reads in one sitting.
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
from shoal.dashboard import Progress, live, percent, short, write_curve
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
    cluster: int | None = None,
) -> int:
    """Trains until the environment is solved, `steps` are made or `seconds` have passed; the exit status.

    Solved: the mean return of the last 100 episodes is what Gymnasium calls good (`reward_threshold`).
    With `watch` and a terminal, what was learned is played on, slowly, until Ctrl-C. With `cluster`, each of
    so many nodes of a Ray cluster, simulated on this machine, has `num_envs` of them.
    """
    if cluster is not None:
        if watch:
            raise ShoalError("--watch shows environments of this machine; leave it or --cluster out")
        return _run_cluster(env, num_envs, num_workers, seed, steps, seconds, png, cluster)
    with contextlib.ExitStack() as stack:
        envs = stack.enter_context(_made(env, num_envs, num_workers))
        learner = Learner(envs, seed, steps)
        viewer = f"shoal watch {envs.session}" if envs.session else "none: sessions are off"
        if watch:
            viewer = stack.enter_context(_viewer(envs.session))
        if envs.backend == "process":
            where = f"{envs.num_workers} worker processes"
        else:
            where = f"native engine, {_core.cpu_count()} cores"
        title = f"PPO on {num_envs} x {env}, {where}, seed {seed}"
        progress = Progress(title, _goal(env), steps, viewer)
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
    """The same learner, to which rollouts come from runners on the nodes, each as it is ready."""
    options: dict[str, Any] = (
        {} if num_workers is None else {"backend": "process", "num_workers": num_workers}
    )
    with (
        SimulatedCluster(nodes),
        Fleet(env, num_envs, nodes=nodes, policy=ActorPolicy, seed=seed, max_in_flight=1, **options) as fleet,
    ):
        learner = FleetLearner(fleet, seed, steps)
        title = f"PPO on {nodes} x {num_envs} x {env}, {nodes} simulated nodes of a Ray cluster, seed {seed}"
        progress = Progress(title, _goal(env), steps, "none: they are on nodes")
        outcome = _learn(learner, progress, seconds)
        if png is not None:
            _write_png(png, progress)
        _report(outcome, progress, waited=True)
    return 130 if outcome == "interrupted" else 0


def _learn(learner: Learner, progress: Progress, seconds: float | None) -> str:
    """What ended it: "solved", "steps", "seconds" or "interrupted"."""
    begin, outcome = time.monotonic(), ""
    with live(progress) as show:
        try:
            while not outcome:
                learner.collect()
                learner.update()
                _note(learner, progress, time.monotonic() - begin)
                outcome = _outcome(learner, progress, seconds)
                show(bool(outcome))
        except KeyboardInterrupt:
            outcome = "interrupted"
    return outcome


def _note(learner: Learner, progress: Progress, elapsed_s: float) -> None:
    progress.steps, progress.episodes, progress.elapsed_s = learner.steps, learner.episodes, elapsed_s
    progress.times = dict(learner.times)
    if learner.episodes:
        progress.mean_return = float(np.mean(learner.returns))
        progress.mean_length = float(np.mean(learner.lengths))
        progress.history.append((learner.steps, progress.mean_return))


def _outcome(learner: Learner, progress: Progress, seconds: float | None) -> str:
    goal = progress.goal
    if goal is not None and learner.episodes >= _EPISODES and progress.mean_return >= goal:
        return "solved"
    if learner.steps >= progress.budget:
        return "steps"
    return "seconds" if seconds is not None and progress.elapsed_s >= seconds else ""


def _report(outcome: str, progress: Progress, waited: bool = False) -> None:
    """`waited`: the time of "env" is that of waiting for environments that run elsewhere."""
    reached = f"mean return of the last {_EPISODES} episodes {progress.mean_return:.1f}"
    if progress.goal is not None:
        reached += f" (goal {progress.goal:g})"
    verdict = {
        "solved": "Solved",
        "interrupted": "Interrupted",
        "steps": "All steps made",
        "seconds": "Time is up",
    }[outcome]
    if outcome in ("steps", "seconds") and progress.goal is not None:
        verdict = f"Goal not reached, {verdict.lower()}"
    print(f"{verdict}: {reached} after {progress.steps:,} steps, {progress.elapsed_s:.1f} s.")
    spent = ", ".join(f"{name} {percent(share)}" for name, share in progress.shares.items())
    alone = progress.steps / (progress.times.get("env") or float("inf"))
    rates = f"{short(progress.rate)} learning"
    if not waited:
        rates += f", {short(alone)} the environments alone"
    print(f"Time: {spent}.\nSteps/s: {rates}.")
    other = "Acrobot-v1" if "Pendulum" in progress.title else "Pendulum-v1"
    print(f"Next: `shoal demo --env {other} --watch`, or write your own: `shoal new my_env`.", flush=True)


def _goal(env: str) -> float | None:
    try:
        threshold = gymnasium.spec(env.removeprefix("shoal/")).reward_threshold
    except gymnasium.error.Error:
        return None
    return None if threshold is None else float(threshold)


def _made(env: str, num_envs: int, num_workers: int | None) -> VectorEnv:
    try:
        if num_workers is None:
            return make_vec(env, num_envs)
        return make_vec(env, num_envs, backend="process", num_workers=num_workers)
    except gymnasium.error.Error as error:
        raise ShoalError(f"Gymnasium cannot make {env!r}: {error}") from error


def _write_png(path: str, progress: Progress) -> None:
    try:
        write_curve(path, progress)
    except OSError as error:
        raise ShoalError(f"cannot write {path}: {error.strerror}") from error


def _play(learner: Learner) -> None:
    print("It plays on for whoever watches; Ctrl-C ends it.", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            learner.play()
            time.sleep(_PACE_S)


@contextlib.contextmanager
def _viewer(session: str | None) -> Iterator[str]:
    """Runs `shoal watch` beside this process; its link."""
    if session is None:
        raise ShoalError("--watch needs a session, but SHOAL_SESSIONS is off; unset it")
    command = [sys.executable, "-m", "shoal", "watch", session]
    viewer = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert viewer.stdout is not None
    late = threading.Timer(_VIEWER_S, viewer.kill)
    previous = signal.getsignal(signal.SIGTERM)
    try:
        if threading.current_thread() is threading.main_thread():  # who ends us ends it too
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        late.start()
        said = []
        for line in viewer.stdout:
            said.append(line.strip())
            if said[-1].startswith("http://"):
                break
        else:
            raise ShoalError(f"`shoal watch {session}` gave no link, but said: {' '.join(said) or 'nothing'}")
        late.cancel()
        yield said[-1]
    finally:
        late.cancel()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, previous)
        viewer.terminate()
        viewer.wait()
        viewer.stdout.close()
