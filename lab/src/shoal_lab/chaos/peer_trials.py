"""One trial of one fault with one library, described in words; a call may hang."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from shoal_lab.chaos.faults import LENIENCE
from shoal_lab.chaos.marked import ACTIONS, Marked, compute_body, compute_reward
from shoal_lab.chaos.resources import kill_session, list_members
from shoal_lab.chaos.rounds import Outcome, Reporter, Round

__all__ = ["stage"]

ENVS = 4
HANG_S = 5.0
GONE_S = 2.0

# -- one interface for all libraries ----------------------------------------------------------------------


class Vector:
    """A vector of marked environments in worker processes, of any library."""

    def __init__(self, library: str, limit_s: float | None) -> None:
        self.library, self.limit_s = library, limit_s
        makers: Any = [partial(Marked, env, 100.0) for env in range(ENVS)]
        if library == "shoal":
            from shoal.vector import ProcessVectorEnv

            self.envs: Any = ProcessVectorEnv(makers, num_workers=ENVS, step_timeout_s=limit_s)
        elif library == "gymnasium":
            from gymnasium.vector import AsyncVectorEnv

            self.envs = AsyncVectorEnv(makers)
        else:
            from stable_baselines3.common.vec_env import SubprocVecEnv

            self.envs = SubprocVecEnv(makers)
        self.reset()

    @property
    def pids(self) -> list[int]:
        if self.library == "shoal":
            return [pid for pid in self.envs.worker_pids if pid is not None]
        return [process.pid for process in self.envs.processes]

    def reset(self) -> None:
        self.envs.reset()

    def step(self, chosen: Any) -> tuple[Any, Any]:
        """Steps; returns observations and rewards. It has a time limit if the library supports one."""
        if self.library == "gymnasium" and self.limit_s is not None:
            self.envs.step_async(chosen)
            return tuple(self.envs.step_wait(timeout=self.limit_s)[:2])
        return tuple(self.envs.step(chosen)[:2])

    def close(self) -> None:
        self.envs.close()


def count_wrong_rows(results: tuple[Any, Any]) -> int:
    """Counts rows whose observation and reward do not belong to one environment and one step."""
    observation, reward = results
    wrong = 0
    for env in range(ENVS):
        env_id, nonce, episode, step = map(int, observation["mark"][env])
        whole = env_id == env and (observation["body"][env] == compute_body(nonce, episode, step)).all()
        right = step == 0 or float(reward[env]) == float(
            np.float32(compute_reward(env_id, nonce, episode, step))
        )
        exact = step == 0 or float(reward[env]) == compute_reward(env_id, nonce, episode, step)
        wrong += not (whole and (right or exact))
    return wrong


# -- one trial --------------------------------------------------------------------------------------------


class Trial:
    """Describes the phases of a trial in words, including a phase that hangs."""

    def __init__(self, outcome: Outcome, reporter: Reporter) -> None:
        self._outcome, self._reporter = outcome, reporter
        self.notes: list[str] = outcome.facts.setdefault("notes", [])
        self.facts = outcome.facts

    @contextmanager
    def phase(self, name: str, limit_s: float = HANG_S) -> Iterator[None]:
        self._reporter.send({"kills": 0, "doing": name})
        timer = threading.Timer(limit_s * LENIENCE, self._hang, (name,))
        timer.start()
        try:
            yield
        except Exception as error:
            named = " naming it" if getattr(error, "env_ids", None) else ""
            self.notes.append(f"{name} {type(error).__name__}{named}")
            self.facts[name] = type(error).__name__
        finally:
            timer.cancel()

    def _hang(self, name: str) -> None:
        self.notes.append(f"{name} HANGS")
        self.facts["hang"] = name
        self._outcome.hangs = 1
        self._reporter.send({"outcome": vars(self._outcome)})
        os._exit(0)


def stage(round_: Round, outcome: Outcome, reporter: Reporter) -> None:
    """Runs one trial of one fault with one library."""
    library, case = round_.options["library"], round_.options["case"]
    trial = Trial(outcome, reporter)
    if case == "trainer killed":
        _kill_trainer(library, trial)
    elif case == "an id out of range":
        _send_bad_id(library, trial)
    elif case == "writer killed in a push":
        from shoal_lab.chaos import peer_ring

        peer_ring.trial(library, round_, outcome, trial)
    else:
        _fail_worker(library, case, round_, outcome, trial)


def _fail_worker(library: str, case: str, round_: Round, outcome: Outcome, trial: Trial) -> None:
    stopped = case.startswith("SIGSTOP")
    limit_s = 0.5 if stopped or (case == "loop" and library != "sb3") else None
    with trial.phase("making", 60):
        vector = Vector(library, limit_s)
    if "making" in trial.facts:
        return
    go_on, chosen = np.zeros(ENVS, np.int64), np.zeros(ENVS, np.int64)
    if case in ACTIONS:
        chosen[2] = ACTIONS.index(case)
    pids, sent_at = vector.pids, [0.0]
    if case not in ACTIONS:
        number = signal.SIGSTOP if stopped else signal.SIGKILL
        threading.Thread(
            target=_send_signal, args=(pids[2], number, round_.random().random() * 0.02, sent_at)
        ).start()
    begin = time.monotonic()
    with trial.phase("step()"):
        results = vector.step(chosen)
        while time.monotonic() < begin + HANG_S:
            results = vector.step(go_on)
        trial.notes.append("step() continues as if nothing had happened")
    trial.facts["ms"] = (time.monotonic() - (sent_at[0] or begin)) * 1e3
    if stopped:
        time.sleep(1.6)  # the stopped process continues in the meantime
    with trial.phase("next step()"):
        for _ in range(5):
            results = vector.step(go_on)
            outcome.facts["wrong"] = outcome.facts.get("wrong", 0) + count_wrong_rows(results)
        wrong = outcome.facts["wrong"]
        trial.notes.append(f"next steps WRONG ROWS ({wrong})" if wrong else "next step() works")
    with trial.phase("reset()"):
        vector.reset()
        results = vector.step(go_on)
        trial.notes.append("reset() recovers" if not count_wrong_rows(results) else "reset() WRONG ROWS")
    with trial.phase("close()"):
        vector.close()
        trial.notes.append("close() works")
    time.sleep(0.3)
    left = [pid for pid in pids if _is_running(pid)]
    if left:
        trial.notes.append(f"{len(left)} workers LEFT")
        trial.facts["left"] = len(left)


def _send_signal(pid: int, number: int, delay_s: float, sent_at: list[float]) -> None:
    time.sleep(delay_s)
    sent_at[0] = time.monotonic()
    os.kill(pid, number)
    if number == signal.SIGSTOP:
        time.sleep(1.5)
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return


def _is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def _kill_trainer(library: str, trial: Trial) -> None:
    """Kills a trainer that has a worker in an endless loop."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        try:
            _train(library, writes)
        finally:
            os._exit(1)
    os.close(writes)
    with trial.phase("making", 60):
        if os.read(reads, 1) != b"r":
            raise RuntimeError("the trainer could not start")
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    begin = time.monotonic()
    while (left := list_members(pid)) and time.monotonic() < begin + GONE_S * LENIENCE:
        time.sleep(0.005)
    trial.facts["ms"] = (time.monotonic() - begin) * 1e3
    trial.notes.append(f"{len(left)} processes LEFT" if left else "all gone")
    trial.facts["left"] = len(left)
    kill_session(pid)


def _train(library: str, pipe: int) -> None:
    if library == "envpool":
        import envpool

        envs = envpool.make_gymnasium("CartPole-v1", num_envs=ENVS)
        envs.reset()
        os.write(pipe, b"r")
        while True:
            envs.step(np.zeros(ENVS, np.int32))
    vector = Vector(library, None)
    chosen = np.zeros(ENVS, np.int64)
    chosen[1] = ACTIONS.index("loop")
    threading.Timer(0.2, os.write, (pipe, b"r")).start()
    vector.envs.step_async(chosen)
    signal.pause()


def _send_bad_id(library: str, trial: Trial) -> None:
    """Sends an id that does not exist, in a child process that plays the trainer."""
    pid = os.fork()
    if pid == 0:
        actions = np.zeros(ENVS, np.int32)
        try:
            if library == "envpool":
                import envpool

                envs = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=ENVS, batch_size=2)
                envs.async_reset()
                envs.recv()
                envs.send(actions[:2], np.array([10**6, 0], np.int32))
                envs.recv()
            else:
                from shoal.vector import make_vec

                ours: Any = make_vec("shoal/CartPole-v1", ENVS, batch_size=2, session=None)
                ours.async_reset(seed=0)
                ours.recv()
                ours.send(actions[:2].astype(np.int64), np.array([10**6, 0]))
        except (IndexError, ValueError):
            os._exit(3)
        except BaseException:
            os._exit(4)
        os._exit(0)
    with trial.phase("send()", 30):
        status = os.waitpid(pid, 0)[1]
        if os.WIFSIGNALED(status):
            trial.notes.append(f"TRAINER DIES, {signal.Signals(os.WTERMSIG(status)).name}")
            trial.facts["trainer"] = 1
        else:
            code = os.WEXITSTATUS(status)
            trial.notes.append(
                {3: "raises a clear exception", 4: "raises another exception"}.get(code, "raises nothing")
            )
