"""Mistakes and faults, each with its message: docs/faults.md is made by running them.

    python -m tests.docs.faults     writes the tables

Numbers that differ between machines and runs are shown as N.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Text

import shoal
from shoal.cuda.ahead import build_ahead
from shoal.cuda.build import find_source, write_ptx
from shoal.cuda.driver import open_driver
from shoal.errors import BuildError
from shoal.native.plugin import bundled, load
from shoal.replay import PrioritizedSampler
from shoal.replay.buffer import make_buffer
from shoal.replay.records import Records
from shoal.spaces import create_shared_memory, write_to_shared_memory
from shoal.state.names import directory
from shoal.vector import ProcessVectorEnv

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"


@dataclass
class Situation:
    part: str
    words: str
    advice: str
    run: Callable[[], Any]


SITUATIONS: list[Situation] = []


def situation(part: str, words: str, advice: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def add(run: Callable[[], Any]) -> Callable[[], Any]:
        SITUATIONS.append(Situation(part, words, advice, run))
        return run

    return add


class World(gymnasium.Env):  # type: ignore[type-arg]
    """An environment that does what its action says, once that is all right and otherwise something bad."""

    observation_space, action_space = Box(0, 1, (2,)), Discrete(8)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        if action == 1:
            raise RuntimeError("the lake is frozen")
        if action == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == 3:
            ctypes.string_at(0)
        if action == 4:
            time.sleep(60)
        if action == 5:
            return np.zeros(3, np.float32), 0.0, False, False, {}
        if action == 6:
            return np.zeros(2, np.float32), 0.0, False, {}
        if action == 7:
            os._exit(3)
        return np.zeros(2, np.float32), 0.0, False, False, {}


@contextlib.contextmanager
def worlds(**options: Any) -> Iterator[ProcessVectorEnv]:
    envs = ProcessVectorEnv([World] * 4, num_workers=2, **options)
    try:
        envs.reset(seed=0)
        yield envs
    finally:
        envs.close()


@contextlib.contextmanager
def poles(**options: Any) -> Iterator[Any]:
    envs = shoal.make_vec("CartPole-v1", 4, **options)
    try:
        yield envs
    finally:
        envs.close()


# ---- Making environments

MAKING = "Making environments"


@situation(
    MAKING,
    "an unknown environment id",
    "Correct the id. `shoal envs` lists the bundled ones; `shoal.make_vec` also takes paths and functions.",
)
def _() -> None:
    shoal.make_vec("CartPoll-v1")


@situation(MAKING, "a misspelt keyword argument", "Use the name that the message suggests.")
def _() -> None:
    shoal.make_vec("CartPole-v1", 8, max_slot=3)


@situation(MAKING, "`num_workers` for environments in C", "Leave it out, or set `backend='process'`.")
def _() -> None:
    shoal.make_vec("CartPole-v1", 8, num_workers=2)


@situation(MAKING, "zero environments", "Ask for at least one environment.")
def _() -> None:
    shoal.make_vec("CartPole-v1", 0)


@situation(
    MAKING,
    "an option that the environment does not have",
    "Choose one of its options; `shoal info ENV` lists them.",
)
def _() -> None:
    shoal.make_vec("Squared-v0", 8, sise=7)


@situation(MAKING, "an option of the wrong type", "Give a value of the type in the message.")
def _() -> None:
    shoal.make_vec("Squared-v0", 8, size="big")


@situation(
    MAKING, "an option value that the environment does not allow", "Choose a value that the message allows."
)
def _() -> None:
    shoal.make_vec("Squared-v0", 8, size=-1)


@situation(
    MAKING,
    "a C environment without a compiler",
    "Install a compiler, or set `CC`. Bundled environments need no compiler.",
)
def _() -> None:
    Path("my_env.c").write_text("")
    with mock.patch.dict(os.environ, PATH=""), mock.patch.dict(sys.modules, ziglang=None):
        os.environ.pop("CC", None)
        shoal.make_vec("my_env.c")


@situation(
    MAKING, "a C file that does not exist", "Correct the path. It is relative to the working directory."
)
def _() -> None:
    shoal.make_vec("no_env.c")


@situation(MAKING, "a library that is not a Shoal environment", "Give the path that `shoal build` printed.")
def _() -> None:
    Path("other.so").write_bytes(b"\x7fELF")
    shoal.make_vec("./other.so")


@situation(MAKING, "a function that cannot be pickled", "Let the function create these objects itself.")
def _() -> None:
    lock = threading.Lock()

    def make() -> Any:
        return lock and World()

    ProcessVectorEnv([make] * 2)


@situation(MAKING, "a function that returns no environment", "Return the environment from the function.")
def _() -> None:
    ProcessVectorEnv([lambda: None] * 2)


@situation(
    MAKING,
    "a function instead of a list of functions",
    "Write `[make] * 8`, or use `shoal.make_vec(make, 8)`.",
)
def _() -> None:
    ProcessVectorEnv(World)  # type: ignore[arg-type]


# ---- Stepping

STEPPING = "Stepping"


@situation(STEPPING, "`step` before `reset`", "Call `reset` first.")
def _() -> None:
    with poles() as envs:
        envs.step(np.zeros(4, np.int64))


@situation(STEPPING, "too few actions", "Give one action for each row. Nothing was stepped.")
def _() -> None:
    with poles() as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(3, np.int64))


@situation(STEPPING, "actions with the wrong dtype", "Convert them: `actions.astype(np.int64)`.")
def _() -> None:
    with poles() as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(4))


@situation(
    STEPPING, "an action outside the action space", "Check the code that chose it. Nothing was stepped."
)
def _() -> None:
    with poles() as envs:
        envs.reset(seed=0)
        envs.step(np.array([0, 1, 2, 0]))


@situation(STEPPING, "use after `close`", "Make new environments. Arrays that you hold stay valid.")
def _() -> None:
    with poles() as envs:
        envs.close()
        envs.reset()


@situation(STEPPING, "use in a forked child", "Make environments in the process that steps them.")
def _() -> None:
    with poles() as envs:
        envs.reset(seed=0)
        reading, writing = os.pipe()
        if os.fork() == 0:
            try:
                envs.step(np.zeros(4, np.int64))
            except Exception as error:
                os.write(writing, str(error).encode())
            os._exit(0)
        os.wait()
        message = os.read(reading, 4096).decode()
        os.close(reading), os.close(writing)
        raise shoal.errors.ForkedError(message)


@situation(
    STEPPING,
    "`recv` without a `send`",
    "Begin with `async_reset`, and send actions for the ids that you received.",
)
def _() -> None:
    with poles(batch_size=2) as envs:
        envs.recv()


@situation(STEPPING, "`step` on environments made with `batch_size`", "Use `send` and `recv` instead.")
def _() -> None:
    with poles(batch_size=2) as envs:
        envs.async_reset(seed=0)
        envs.step(np.zeros(4, np.int64))


@situation(
    STEPPING,
    "a reset in the middle of a rollout",
    "Call `start` with the observations that `reset` returned.",
)
def _() -> None:
    with poles() as envs:
        rollout = envs.rollout(2)
        rollout.start(envs.reset(seed=0)[0])
        rollout.step(np.zeros(4, np.int64))
        envs.reset()
        rollout.step(np.zeros(4, np.int64))


@situation(STEPPING, "a rollout that is full", "Call `start` with the last observations.")
def _() -> None:
    with poles() as envs:
        rollout = envs.rollout(1)
        rollout.start(envs.reset(seed=0)[0])
        rollout.step(np.zeros(4, np.int64))
        rollout.step(np.zeros(4, np.int64))


@situation(
    STEPPING, "`render` without a render mode", 'Make the environments with `render_mode="rgb_array"`.'
)
def _() -> None:
    with shoal.make_vec("Snake-v0", 2) as envs:
        envs.reset(seed=0)
        envs.render()


@situation(STEPPING, "a reset mask with the wrong shape", "Give one bool for each row.")
def _() -> None:
    with poles() as envs:
        envs.reset(seed=0)
        envs.reset(options={"reset_mask": np.ones(3, np.bool_)})


# ---- Workers

WORKERS = "Worker processes"


@situation(
    WORKERS,
    "an environment raises",
    "This is the environment's own exception, with the worker's traceback as its cause. `error.env_id` and "
    "`error.results` say more. You can continue to step.",
)
def _() -> None:
    with worlds() as envs:
        envs.step([0, 1, 0, 0])


@situation(
    WORKERS,
    "a worker is killed",
    'Check the signal. `reset()` restarts the worker; `on_fault="restart"` does so automatically.',
)
def _() -> None:
    with worlds() as envs:
        envs.step([0, 0, 2, 0])


@situation(WORKERS, "a worker crashes", "Read `error.stderr`, which has the Python stack of the crash.")
def _() -> None:
    with worlds() as envs:
        envs.step([0, 0, 0, 3])


@situation(WORKERS, "a worker exits", "Change the environment to raise an exception instead.")
def _() -> None:
    with worlds() as envs:
        envs.step([7, 0, 0, 0])


@situation(
    WORKERS,
    "a step takes longer than `step_timeout_s`",
    "Read in `error.stderr` where it was. Raise the limit, or fix the environment.",
)
def _() -> None:
    with worlds(step_timeout_s=0.3) as envs:
        envs.step([0, 0, 4, 0])


@situation(
    WORKERS,
    "`step_wait(timeout)` times out",
    "The step continues. The next call waits for it and discards its results.",
)
def _() -> None:
    with worlds() as envs:
        envs.step_async([4, 0, 0, 0])
        envs.step_wait(timeout=0.05)


@situation(WORKERS, "an observation with the wrong shape", "Fix the environment or its observation space.")
def _() -> None:
    with worlds() as envs:
        envs.step([0, 5, 0, 0])


@situation(
    WORKERS,
    "an environment with the old Gym interface",
    "Use such a wrapper, or return five values from `step`.",
)
def _() -> None:
    with worlds() as envs:
        envs.step([0, 6, 0, 0])


@situation(WORKERS, "too many actions", "Give one action for each environment. Nothing was stepped.")
def _() -> None:
    with worlds() as envs:
        envs.step([0] * 5)


# ---- Shared memory

MEMORY = "Shared memory"
REWARDS = {"reward": (np.float64, (8,))}


@situation(
    MEMORY,
    "a segment larger than the free memory",
    "Ask for less, free some memory, or raise the limit that the message names. Nothing was allocated.",
)
def _() -> None:
    shoal.Segment(shoal.Layout({"x": (np.uint8, (1 << 50,))}))


@situation(MEMORY, "a name that is in use", "Attach to it, or choose another name.")
def _() -> None:
    with shoal.Segment.named(shoal.Layout(REWARDS), "docs-run-7"):
        shoal.Segment.named(shoal.Layout(REWARDS), "docs-run-7")


@situation(
    MEMORY,
    "a name that does not exist",
    "Create the segment first. Its owner removes the name when it closes the segment or exits.",
)
def _() -> None:
    shoal.Segment.attach("docs-nobody")


@situation(MEMORY, "a file that is not a segment", "Give a file that `Segment.file` made.")
def _() -> None:
    Path("ring.seg").write_bytes(b"x" * 4096)
    shoal.Segment.open("ring.seg")


@situation(MEMORY, "a truncated file", "Restore the file.")
def _() -> None:
    with shoal.Segment.file(shoal.Layout(REWARDS), "ring2.seg"):
        pass
    os.truncate("ring2.seg", 4096)
    shoal.Segment.open("ring2.seg")


@situation(MEMORY, "a different layout", "Use the layout with which it was made, or make it again.")
def _() -> None:
    with shoal.Segment.named(shoal.Layout(REWARDS), "docs-run-8"):
        shoal.Segment.attach("docs-run-8", shoal.Layout({"reward": (np.float32, (8,))}))


@situation(MEMORY, "a field that does not exist", "Choose one of the fields in the message.")
def _() -> None:
    with shoal.Segment(shoal.Layout(REWARDS)) as segment:
        segment["rewards"]


@situation(MEMORY, "a dtype that cannot be shared", "Use a numeric dtype or bool.")
def _() -> None:
    shoal.Layout({"name": (object, (8,))})


@situation(MEMORY, "a value with the wrong shape", "Give a value of the space. Nothing was written.")
def _() -> None:
    space = Dict(camera=Box(0, 255, (2, 2), np.uint8))
    write_to_shared_memory(space, 0, {"camera": np.zeros((2, 3), np.uint8)}, create_shared_memory(space, 1))


@situation(MEMORY, "a missing key", "Give every key of the space.")
def _() -> None:
    space = Dict(camera=Box(0, 255, (2, 2), np.uint8))
    write_to_shared_memory(space, 0, {}, create_shared_memory(space, 1))


@situation(
    MEMORY,
    "a character that is not in the charset",
    "Add the character to the space: `Text(8, charset=...)`.",
)
def _() -> None:
    write_to_shared_memory(Text(4, charset="ab"), 0, "abc", create_shared_memory(Text(4, charset="ab"), 1))


# ---- Replay

REPLAY = "Replay"
X = {"x": (np.float32, (2,))}


@situation(REPLAY, "`sample` from an empty buffer", "Push rows first.")
def _() -> None:
    with shoal.ReplayBuffer(10, X) as buffer:
        buffer.sample(4)


@situation(REPLAY, "rows with the wrong shape", "Give rows with the shape of the field. Nothing was stored.")
def _() -> None:
    with shoal.ReplayBuffer(10, X) as buffer:
        buffer.extend({"x": np.zeros((5, 3), np.float32)})


@situation(REPLAY, "a missing field", "Give every field. Nothing was stored.")
def _() -> None:
    with shoal.ReplayBuffer(10, X) as buffer:
        buffer.push({"y": [0, 0]})


@situation(REPLAY, "`add` before `begin`", "Call `begin` with the observations that `reset` returned.")
def _() -> None:
    with poles() as envs, shoal.ReplayBuffer.for_env(envs, 100) as buffer:
        envs.reset(seed=0)
        buffer.add(np.zeros(4, np.int64), *envs.step(np.zeros(4, np.int64)))


@situation(
    REPLAY,
    "priorities that are not positive",
    "Add a small number to the TD errors from which you compute the priorities.",
)
def _() -> None:
    with shoal.ReplayBuffer(10, X) as buffer:
        sampler = PrioritizedSampler(buffer)
        buffer.extend({"x": np.zeros((5, 2), np.float32)})
        sampler.update_priorities(sampler.sample(2).ids, np.array([0.0, 1.0]))


@situation(REPLAY, "`durability` without a file", "Set `path=`.")
def _() -> None:
    shoal.ReplayBuffer(10, X, durability="sync")


@situation(REPLAY, "a file that exists", "Open the file, or remove it.")
def _() -> None:
    shoal.ReplayBuffer(10, X, path="run.ring").close()
    shoal.ReplayBuffer(10, X, path="run.ring")


@situation(REPLAY, "a directory that `save` did not write", "Open snapshots and files with `open`.")
def _() -> None:
    shoal.ReplayBuffer.load("nowhere")


@situation(REPLAY, "a snapshot onto its own file", "Give another file name.")
def _() -> None:
    with shoal.ReplayBuffer(10, X, path="own.ring") as buffer:
        buffer.snapshot("own.ring")


@situation(
    REPLAY,
    "steps from environments with another autoreset mode",
    "Make the buffer with `for_env` from these environments.",
)
def _() -> None:
    same = gymnasium.vector.AutoresetMode.SAME_STEP
    with poles() as others, shoal.ReplayBuffer.for_env(others, 100) as buffer:
        with poles(autoreset_mode=same) as envs:
            buffer.begin(envs.reset(seed=0)[0])
            while True:
                buffer.add(np.zeros(4, np.int64), *envs.step(np.zeros(4, np.int64)))


@situation(
    REPLAY,
    "`push` while stopped writers hold every slot (after two seconds)",
    "Continue or end these writers, or make the buffer larger.",
)
def _() -> None:
    with shoal.ReplayBuffer(1, X) as buffer:
        stopped = make_buffer(Records.of(buffer._records.segment), None)
        stopped.push({"x": [0.0, 0.0]})
        buffer._records.segment["writers"][0, 1:3] = 0, 1  # as in the middle of its push
        buffer.push({"x": [1.0, 1.0]})


# ---- Sessions

SESSIONS = "Observing a run"


@situation(SESSIONS, "a session that does not exist", "Choose one from `shoal ps`.")
def _() -> None:
    shoal.attach("docs-nobody")


@situation(SESSIONS, "two sessions with one name", "Choose another name, or `session=None`.")
def _() -> None:
    with poles(session="docs"), poles(session="docs"):
        pass


@situation(SESSIONS, "an environment id that does not exist", "Ids start at 0.")
def _() -> None:
    with poles(session="docs"), shoal.attach("docs") as session:
        session.snapshot(4)


@situation(SESSIONS, "a run that is not stepping", "Wait longer, or find out what the run waits for.")
def _() -> None:
    with poles(session="docs"), shoal.attach("docs") as session:
        session.snapshot(0, timeout_s=0.05)


@situation(SESSIONS, "a run that has ended", "Attach again when a new run has started.")
def _() -> None:
    with poles(session="docs") as envs, shoal.attach("docs") as session:
        envs.close()
        deadline = time.monotonic() + 10
        while session.alive and time.monotonic() < deadline:
            pass
        session.counters()


@situation(SESSIONS, "a name with invalid characters", "Use letters, digits, `.`, `_` and `-`.")
def _() -> None:
    shoal.make_vec("CartPole-v1", session="my run")


# ---- Environments on a GPU; the emulated device behaves like one

GPU = "Environments on a GPU"


@situation(
    GPU,
    '`device="cuda"` without an NVIDIA driver',
    'Leave `device` out, or use `device="emulated"` for a test. `device="cuda"` never falls back to the CPU.',
)
def _() -> None:
    missing = OSError("libcuda.so.1: cannot open shared object file: No such file or directory")
    opener = mock.patch("shoal.cuda.device.open_driver", open_driver.__wrapped__)
    with opener, mock.patch("shoal.cuda.driver.ctypes.CDLL", side_effect=missing):
        shoal.make_vec("CartPole-v1", 8, device="cuda")


@situation(GPU, "an environment in Python on a GPU", "Write the environment in C, or leave `device` out.")
def _() -> None:
    shoal.make_vec("Taxi-v4", 8, device="cuda")


@situation(GPU, "a compiled library on a GPU", "Give the C file.")
def _() -> None:
    shutil.copy(bundled()["CartPole-v1"], "my_env.so")
    shoal.make_vec("./my_env.so", 8, device="emulated")


@situation(GPU, "an environment in C++ on a GPU", "Write it in C.")
def _() -> None:
    build_ahead("my_env.cpp", {})


@situation(
    GPU,
    "a header that a GPU does not have",
    "Leave it out, or put it between `#ifndef SHOAL_GRID` and `#endif`.",
)
def _() -> None:
    shutil.copy(find_source(bundled()["Squared-v0"], "Squared-v0"), "my_env.c")
    failure = BuildError("fatal error: 'pthread.h' file not found")
    with mock.patch("shoal.cuda.build.find_zig", lambda: Path("/bin/sh")):  # the message of clang
        with mock.patch("shoal.native.compilers.run", side_effect=failure):
            write_ptx(load(bundled()["Squared-v0"], {}), Path("my_env.c").absolute())


@situation(GPU, "actions with the wrong dtype on a GPU", "Convert them. Nothing was stepped.")
def _() -> None:
    with poles(device="emulated") as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(4, np.int32))


@situation(
    GPU,
    "an action outside the action space, found by `envs.check()`",
    "Check the code that chose it. The other environments were stepped.",
)
def _() -> None:
    with poles(device="emulated") as envs:
        envs.reset(seed=0)
        envs.step(np.array([0, 1, 2, 0]))
        envs.check()


@situation(
    GPU,
    "a step after the end of an episode with autoreset DISABLED, found by `envs.check()`",
    "Reset ended environments with a mask.",
)
def _() -> None:
    with poles(device="emulated", autoreset_mode="Disabled", max_episode_steps=1) as envs:
        envs.reset(seed=0)
        for _ in range(2):
            envs.step(np.zeros(4, np.int64))
        envs.check()


@situation(GPU, "a seed of more than 64 bits", "Use smaller seeds.")
def _() -> None:
    with poles(device="emulated") as envs:
        envs.reset(seed=2**64)


@situation(GPU, "`batch_size` on a GPU", "Use `step`: all environments step together.")
def _() -> None:
    shoal.make_vec("CartPole-v1", 8, device="emulated", batch_size=4)


@situation(GPU, "`array=` without a device", "Leave it out; results on the CPU are NumPy arrays.")
def _() -> None:
    shoal.make_vec("CartPole-v1", 8, array="torch")


# ---- Running them, and the page


def message(of: Situation) -> str:
    """`Type: what it says`, without what differs between runs."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what Gymnasium logs beside an error
                of.run()
        except Exception as error:
            said = f"{type(error).__name__}: {KeyError.__str__(error) if type(error) is KeyError else error}"
        else:
            raise AssertionError(f"{of.words}: nothing was raised")
        finally:
            os.chdir(here)
    return shown(said.replace(folder, "."))


def shown(said: str) -> str:
    """The first lines, on one; numbers of processes, sizes of this machine and places in memory are N."""
    said = " ".join(said.splitlines()[:2]) if len(said.splitlines()[0]) < 60 else said.splitlines()[0]
    said = said.replace(str(directory()), "/tmp/shoal-UID")
    said = re.sub(r"(limited by ).*", r"\1this machine's free memory", _large(said))  # or a cgroup
    said = re.sub(r"0x[0-9a-f]+", "N", said)
    said = re.sub(r"((?:process|pid) )\d+", r"\1N", said)
    return said


def _large(said: str) -> str:
    return re.sub(r"\b\d{9,}( \(?bytes)?( \([\d.]+ [KMGTPE]B\))?", r"N\1", said)


def tables() -> str:
    lines: list[str] = []
    part = ""
    for one in SITUATIONS:
        if one.part != part:
            part = one.part
            lines += ["", f"## {part}", "", "| situation | message | what to do |", "|---|---|---|"]
        said = message(one).replace("|", "\\|").replace("`", "'")
        lines.append(f"| {one.words} | `{said}` | {one.advice} |")
    return "\n".join(lines[1:]) + "\n"


BEGIN, END = "<!-- tables: python -m tests.docs.faults writes them -->\n", "<!-- end of the tables -->\n"


def parts(text: str) -> tuple[str, str, str]:
    """What is before the tables, they, and what is after."""
    before, rest = text.split(BEGIN)
    inside, after = rest.split(END)
    return before, inside, after


if __name__ == "__main__":
    before, _, after = parts(PAGE.read_text())
    PAGE.write_text(f"{before}{BEGIN}\n{tables()}\n{END}{after}")
