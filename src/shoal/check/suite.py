"""The checks. The first line of a check's docstring is its name in the report; it raises CheckFailed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from shoal.check.memory import memory
from shoal.check.observe import observe
from shoal.check.subject import CheckFailed, Subject, Watched
from shoal.check.traces import (
    Moment,
    Moves,
    Trace,
    copy_results,
    count_steps,
    find_difference,
    name_results,
    name_row,
    record,
)
from shoal.native.plugin import FieldInfo

__all__ = ["CHECKS"]

_STEPS = 200
_ENVS = 37


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise CheckFailed(message)


def _require_same(found: Trace, expected: Trace, agents: int, message: str) -> None:
    difference = find_difference(found, expected, agents)
    if difference is not None:
        raise CheckFailed(f"{message}\nthe first difference: {difference}")


def loads(subject: Subject) -> None:
    """It loads, describes itself and starts."""
    subject.describe()
    subject.make(1).close()


def _first_row(wrong: NDArray[np.bool_]) -> int | None:
    return int(wrong.argmax()) if wrong.any() else None


def spaces(subject: Subject) -> None:
    """Observations lie in their space and rewards are finite."""
    envs = subject.make(_ENVS)
    agents, fields = envs.agents_per_env, envs._info.observations
    steps = count_steps(envs._info, _ENVS, _STEPS)
    results, _ = envs.reset(seed=0)
    others: list[Any] = []
    for step, actions in enumerate(Moves(envs._info.actions, 0)(envs, steps)):
        when = "after reset" if step == 0 else f"at step {step}"
        named = name_results(fields, results, others)
        for field, (name, array) in zip(fields, named.items(), strict=False):
            problem = _leaves_space(field, array)
            if problem is not None:
                raise CheckFailed(f"{when}, {name}, {name_row(problem[0], agents)}: {problem[1]}")
        for name, array in list(named.items())[len(fields) :]:
            if name == "reward":
                row, problem_text = _first_row(~np.isfinite(array)), "is not finite"
            else:
                row, problem_text = _first_row(array.view(np.uint8) > 1), "must be 0 or 1"
            if row is not None:
                value = array[row] if name == "reward" else array.view(np.uint8)[row]
                raise CheckFailed(f"{when}, {name}, {name_row(row, agents)} {problem_text}: it is {value}")
        results, *others, _ = envs.step(actions)


def _leaves_space(field: FieldInfo, array: NDArray[Any]) -> tuple[int, str] | None:
    """Returns (row, problem) of the first row outside the field's space; None if there is none."""
    if array.dtype.kind == "f":
        row = _first_row(np.isnan(array).reshape(len(array), -1).any(axis=1))
        if row is not None:
            element = np.argwhere(np.isnan(array[row]))[0].tolist()
            return row, f"element {element} is NaN"
    if isinstance(field.space, Box):
        outside: NDArray[np.bool_] = np.logical_or(array < field.space.low, array > field.space.high)
        row = _first_row(np.any(outside.reshape(len(array), -1), axis=1))
        if row is not None:
            element = tuple(np.argwhere(outside[row])[0].tolist())
            low, high = field.space.low[element], field.space.high[element]
            return row, (
                f"element {list(element)} is {array[row][element]}, outside the declared bounds "
                f"{low} to {high}"
            )
        return None
    wrong = np.array([not field.space.contains(value) for value in array])
    row = _first_row(wrong)
    return None if row is None else (row, f"{array[row]} is outside {field.space}")


def same_seed(subject: Subject) -> None:
    """The same seed gives the same bytes."""
    first, second = subject.make(_ENVS), subject.make(_ENVS)
    steps, agents = count_steps(first._info, _ENVS, _STEPS), first.agents_per_env
    expected = record(first, steps)
    _require_same(
        record(second, steps),
        expected,
        agents,
        "two runs with the same seed differ: does it use uninitialised memory, the time, a global variable, "
        "or random numbers that do not come from envs->rng?",
    )
    _require_same(
        record(first, steps),
        expected,
        agents,
        "a second run after reset(seed=) differs from the first: does reset keep state of the old episode?",
    )


def other_seed(subject: Subject) -> None:
    """Environments with different seeds behave differently."""
    envs = subject.make(16)
    trace, rows = record(envs, 50), envs.agents_per_env
    runs = {
        b"".join(array[i * rows :][:rows].tobytes() for moment in trace for array in moment.results.values())
        for i in range(16)
    }
    _require(
        len(runs) > 1,
        "16 environments with 16 seeds and different actions gave the same results: does it ignore its "
        "actions and draw no random numbers?",
    )


def alone(subject: Subject) -> None:
    """An environment behaves alone as it does among others."""
    many = subject.make(_ENVS)
    steps = count_steps(many._info, _ENVS, 100)
    expected, agents, lanes = record(many, steps), many.agents_per_env, many._info.lanes
    for env in range(_ENVS):
        # It stays in the same lane, with different environments in the lanes before it.
        before = [(env + 1 + lane) % _ENVS for lane in range(env % lanes)]
        found = record(subject.make(len(before) + 1), steps, env_ids=[*before, env])
        difference = find_difference(found, expected, agents, len(before) * agents, env * agents, agents)
        if difference is not None:
            raise CheckFailed(
                f"environment {env} behaves differently among {_ENVS} environments than alone: do "
                "environments share memory, or does one write into the struct of another?\n"
                f"the first difference: {difference}"
            )


def instances(subject: Subject) -> None:
    """Two sets of environments in one process do not interact."""
    first, second, apart = (subject.make(5) for _ in range(3))
    steps, agents = count_steps(apart._info, 5, _STEPS), apart.agents_per_env
    expected = record(apart, steps)
    second.reset(seed=99)
    others = Moves(second._info.actions, 7)(second, steps)
    found = record(_Interleaved(first, lambda: second.step(next(others))), steps)
    _require_same(
        found, expected, agents, "stepping other environments changed these: is there a global variable?"
    )


class _Interleaved(Watched):
    """Calls a function before each step."""

    def __init__(self, envs: Watched, between: Callable[[], Any]) -> None:
        super().__init__(envs._envs, envs._subject)
        self._between = between

    def step(self, actions: Any) -> Any:
        self._between()
        return self.__getattr__("step")(actions)


def threads(subject: Subject) -> None:
    """Any number of threads gives the same bytes."""
    count = 300
    one, others = subject.make(count), {n: subject.make(count, num_threads=n) for n in (2, 3, 5)}
    agents = one.agents_per_env
    for envs in (one, *others.values()):
        envs.reset(seed=1)
    for step, actions in enumerate(Moves(one._info.actions, 1)(one, count_steps(one._info, count, 60))):
        expected = _step(one, actions, step)
        for number, envs in others.items():
            _require_same(
                [_step(envs, actions, step)],
                [expected],
                agents,
                f"a run on {number} threads differs from the same run on one: is there a global variable?",
            )


def _step(envs: Watched, actions: Any, step: int) -> Moment:
    observation, *others, _ = envs.step(actions)
    return Moment(f"at step {step + 1}", name_results(envs._info.observations, observation, others))


def reset_any_time(subject: Subject) -> None:
    """Reset works at any time, for all and for some."""
    envs, rng = subject.make(8), np.random.default_rng(0)
    expected = record(envs, 50)
    moves = Moves(envs._info.actions, 5)(envs, 60 * 5)
    envs.reset(seed=5)
    for _ in range(60):
        for _ in range(int(rng.integers(0, 5))):
            envs.step(next(moves))
        mask = np.repeat(rng.random(8) < 0.5, envs.agents_per_env)
        mask[: envs.agents_per_env] = True
        envs.reset(options={"reset_mask": mask})
    _require_same(
        record(envs, 50),
        expected,
        envs.agents_per_env,
        "a seeded run differs after resets in the middle of episodes: does reset keep state of the old one?",
    )


def checkpoint(subject: Subject) -> None:
    """If it can be saved, a restored environment continues as the saved one did."""
    envs = subject.make(3)
    if not envs.has_extension("shoal.checkpoint/1"):
        return
    envs.reset(seed=0)
    moves = Moves(envs._info.actions, 0)(envs, 120)
    for _ in range(20):
        envs.step(next(moves))
    saved = [envs.save_env(i) for i in range(3)]
    plan = list(moves)
    first = _play(envs, plan)
    for i, data in enumerate(saved):
        envs.restore_env(i, data)
    _require_same(
        _play(envs, plan),
        first,
        envs.agents_per_env,
        "restored environments behave differently from the saved ones: is part of the state not saved?",
    )


def _play(envs: Watched, plan: list[Any]) -> Trace:
    trace = []
    for step, actions in enumerate(plan):
        observation, *others, _ = envs.step(actions)
        when = f"at step {step + 1} after the save"
        trace.append(copy_results(when, envs._info.observations, observation, others))
    return trace


def state(subject: Subject) -> None:
    """If it exports its state, exporting changes nothing, and stable fields never move."""
    envs, unseen = subject.make(3), subject.make(3)
    if not envs.has_extension("shoal.state/1"):
        return
    for each in (envs, unseen):
        each.reset(seed=0)
    fields, places = envs._info.observations, _stable_places(envs)
    for step, move in enumerate(Moves(envs._info.actions, 0)(envs, 50)):
        first, again = ({key: bytes(one["data"]) for key, one in envs.state(1).items()} for _ in range(2))
        changed = [key for key in first if first[key] != again.get(key)]
        _require(
            not changed,
            f"after {step} steps, the state field {', '.join(map(repr, changed))} of environment 1 differs "
            "when it is exported twice without a step",
        )
        seen, plain = (
            [copy_results(f"at step {step + 1}", fields, one.step(move)[0], ())] for one in (envs, unseen)
        )
        _require_same(
            seen,
            plain,
            envs.agents_per_env,
            "environments behave differently after their state was exported: does the export write to them?",
        )
        moved = _stable_places(envs)
        for name in sorted(places.keys() | moved.keys()):
            _require(
                moved.get(name) == places.get(name),
                f"the stable state field {name!r} moved or changed shape at step {step + 1}: its address and "
                f"shape were {places.get(name)} and are {moved.get(name)}",
            )


def _stable_places(envs: Watched) -> dict[str, Any]:
    """Returns address and shape of the fields that are flagged stable."""
    arrays, schema = envs.state_arrays(1), envs.state_schema(1)
    stable = [name for name in arrays if schema[name]["stable"]]
    return {name: (hex(arrays[name].ctypes.data), arrays[name].shape) for name in stable}


def speed(subject: Subject) -> None:
    """A thousand environments can be stepped at once."""
    envs = subject.make(1024)
    envs.reset(seed=0)
    moves = list(Moves(envs._info.actions, 0)(envs, 4))
    begin = time.perf_counter()
    for i in range(20):
        envs.step(moves[i % 4])
    _require(time.perf_counter() - begin < 60, "20 steps of 1,024 environments took more than a minute")


CHECKS: dict[str, Callable[[Subject], None]] = {
    check.__name__: check
    for check in (
        loads,
        memory,
        spaces,
        same_seed,
        other_seed,
        alone,
        instances,
        threads,
        observe,  # before the first check that resets some environments, which uses it
        reset_any_time,
        checkpoint,
        state,
        speed,
    )
}
