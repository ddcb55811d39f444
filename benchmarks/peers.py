"""CartPole-v1 in other libraries, each in a Python of its own that steps it for so many turns when asked.

    native.py  -- {"make": "PufferLib C", "arguments": [8]} -->  python peers.py
               <-- {"made": 0, "steps": 8} ------------------
               -- {"burst": 0, "calls": 1000} -------------->
               <-- {"seconds": 0.0017} ----------------------

So a peer may pin versions that nobody else can use, print, or crash, and it sleeps while others are timed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any, TextIO

import numpy as np
from interleave import Burst, undisturbed

TURNS = 16  # different action arrays, used again and again


def random_actions(num_envs: int, choices: int = 2) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Precomputed actions, one array per turn."""
    return np.random.default_rng(0).integers(0, choices, (TURNS, num_envs))


def stepping(step: Callable[[Any], tuple[Any, ...]], actions: Iterable[Any]) -> Burst:
    """Steps with these actions in turn and holds each result until the next one is there, as a user would."""
    actions = list(actions)

    def burst(calls: int) -> float:
        turns = islice(cycle(actions), calls)
        start = time.perf_counter()
        for action in turns:
            observations, rewards, terminated, truncated, info = step(action)
        return time.perf_counter() - start

    return burst


# ---- The peers: each function returns environment steps per call, and the burst


def gymnasium_sync(num_envs: int) -> tuple[int, Burst]:
    import gymnasium

    envs = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="sync")
    envs.reset(seed=0)
    return num_envs, stepping(envs.step, random_actions(num_envs))


def gymnasium_numpy(num_envs: int) -> tuple[int, Burst]:
    import gymnasium

    envs = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")
    envs.reset(seed=0)
    return num_envs, stepping(envs.step, random_actions(num_envs))


def envpool_sync(num_envs: int, num_threads: int = 1) -> tuple[int, Burst]:
    import envpool

    envs = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=num_envs, num_threads=num_threads)
    envs.reset()
    return num_envs, stepping(envs.step, random_actions(num_envs))


def envpool_sync_two(num_envs: int) -> tuple[int, Burst]:
    return envpool_sync(num_envs, num_threads=2)


def envpool_async(num_envs: int, batches: int = 8) -> tuple[int, Burst]:
    """Half of the environments at a time, on two threads; a call is eight batches."""
    import envpool

    batch = max(1, num_envs // 2)
    envs = envpool.make(
        "CartPole-v1", env_type="gymnasium", num_envs=num_envs, batch_size=batch, num_threads=2
    )
    actions = list(random_actions(batch))
    envs.async_reset()
    idle = [envs.recv()[-1]["env_id"] for _ in range(num_envs // batch)]

    def burst(calls: int) -> float:
        """Nothing is under way before or after, so that no step is done in a time that does not count."""
        turns = islice(cycle(actions), calls * batches)
        start = time.perf_counter()
        for env_ids, action in zip(idle, turns, strict=False):
            envs.send(action, env_ids)
        for action in turns:
            observations, rewards, terminated, truncated, info = envs.recv()
            envs.send(action, info["env_id"])
        idle[:] = [envs.recv()[-1]["env_id"] for _ in idle]
        return time.perf_counter() - start

    return batch * batches, burst


def pufferlib_c(num_envs: int, report_interval: int = 1) -> tuple[int, Burst]:
    """Float32, 200 steps an episode, reset within the step; given actions in the type it works with."""
    from pufferlib.ocean.cartpole.cartpole import Cartpole

    envs = Cartpole(num_envs=num_envs, report_interval=report_interval)
    envs.reset()
    return num_envs, stepping(envs.step, random_actions(num_envs).astype(np.float32))


def pufferlib_c_seldom(num_envs: int) -> tuple[int, Burst]:
    """The same, its log gathered every 128th step, as is usual in its other environments."""
    return pufferlib_c(num_envs, report_interval=128)


@dataclass(frozen=True)
class Peer:
    name: str
    library: str
    make: Callable[[int], tuple[int, Burst]]


PEERS = (
    Peer("Gymnasium sync", "gymnasium", gymnasium_sync),
    Peer("Gymnasium NumPy", "gymnasium", gymnasium_numpy),
    Peer("EnvPool sync", "envpool", envpool_sync),
    Peer("EnvPool sync, 2 threads", "envpool", envpool_sync_two),
    Peer("EnvPool async, 2 threads", "envpool", envpool_async),
    Peer("PufferLib C", "pufferlib", pufferlib_c),
    Peer("PufferLib C, log seldom", "pufferlib", pufferlib_c_seldom),
)
LIBRARIES = tuple(dict.fromkeys(peer.library for peer in PEERS))


# ---- This side of the pipe


class PeerError(Exception):
    """The peer is not installed there, or it failed."""


class Interpreter:
    """A Python that runs one library's peers, which `script` serves."""

    def __init__(self, python: str, library: str, script: str = __file__) -> None:
        self._directory = tempfile.mkdtemp(prefix="shoal-peer-")  # a library may leave files where it runs
        try:
            self._process = subprocess.Popen(
                [python, os.path.abspath(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=self._directory,
            )
        except OSError as error:
            shutil.rmtree(self._directory)
            raise PeerError(f"{python}: {error.strerror}") from None
        try:
            self.version: str = self._ask(load=library)["version"]
        except PeerError:
            self.close()
            raise

    def make(self, name: str, *arguments: Any) -> tuple[int, Burst]:
        """Environment steps per call, and the burst."""
        answer = self._ask(make=name, arguments=arguments)

        def burst(calls: int) -> float:
            return float(self._ask(burst=answer["made"], calls=calls)["seconds"])

        return int(answer["steps"]), burst

    def drop(self) -> None:
        """Forgets all that was made."""
        self._ask(drop=True)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()  # ends it
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerError(f"it ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer


# ---- That side

Maker = Callable[..., tuple[int, Burst]]
"""Environment steps per call, and the burst."""


def serve(requests: Iterable[str], out: TextIO, makers: dict[str, Maker], drop: Callable[[], object]) -> None:
    """Answers each line of `requests` with one; `drop` ends what was made."""
    made: list[Burst] = []
    for line in requests:
        try:
            answer = _answer(json.loads(line), made, makers, drop)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}".partition("\n")[0]}
        out.write(json.dumps(answer) + "\n")
        out.flush()


def _answer(
    request: dict[str, Any], made: list[Burst], makers: dict[str, Maker], drop: Callable[[], object]
) -> dict[str, Any]:
    if "burst" in request:
        return {"seconds": made[request["burst"]](request["calls"])}
    if "make" in request:
        steps, burst = makers[request["make"]](*request["arguments"])
        made.append(burst)
        return {"made": len(made) - 1, "steps": steps}
    if "load" in request:
        module = importlib.import_module(request["load"])
        return {"version": _version(request["load"], module)}
    made.clear()
    drop()
    return {}


def _version(library: str, module: Any) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(module, "__version__", "of unknown version"))


def serve_stdin(makers: dict[str, Maker], drop: Callable[[], object] = lambda: None) -> None:
    """The whole of a peers' process."""
    warnings.simplefilter("ignore")
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is not an answer
    serve(iter(sys.stdin.readline, ""), replies, makers, drop)


def _undisturbed(make: Maker, num_envs: int) -> tuple[int, Burst]:
    steps, burst = make(num_envs)
    return steps, undisturbed(burst)


if __name__ == "__main__":
    serve_stdin({peer.name: partial(_undisturbed, peer.make) for peer in PEERS})
