"""Checks shoal.observe/1: for any range it must write the last observations again, and nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.check.guards import GuardedEnvs, Pieces, collect, play
from shoal.check.subject import CheckFailed, Subject
from shoal.check.traces import Moves, count_steps, find_difference, name_row
from shoal.native.plugin import FieldInfo

__all__ = ["observe"]

_ENVS, _STEPS = 37, 200
_RUBBISH = (0x5A, 0xC3)  # bytes in the arrays before a call, in turn


def observe(subject: Subject) -> None:
    """If it can observe, it writes the same bytes again and changes nothing."""
    seen, unseen = (GuardedEnvs(subject, _ENVS, in_one_block=True) for _ in range(2))
    if not seen.can_observe:
        return
    if subject.report_regions is not None:
        subject.report_regions([*seen.regions(), *unseen.regions()])
    steps, random = count_steps(seen.info, _ENVS, _STEPS), np.random.default_rng(5)
    look = _Observer(seen)
    for envs in (seen, unseen):
        envs.start()
        envs.reset(seed=3)
    _look_at_each(look, "after reset")
    for step, _ in enumerate(zip(*(play(envs, steps, fill=0) for envs in (seen, unseen)), strict=True), 1):
        when = f"at step {step}"
        _require_same_run(seen, unseen, when)
        look(when, 0, _ENVS)
        look(when, step % _ENVS, step % _ENVS + 1)
        look(when, *_pick_range(random))
        if step % 16 == 0:
            begin, end = _pick_range(random)
            for envs in (seen, unseen):
                envs.reset_range(begin, end)
            look(f"{when}, after a reset of environments {begin} to {end - 1}", 0, _ENVS)
    _look_at_each(look, f"at step {steps}")
    for envs in (seen, unseen):
        envs.close()


def _pick_range(random: np.random.Generator) -> tuple[int, int]:
    begin, last = sorted(random.integers(0, _ENVS, 2).tolist())
    return begin, last + 1


def _look_at_each(look: _Observer, when: str) -> None:
    look(when, 0, _ENVS)
    look(when, 1, _ENVS - 1)
    for env in range(_ENVS):
        look(when, env, env + 1)


def _require_same_run(seen: GuardedEnvs, unseen: GuardedEnvs, when: str) -> None:
    difference = find_difference([collect(when, seen)], [collect(when, unseen)], seen.info.agents)
    if difference is not None:
        raise CheckFailed(
            "environments that were observed behave differently from the same ones that were not: does "
            "observe write to memory outside the struct, or is the environment not deterministic?\n"
            f"the first difference: {difference}"
        )


class _Observer:
    """Observes into arrays of rubbish, compares every byte, and restores the old bytes."""

    def __init__(self, envs: GuardedEnvs) -> None:
        self._envs, self._calls = envs, 0
        self._moves = Moves(envs.info.actions, seed=11)

    def __call__(self, when: str, begin: int, end: int) -> None:
        envs, rubbish = self._envs, _RUBBISH[self._calls % 2]
        own, written = ([one.read() for one in some] for some in (_own(envs), envs.results))
        inputs = [one.read() for one in envs.inputs]
        envs.fill_results(rubbish)
        others = self._moves.pick(np.arange(_ENVS * envs.info.agents), self._calls)
        given = envs.write_inputs(others, np.ones(_ENVS, bool))
        self._calls += 1
        what = f"{when}, observe({begin}, {end})"
        try:
            envs.observe(begin, end)
        except CheckFailed as error:
            raise CheckFailed(f"{when}, {error}") from None
        for one, before in zip((*_own(envs), *envs.inputs), (*own, *given), strict=True):
            self._require_same(what, one, before)
        for one in envs.results[len(envs.observations) :]:
            self._require_same(what, one, np.full(one.size, rubbish, np.uint8))
        for one, field, before in zip(envs.observations, envs.info.observations, written, strict=False):
            self._require_rows(what, range(begin, end), one, field, before, rubbish)
        for one, before in zip((*envs.results, *envs.inputs), (*written, *inputs), strict=True):
            one.write(before)

    def _require_same(self, what: str, one: Pieces, before: NDArray[np.uint8]) -> None:
        """Requires that an array, which observe must not write, has not changed."""
        changed = np.flatnonzero(one.read() != before)
        if len(changed):
            lanes = self._envs.info.lanes if one is self._envs.instances else 1
            first = int(changed[0]) // (one.size // self._envs.per_block) // lanes * lanes
            raise CheckFailed(
                f"{what} changed {one.name}, {self._envs.name_envs(first, lanes)}: observe must write "
                "observations and nothing else, and draw no random numbers"
            )

    def _require_rows(
        self,
        what: str,
        envs: range,
        one: Pieces,
        field: FieldInfo,
        before: NDArray[np.uint8],
        rubbish: int,
    ) -> None:
        """Requires the rows of the last step or reset for these environments, and rubbish for others."""
        agents = self._envs.info.agents
        shape = (self._envs.per_block * agents, -1, field.dtype.itemsize)
        found: NDArray[np.uint8] = one.read().reshape(shape)
        last: NDArray[np.uint8] = before.reshape(shape)
        inside = np.zeros(len(found), bool)
        inside[envs.start * agents : envs.stop * agents] = True
        wrong = (found != np.where(inside[:, None, None], last, np.uint8(rubbish))).any(axis=2)
        if not wrong.any():
            return
        row = int(wrong.any(axis=1).argmax())
        element = int(wrong[row].argmax())
        where = f"{one.name}, {name_row(row, agents)}"
        if not inside[row]:
            raise CheckFailed(f"{what} wrote outside its range: {where}")
        if (found[row, element] == rubbish).all():
            raise CheckFailed(
                f"{what} does not write its whole row: {where}, element {element} of {found.shape[1]} keeps "
                "its old value"
            )
        value, wanted = (
            np.frombuffer(each[row, element].tobytes(), field.dtype)[0] for each in (found, last)
        )
        raise CheckFailed(
            f"{what} wrote different bytes from the last step or reset: {where}, element {element} of "
            f"{found.shape[1]} is {value} instead of {wanted}; keep in the struct all that an observation "
            "shows: observe must not read actions, flags or result arrays"
        )


def _own(envs: GuardedEnvs) -> tuple[Pieces, Pieces]:
    return envs.instances, envs.rng
