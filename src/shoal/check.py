"""`shoal check`: the contract of include/shoal/env.h as a suite that any plug-in can be held against.

The checks run in a child process: a crash of the plug-in is a failed check, and the rest goes on in another.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShoalError
from shoal.native.plugin import bundled
from shoal.vector import VectorEnv, make_vec

__all__ = ["CHECKS", "run"]

_TIMEOUT_S = 120
_STEPS = 200
_CANARY = 4096


class CheckFailed(ShoalError):
    """What the plug-in did against the contract."""


def run(env: str, options: dict[str, Any] | None = None) -> int:
    """Runs every check on a C file, a library or a bundled id; prints a line each; 0 if all passed."""
    wrong = _unknown(env)
    if wrong is not None:
        print(wrong, file=sys.stderr)
        return 2
    failures = 0
    waiting = list(CHECKS)
    while waiting:
        for name, outcome in _in_child(env, list(waiting), options or {}):
            waiting.remove(name)
            sentence = (CHECKS[name].__doc__ or name).splitlines()[0].rstrip(".")
            print(f"{'ok    ' if outcome is None else 'FAILED'}  {sentence}", flush=True)
            if outcome is not None:
                failures += 1
                print("        " + outcome.replace("\n", "\n        "), flush=True)
                if name == "loads" or "did not finish" in outcome:
                    print("        the other checks need this one")
                    return 1
    return 1 if failures else 0


def _unknown(env: str) -> str | None:
    """What is wrong with the name alone."""
    path = Path(env)
    if path.is_dir():
        example = next(iter(sorted(path.glob("*.c"))), path / "NAME.c")
        return f"{env} is a directory; give the source file in it, such as {example}"
    named = env.startswith("puffer:") or path.suffix in (".c", ".cc", ".cpp", ".so", ".dylib")
    if named or env.removeprefix("shoal/") in bundled():
        return None
    ours = ", ".join(sorted(bundled()))
    return f"{env!r} is no C file, no library and no environment in C that comes with Shoal: {ours}"


def _in_child(env: str, names: list[str], options: dict[str, Any]) -> Iterator[tuple[str, str | None]]:
    """(check, what went wrong or None) for each check, until the first that takes the process with it."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "shoal.check", str(writing), env, json.dumps(names), json.dumps(options)]
    # What the plug-in prints goes to a file: a pipe nobody reads would stop it, and reports have their own.
    with open(reading) as reports, tempfile.TemporaryFile("w+") as printed:
        child = subprocess.Popen(command, stdout=printed, stderr=printed, pass_fds=(writing,))
        os.close(writing)
        try:
            for name in names:
                if not select.select([reports], [], [], _TIMEOUT_S)[0]:
                    yield name, f"did not finish in {_TIMEOUT_S} s: does reset or step loop for ever?"
                    return
                line = reports.readline()
                if not line:
                    yield name, _death(child, printed)
                    return
                yield name, json.loads(line)
        finally:
            child.kill()
            child.wait()


def _death(child: subprocess.Popen[bytes], printed: IO[str]) -> str:
    status = child.wait()
    printed.seek(0)
    words = "\n".join(printed.read().strip().splitlines()[-10:])
    cause = f"the process ended with status {status}"
    if status == -signal.SIGABRT:
        cause = "the process aborted itself (SIGABRT): a failed assert, or a damaged heap"
    elif status < 0:
        cause = f"the process was killed by {signal.Signals(-status).name}: a memory error in the plug-in"
    return f"{cause}; it printed:\n{words}" if words else cause


def _made(env: str, options: dict[str, Any], num_envs: int = 37, **kwargs: Any) -> VectorEnv:
    made = make_vec(env, num_envs, session=None, **{"num_threads": 1, **kwargs}, **options)
    assert isinstance(made, VectorEnv)
    return made


def _actions(envs: VectorEnv, seed: int) -> Iterator[Any]:
    """Random actions, the same for the same seed; row i's do not depend on the number of rows."""
    rng = np.random.default_rng(seed)
    single = envs.single_action_space
    single.seed(int(rng.integers(2**31)))
    table = [single.sample() for _ in range(64)]
    rows = envs.num_envs
    while True:
        picks = rng.integers(0, 64, 256)[np.arange(rows) % 256]
        chosen = [table[pick] for pick in picks]
        if isinstance(chosen[0], dict):
            yield {key: np.stack([value[key] for value in chosen]) for key in chosen[0]}
        else:
            yield np.stack(chosen)


def _parts(observation: Any) -> list[NDArray[Any]]:
    return list(observation.values()) if isinstance(observation, dict) else [observation]


def _trace(envs: VectorEnv, rows: slice, steps: int = _STEPS, seed: int = 1) -> list[bytes]:
    """Everything some rows went through from a seeded reset, as bytes."""
    observation, _ = envs.reset(seed=seed)
    trace = [part[rows].tobytes() for part in _parts(observation)]
    for _, actions in zip(range(steps), _actions(envs, seed), strict=False):
        observation, *others, _ = envs.step(actions)
        trace += [part[rows].tobytes() for part in (*_parts(observation), *others)]
    return trace


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise CheckFailed(message)


def loads(env: str, options: dict[str, Any]) -> None:
    """It loads, describes itself and starts."""
    _made(env, options, 1).close()


def spaces(env: str, options: dict[str, Any]) -> None:
    """Observations lie in their space and rewards are finite."""
    envs = _made(env, options)
    observation, _ = envs.reset(seed=0)
    for _, actions in zip(range(_STEPS), _actions(envs, 0), strict=False):
        for part in _parts(observation):
            _require(
                part.dtype.kind != "f" or not np.isnan(part).any(), f"an observation holds NaN: {part[:3]}"
            )
        _require(
            envs.observation_space.contains(observation),
            f"an observation is outside {envs.single_observation_space}: check the declared bounds",
        )
        observation, rewards, terminated, truncated, _ = envs.step(actions)
        _require(bool(np.isfinite(rewards).all()), f"a reward is not finite: {rewards}")
        flags = np.stack([terminated, truncated]).view(np.uint8)
        _require(int(flags.max()) <= 1, "terminated and truncated must be 0 or 1")


def same_seed(env: str, options: dict[str, Any]) -> None:
    """The same seed gives the same bytes."""
    everything = slice(None)
    first, second = _made(env, options), _made(env, options)
    expected = _trace(first, everything)
    _require(
        _trace(second, everything) == expected,
        "two runs with one seed differ: uninitialised memory, time, or a generator besides envs->rng?",
    )
    _require(
        _trace(first, everything) == expected,
        "a second run after reset(seed=) differs from the first: reset leaves something of the old episode",
    )


def other_seed(env: str, options: dict[str, Any]) -> None:
    """Environments do not all live the same life."""
    envs = _made(env, options, 16)
    rows = envs.agents_per_env
    lives = {b"".join(_trace(envs, slice(i * rows, (i + 1) * rows), 50)) for i in range(16)}
    _require(len(lives) > 1, "16 environments with 16 seeds and different actions gave one and the same life")


def alone(env: str, options: dict[str, Any]) -> None:
    """An environment behaves alone as it does among others."""
    many, one = _made(env, options, 37), _made(env, options, 1)
    rows = slice(0, many.agents_per_env)
    _require(
        _trace(many, rows) == _trace(one, rows),
        "environment 0 of 37 lived another life than the same one alone: do environments share memory?",
    )


def instances(env: str, options: dict[str, Any]) -> None:
    """Two sets of environments in one process do not interact."""
    first, second, apart = (_made(env, options, 5) for _ in range(3))
    expected = _trace(apart, slice(None))
    observation, _ = first.reset(seed=1)
    found = [part.tobytes() for part in _parts(observation)]
    second.reset(seed=99)
    moves, others = _actions(first, 1), _actions(second, 7)
    for _ in range(_STEPS):
        observation, *rest, _ = first.step(next(moves))
        found += [part.tobytes() for part in (*_parts(observation), *rest)]
        second.step(next(others))
    _require(found == expected, "stepping other environments changed these: is there a global variable?")


def threads(env: str, options: dict[str, Any]) -> None:
    """Any number of threads gives the same bytes."""
    expected = _trace(_made(env, options, 300), slice(None), 60)
    for count in (2, 3, 5):
        found = _trace(_made(env, options, 300, num_threads=count), slice(None), 60)
        _require(found == expected, f"{count} threads gave other bytes than 1")


def rows(env: str, options: dict[str, Any]) -> None:
    """It writes every byte of its rows and none outside them."""
    traces = []
    for fill in (0x00, 0xFF):
        envs = _made(env, options)
        traces.append(b"".join(_guarded_trace(envs, fill)))
    _require(
        traces[0] == traces[1], "some bytes of a row are not written at every step (they kept what was there)"
    )


def _guarded_trace(envs: VectorEnv, fill: int) -> Iterator[bytes]:
    """Steps into arrays between canaries, filled beforehand."""
    observation, _ = envs.reset(seed=3)
    like = [*_parts(observation), np.zeros(envs.num_envs), *np.zeros((2, envs.num_envs), bool)]
    padding = envs._padded - envs.num_envs
    blocks, views = [], []
    for array in like:
        row = array.nbytes // len(array)
        block = np.full(_CANARY + array.nbytes + padding * row + _CANARY, 0xA5, np.uint8)
        inside = block[_CANARY : _CANARY + array.nbytes]
        blocks.append((block, _CANARY + array.nbytes + padding * row))
        views.append(np.ndarray(array.shape, array.dtype, block, _CANARY))
        inside[:] = fill
    for _, actions in zip(range(60), _actions(envs, 3), strict=False):
        for view in views:
            view.view(np.uint8)[...] = fill
        envs._stepper.step_into(actions, tuple(views))
        for name, (block, end) in enumerate(blocks):
            clean = (block[:_CANARY] == 0xA5).all() and (block[end:] == 0xA5).all()
            _require(bool(clean), f"it wrote outside the rows of array {name} (observations come first)")
        yield b"".join(view.tobytes() for view in views)


def reset_any_time(env: str, options: dict[str, Any]) -> None:
    """Reset works at any time, for all and for some."""
    envs, rng = _made(env, options, 8), np.random.default_rng(0)
    expected = _trace(envs, slice(None), 50)
    moves = _actions(envs, 5)
    envs.reset(seed=5)
    for _ in range(60):
        for _ in range(int(rng.integers(0, 5))):
            envs.step(next(moves))
        mask = np.repeat(rng.random(8) < 0.5, envs.agents_per_env)
        mask[: envs.agents_per_env] = True
        envs.reset(options={"reset_mask": mask})
    _require(
        _trace(envs, slice(None), 50) == expected, "after resets at odd times a seeded run is another one"
    )


def checkpoint(env: str, options: dict[str, Any]) -> None:
    """If it can be saved, a restored environment goes on as the saved one did."""
    envs = _made(env, options, 3)
    if not envs.has_extension("shoal.checkpoint/1"):
        return
    envs.reset(seed=0)
    moves = _actions(envs, 0)
    for _ in range(20):
        envs.step(next(moves))
    saved = [envs.save_env(i) for i in range(3)]
    plan = [next(moves) for _ in range(100)]
    first = [b"".join(part.tobytes() for part in (*_parts(r[0]), *r[1:4])) for r in map(envs.step, plan)]
    for i, data in enumerate(saved):
        envs.restore_env(i, data)
    again = [b"".join(part.tobytes() for part in (*_parts(r[0]), *r[1:4])) for r in map(envs.step, plan)]
    _require(first == again, "the restored environments lived another life than the saved ones")


def state(env: str, options: dict[str, Any]) -> None:
    """If it exports its state, looking changes nothing, and what is stable stays where it is."""
    envs, unseen = _made(env, options, 3), _made(env, options, 3)
    if not envs.has_extension("shoal.state/1"):
        return
    for each in (envs, unseen):
        each.reset(seed=0)
    places = _stable_places(envs)
    for move in (move for _, move in zip(range(50), _actions(envs, 0), strict=False)):
        first, again = ({key: bytes(one["data"]) for key, one in envs.state(1).items()} for _ in range(2))
        changed = [key for key in first if first[key] != again.get(key)]
        _require(not changed, f"asked twice without a step, {changed} differed")
        seen, plain = (b"".join(part.tobytes() for part in _parts(e.step(move)[0])) for e in (envs, unseen))
        _require(seen == plain, "an environment that was looked at went another way than one that was not")
        moved = _stable_places(envs)
        _require(moved == places, f"stable fields moved or changed shape: {places} became {moved}")


def _stable_places(envs: VectorEnv) -> dict[str, Any]:
    """Address and shape of the fields that an environment says are stable."""
    arrays, schema = envs.state_arrays(1), envs.state_schema(1)
    stable = [name for name in arrays if schema[name]["stable"]]
    return {name: (arrays[name].ctypes.data, arrays[name].shape) for name in stable}


def speed(env: str, options: dict[str, Any]) -> None:
    """It can be stepped a thousand at a time."""
    envs = _made(env, options, 1024)
    envs.reset(seed=0)
    moves = [next(_actions(envs, seed)) for seed in range(4)]
    begin = time.perf_counter()
    for i in range(20):
        envs.step(moves[i % 4])
    _require(time.perf_counter() - begin < 60, "20 steps of 1,024 environments took more than a minute")


CHECKS: dict[str, Callable[[str, dict[str, Any]], None]] = {
    check.__name__: check
    for check in (
        loads,
        spaces,
        same_seed,
        other_seed,
        alone,
        instances,
        threads,
        rows,
        reset_any_time,
        checkpoint,
        state,
        speed,
    )
}


def _child(writing: str, env: str, names: str, options: str) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a looping plug-in must not outlive us
    with open(int(writing), "w") as reports:
        for name in json.loads(names):
            outcome = None
            try:
                CHECKS[name](env, json.loads(options))
            except (ShoalError, TypeError, ValueError) as error:
                outcome = str(error)
            print(json.dumps(outcome), file=reports, flush=True)


if __name__ == "__main__":
    _child(*sys.argv[1:])
