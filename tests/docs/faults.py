"""Situations a user gets into, and the message of each: docs/faults.md is made by running them.

    python -m tests.docs.faults     writes the tables anew

Numbers that differ between machines and runs are shown as N.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Text

import shoal
from shoal.replay import PrioritizedSampler
from shoal.replay.buffer import made
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


@situation(MAKING, "an id nobody knows", "Correct it; `shoal.make_vec` takes ids, paths and functions.")
def _() -> None:
    shoal.make_vec("CartPoll-v1")


@situation(MAKING, "a keyword that is misspelt", "Use the name it suggests.")
def _() -> None:
    shoal.make_vec("CartPole-v1", 8, max_slot=3)


@situation(MAKING, "workers for environments in C", "Leave it out, or ask for `backend='process'`.")
def _() -> None:
    shoal.make_vec("CartPole-v1", 8, num_workers=2)


@situation(MAKING, "no environments", "Ask for one at least.")
def _() -> None:
    shoal.make_vec("CartPole-v1", 0)


@situation(MAKING, "an option that is not the environment's", "Choose one of those it has.")
def _() -> None:
    shoal.make_vec("Squared-v0", 8, sise=7)


@situation(MAKING, "an option of the wrong type", "Give the type it asks for.")
def _() -> None:
    shoal.make_vec("Squared-v0", 8, size="big")


@situation(MAKING, "an option the environment refuses", "Choose a value it allows.")
def _() -> None:
    shoal.make_vec("Squared-v0", 8, size=-1)


@situation(
    MAKING, "a C environment, and no compiler", "Install one, or set `CC`. Bundled environments need none."
)
def _() -> None:
    Path("my_env.c").write_text("")
    path, os.environ["PATH"] = os.environ["PATH"], ""
    chosen = os.environ.pop("CC", None)
    try:
        shoal.make_vec("my_env.c")
    finally:
        os.environ["PATH"] = path
        if chosen is not None:
            os.environ["CC"] = chosen


@situation(
    MAKING, "a C file that does not exist", "Correct the path; it is relative to the working directory."
)
def _() -> None:
    shoal.make_vec("no_env.c")


@situation(MAKING, "a library that is no Shoal environment", "Give the library that `shoal build` printed.")
def _() -> None:
    Path("other.so").write_bytes(b"\x7fELF")
    shoal.make_vec("./other.so")


@situation(
    MAKING, "a function that cannot be sent to a worker", "Make what it refers to inside the function."
)
def _() -> None:
    lock = threading.Lock()

    def make() -> Any:
        return lock and World()

    ProcessVectorEnv([make] * 2)


@situation(MAKING, "a function that makes no environment", "Return the environment.")
def _() -> None:
    ProcessVectorEnv([lambda: None] * 2)


@situation(
    MAKING, "a function instead of a list of them", "Write `[make] * 8`, or use `shoal.make_vec(make, 8)`."
)
def _() -> None:
    ProcessVectorEnv(World)  # type: ignore[arg-type]


# ---- Stepping

STEPPING = "Stepping"


@situation(STEPPING, "step before reset", "Call `reset` once.")
def _() -> None:
    with poles() as envs:
        envs.step(np.zeros(4, np.int64))


@situation(STEPPING, "too few actions", "Give one for each row; nothing was stepped.")
def _() -> None:
    with poles() as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(3, np.int64))


@situation(STEPPING, "actions of another dtype", "Convert them: `actions.astype(np.int64)`.")
def _() -> None:
    with poles() as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(4))


@situation(STEPPING, "an action outside its space", "Look at what chose it; nothing was stepped.")
def _() -> None:
    with poles() as envs:
        envs.reset(seed=0)
        envs.step(np.array([0, 1, 2, 0]))


@situation(STEPPING, "use after close", "Make new environments; arrays you hold stay valid.")
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


@situation(STEPPING, "recv when nothing was sent", "Begin with `async_reset`, send what came back.")
def _() -> None:
    with poles(batch_size=2) as envs:
        envs.recv()


@situation(STEPPING, "step on environments made with batch_size", "Use `send` and `recv`.")
def _() -> None:
    with poles(batch_size=2) as envs:
        envs.async_reset(seed=0)
        envs.step(np.zeros(4, np.int64))


@situation(
    STEPPING,
    "a reset in the middle of a rollout",
    "Call `start` with what `reset` returned, so that no row follows one of another episode.",
)
def _() -> None:
    with poles() as envs:
        rollout = envs.rollout(2)
        rollout.start(envs.reset(seed=0)[0])
        rollout.step(np.zeros(4, np.int64))
        envs.reset()
        rollout.step(np.zeros(4, np.int64))


@situation(STEPPING, "a rollout that is full", "Call `start` with the last observation.")
def _() -> None:
    with poles() as envs:
        rollout = envs.rollout(1)
        rollout.start(envs.reset(seed=0)[0])
        rollout.step(np.zeros(4, np.int64))
        rollout.step(np.zeros(4, np.int64))


@situation(STEPPING, "a picture of environments made without", 'Make them with `render_mode="rgb_array"`.')
def _() -> None:
    with shoal.make_vec("Snake-v0", 2) as envs:
        envs.reset(seed=0)
        envs.render()


@situation(STEPPING, "a reset mask of the wrong shape", "Give a bool for each row.")
def _() -> None:
    with poles() as envs:
        envs.reset(seed=0)
        envs.reset(options={"reset_mask": np.ones(3, np.bool_)})


# ---- Workers

WORKERS = "Worker processes"


@situation(
    WORKERS,
    "an environment raises",
    "Its own exception, the worker's traceback as its cause. `error.env_id`, `error.results`; step on.",
)
def _() -> None:
    with worlds() as envs:
        envs.step([0, 1, 0, 0])


@situation(
    WORKERS,
    "a worker is killed",
    'Look at the signal; `reset()` brings it back, or make them with `on_fault="restart"`.',
)
def _() -> None:
    with worlds() as envs:
        envs.step([0, 0, 2, 0])


@situation(WORKERS, "a worker crashes", "`error.stderr` has the Python stack of the crash.")
def _() -> None:
    with worlds() as envs:
        envs.step([0, 0, 0, 3])


@situation(WORKERS, "a worker exits", "Let the environment raise instead.")
def _() -> None:
    with worlds() as envs:
        envs.step([7, 0, 0, 0])


@situation(
    WORKERS,
    "a step takes longer than `step_timeout_s`",
    "`error.stderr` says where it was; raise the limit, or mend the environment.",
)
def _() -> None:
    with worlds(step_timeout_s=0.3) as envs:
        envs.step([0, 0, 4, 0])


@situation(
    WORKERS, "`step_wait(timeout)` expires", "The step goes on; the next call throws its results away."
)
def _() -> None:
    with worlds() as envs:
        envs.step_async([4, 0, 0, 0])
        envs.step_wait(timeout=0.05)


@situation(WORKERS, "an observation of the wrong shape", "Mend the environment, or its observation space.")
def _() -> None:
    with worlds() as envs:
        envs.step([0, 5, 0, 0])


@situation(WORKERS, "an environment of the old Gym interface", "Wrap it, or return five values.")
def _() -> None:
    with worlds() as envs:
        envs.step([0, 6, 0, 0])


@situation(WORKERS, "too many actions", "Give one for each environment; none was stepped.")
def _() -> None:
    with worlds() as envs:
        envs.step([0] * 5)


# ---- Shared memory

MEMORY = "Shared memory"
REWARDS = {"reward": (np.float64, (8,))}


@situation(
    MEMORY, "more than there is room for", "Raise the limit it names, or ask for less. Nothing was allocated."
)
def _() -> None:
    shoal.Segment(shoal.Layout({"x": (np.uint8, (1 << 50,))}))


@situation(MEMORY, "a name that is taken", "Attach to it, or choose another.")
def _() -> None:
    with shoal.Segment.named(shoal.Layout(REWARDS), "docs-run-7"):
        shoal.Segment.named(shoal.Layout(REWARDS), "docs-run-7")


@situation(MEMORY, "a name that nothing has", "Create it first; it goes with its owner.")
def _() -> None:
    shoal.Segment.attach("docs-nobody")


@situation(MEMORY, "a file that is no segment", "Give the file that `Segment.file` made.")
def _() -> None:
    Path("ring.seg").write_bytes(b"x" * 4096)
    shoal.Segment.open("ring.seg")


@situation(MEMORY, "a file that was cut off", "Restore it.")
def _() -> None:
    with shoal.Segment.file(shoal.Layout(REWARDS), "ring2.seg"):
        pass
    os.truncate("ring2.seg", 4096)
    shoal.Segment.open("ring2.seg")


@situation(MEMORY, "another layout than expected", "Use the layout it was made with, or make it anew.")
def _() -> None:
    with shoal.Segment.named(shoal.Layout(REWARDS), "docs-run-8"):
        shoal.Segment.attach("docs-run-8", shoal.Layout({"reward": (np.float32, (8,))}))


@situation(MEMORY, "an array that is not there", "Choose one of the fields.")
def _() -> None:
    with shoal.Segment(shoal.Layout(REWARDS)) as segment:
        segment["rewards"]


@situation(MEMORY, "a dtype that cannot be shared", "Use numbers or bools.")
def _() -> None:
    shoal.Layout({"name": (object, (8,))})


@situation(MEMORY, "a value of the wrong shape", "Give what the space says; nothing was written.")
def _() -> None:
    space = Dict(camera=Box(0, 255, (2, 2), np.uint8))
    write_to_shared_memory(space, 0, {"camera": np.zeros((2, 3), np.uint8)}, create_shared_memory(space, 1))


@situation(MEMORY, "a key that is missing", "Give every key of the space.")
def _() -> None:
    space = Dict(camera=Box(0, 255, (2, 2), np.uint8))
    write_to_shared_memory(space, 0, {}, create_shared_memory(space, 1))


@situation(MEMORY, "a character that is not in the charset", "Declare it: `Text(8, charset=...)`.")
def _() -> None:
    write_to_shared_memory(Text(4, charset="ab"), 0, "abc", create_shared_memory(Text(4, charset="ab"), 1))


# ---- Replay

REPLAY = "Replay"
X = {"x": (np.float32, (2,))}


@situation(REPLAY, "a sample from an empty buffer", "Push something first.")
def _() -> None:
    with shoal.ReplayBuffer(10, X) as buffer:
        buffer.sample(4)


@situation(REPLAY, "rows of another shape", "Give rows of the field's shape; nothing was stored.")
def _() -> None:
    with shoal.ReplayBuffer(10, X) as buffer:
        buffer.extend({"x": np.zeros((5, 3), np.float32)})


@situation(REPLAY, "a field that is missing", "Give every field; nothing was stored.")
def _() -> None:
    with shoal.ReplayBuffer(10, X) as buffer:
        buffer.push({"y": [0, 0]})


@situation(REPLAY, "add before begin", "Call `begin` with what `reset` returned.")
def _() -> None:
    with poles() as envs, shoal.ReplayBuffer.for_env(envs, 100) as buffer:
        envs.reset(seed=0)
        buffer.add(np.zeros(4, np.int64), *envs.step(np.zeros(4, np.int64)))


@situation(REPLAY, "priorities that are no weights", "Add a small number to errors.")
def _() -> None:
    with shoal.ReplayBuffer(10, X) as buffer:
        sampler = PrioritizedSampler(buffer)
        buffer.extend({"x": np.zeros((5, 2), np.float32)})
        sampler.update_priorities(sampler.sample(2).ids, np.array([0.0, 1.0]))


@situation(REPLAY, "durability without a file", "Give `path=`.")
def _() -> None:
    shoal.ReplayBuffer(10, X, durability="sync")


@situation(REPLAY, "a file that exists", "Open it, or remove it.")
def _() -> None:
    shoal.ReplayBuffer(10, X, path="run.ring").close()
    shoal.ReplayBuffer(10, X, path="run.ring")


@situation(REPLAY, "a directory that `save` did not write", "Open snapshots and files with `open`.")
def _() -> None:
    shoal.ReplayBuffer.load("nowhere")


@situation(REPLAY, "a snapshot over the file it is of", "Give another name.")
def _() -> None:
    with shoal.ReplayBuffer(10, X, path="own.ring") as buffer:
        buffer.snapshot("own.ring")


@situation(REPLAY, "steps of environments that reset otherwise", "Make the buffer with `for_env` of these.")
def _() -> None:
    same = gymnasium.vector.AutoresetMode.SAME_STEP
    with poles() as others, shoal.ReplayBuffer.for_env(others, 100) as buffer:
        with poles(autoreset_mode=same) as envs:
            buffer.begin(envs.reset(seed=0)[0])
            while True:
                buffer.add(np.zeros(4, np.int64), *envs.step(np.zeros(4, np.int64)))


@situation(
    REPLAY,
    "a push where writers that are stopped hold every slot, after two seconds",
    "Let them go on, or end them; make it larger.",
)
def _() -> None:
    with shoal.ReplayBuffer(1, X) as buffer:
        stopped = made(Records.of(buffer._records.segment), None)
        stopped.push({"x": [0.0, 0.0]})
        buffer._records.segment["writers"][0, 1:3] = 0, 1  # as in the middle of its push
        buffer.push({"x": [1.0, 1.0]})


# ---- Sessions

SESSIONS = "Looking into a run"


@situation(SESSIONS, "a run that is not there", "`shoal ps` lists those that are.")
def _() -> None:
    shoal.attach("docs-nobody")


@situation(SESSIONS, "two runs of one name", "Choose another, or `session=None`.")
def _() -> None:
    with poles(session="docs"), poles(session="docs"):
        pass


@situation(SESSIONS, "an environment that is not there", "Ids go from 0.")
def _() -> None:
    with poles(session="docs"), shoal.attach("docs") as session:
        session.snapshot(4)


@situation(SESSIONS, "a run that does not step", "Wait longer, or look at what it waits for.")
def _() -> None:
    with poles(session="docs"), shoal.attach("docs") as session:
        session.snapshot(0, timeout_s=0.05)


@situation(SESSIONS, "a run that has ended", "Attach again when it runs again.")
def _() -> None:
    with poles(session="docs") as envs, shoal.attach("docs") as session:
        envs.close()
        deadline = time.monotonic() + 10
        while session.alive and time.monotonic() < deadline:
            pass
        session.counters()


@situation(SESSIONS, "a name with strange characters", "Letters, digits, `.`, `_` and `-`.")
def _() -> None:
    shoal.make_vec("CartPole-v1", session="my run")


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
    said = re.sub(r"(but ).*( leaves N).*", r"\1this machine's free memory\2", _large(said))  # or a cgroup
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
