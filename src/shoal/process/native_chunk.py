"""A worker's chunk of C environments: the engine over the chunk's rows."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

import numpy as np

from shoal import _core
from shoal.memory import Layout, Segment
from shoal.memory.layout import array_fields
from shoal.native.look import Looker
from shoal.native.plugin import load, seed_generators
from shoal.native.refusals import describe_attribute, refuse
from shoal.process.mail import Failure
from shoal.process.requests import Bind, StepperMethod
from shoal.process.worker import ERROR, STEP
from shoal.state.publish import Publisher

__all__ = ["NativeChunk", "read_actions"]


def read_actions(segment: Segment) -> tuple[Any, list[Any], list[Any]]:
    """Returns the arrays of a parent's actions: whether bytes are used; rows and bytes (or None) by field."""
    rows = [name for name in segment if name.startswith("action/")]
    narrow = [name.replace("action", "bytes") for name in rows]
    return (
        segment["is_bytes"],
        [segment[name] for name in rows],
        [segment[name] if name in segment else None for name in narrow],
    )


class NativeChunk:
    """C environments that one process steps, with one thread."""

    def __init__(self, plan: Any, worker: Any) -> None:
        path, options, time_limit = plan.plugin
        self._plan, self._worker = plan, worker
        self._info = info = load(path, options)
        worlds = -(-plan.count // info.lanes) * info.lanes
        rows = worlds * info.agents
        self._begin = plan.first * info.agents
        self._end = self._begin + rows
        board = worker.board
        part, envs = slice(self._begin, self._end), slice(plan.first, plan.first + worlds)
        # These are in the board, where the parent reads them; a replacement finds its predecessor's values.
        shared = {
            "instances": board["instances"][plan.worker],
            "last_return": board["last_return"][part],
            "last_length": board["last_length"][part],
            "episode": board["episode"][envs],
            "over": board["over"][envs],
        }
        shared["instances"][:] = shared["over"][:] = 0
        fields = array_fields(_core.STEPPER_ARRAYS, row=rows, environment=worlds)
        own = {name: field for name, field in fields.items() if name not in shared}
        actions = {f"action/{i}": (f.dtype, (rows, *f.shape)) for i, f in enumerate(info.actions)}
        self._state = state = Segment(Layout({**own, **actions}))
        arrays = shared | {name: state[name] for name in own}
        self._actions = [state[name] for name in actions]
        self._is_bytes: Any = None  # of the parent's actions; see read_actions
        self._shared_actions: list[tuple[Any, Any]] = []
        self._stepper = _core.Stepper(
            info.plugin, info.values, plan.count, 1, plan.autoreset, time_limit, arrays,
            tuple(self._actions), self, 0, _core.Guard(), None,
        )  # fmt: skip
        self._stepper.set_watch(board["due"][plan.worker], board["sums"][plan.worker])
        self._looker = Looker(info, shared["instances"], plan.first)
        self._publisher = Publisher(board, plan.first, plan.count, plan.worker)
        self._slots: dict[int, tuple[list[Any], int]] = {}
        self._seeded = False
        self._mark_restarted = board["reset"][plan.first : plan.first + plan.count]
        self._fresh = True

    def facts(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._publisher.close()
        self._stepper.close()

    def serve(self, gate: _core.Gate) -> int:
        while True:
            command = gate.wait()
            if command != STEP:
                return command
            try:
                self._step(gate.slot, gate.row)
            except BaseException as error:
                self._worker.reply([(None, ERROR, Failure.of(error, None))])
            else:
                gate.finish(0, 0)

    def _step(self, slot: int, row: int) -> None:
        if self._fresh:  # the parent marks environments that a replacement has to reset in its first step
            self._fresh = False
            self._state["reset"][: self._plan.count] |= self._mark_restarted
        is_bytes = self._is_bytes[0]
        for own, (shared, narrow) in zip(self._actions, self._shared_actions, strict=True):
            own[: len(shared)] = narrow if is_bytes and narrow is not None else shared
        self._stepper.step_into(None, self._targets(slot, row), None)

    def _targets(self, slot: int, row: int) -> tuple[Any, ...]:
        arrays, ahead = self._slots[slot]
        fields = len(self._info.observations)
        count = self._end - self._begin
        at = [row + self._begin + (ahead if number < fields else 0) for number in range(len(arrays))]
        return tuple(array[begin : begin + count] for array, begin in zip(arrays, at, strict=True))

    def on_bind(self, request: Bind) -> list[tuple[bool, bool]]:
        """Opens the memory that came with the request. The parent knows the spaces already."""
        blocks = request.blocks
        segment, *of_blocks = map(Segment.from_fileno, self._worker.receive_fds(1 + len(blocks)))
        end = self._begin + self._plan.count * self._info.agents
        self._is_bytes, rows, narrow = read_actions(segment)
        self._shared_actions = [
            (one[self._begin : end], None if few is None else few[self._begin : end])
            for one, few in zip(rows, narrow, strict=True)
        ]
        segment.close()
        for block, of_block in zip(blocks, of_blocks, strict=True):
            self._add_slot(of_block, *block)
        return []

    def on_slot(self, number: int, rows: int, ahead: int) -> None:
        self._add_slot(Segment.from_fileno(self._worker.receive_fds(1)[0]), number, rows, ahead)

    def _add_slot(self, segment: Segment, number: int, rows: int, ahead: int) -> None:
        names = [name for name in segment if not name.startswith("action")]
        self._slots[number] = [segment[name] for name in names], ahead
        segment.close()

    def on_drop(self, numbers: list[int]) -> None:
        for number in numbers:
            self._slots.pop(number, None)

    def on_reset(
        self, slot: int, row: int, seeds: list[int | None], options: Any, mask: list[bool] | None
    ) -> list[Any]:
        chosen = None if mask is None else np.array(mask, np.bool_)
        places = range(len(seeds))
        seed_generators(self._stepper, self._state["rng"], seeds, chosen, self._seeded, places)
        self._seeded = True
        self._mark_restarted[slice(None) if chosen is None else chosen] = 0
        self._stepper.reset_into(chosen, self._targets(slot, row))
        return []

    def on_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        error = AttributeError(describe_attribute(name))
        return [Failure.of(error, self._plan.first + local) for local in range(self._plan.count)]

    def on_set(self, name: str, values: list[Any]) -> list[Any]:
        return self.on_call(name, (), {})

    def on_stepper(self, method: StepperMethod, local: int, *rest: Any) -> Any:
        """Calls `save`, `restore` or `render` of one environment."""
        return getattr(self._stepper, method)(local, *rest)

    def on_look(self, local: int | None) -> list[Any]:
        """The exported state of one environment, or of each of them."""
        chosen = range(self._plan.count) if local is None else [local]
        return [self._stepper.fields(number) for number in chosen]

    def publish(self, stepper: Any) -> None:
        if self._publisher is not None:
            looker = self._looker
            self._publisher(partial(looker.snapshot, stepper), partial(looker.glance, stepper))

    def refuse(self, reason: str) -> NoReturn:
        refuse(reason)
