"""Requests that a parent sends to its workers as messages, and the chunk that answers them.

    parent: pool.request(w, Reset(...))  -> mail ->  worker: request.run(chunk)  -> mail ->  pool.answer(w)

A step whose actions are in shared memory needs no request: the gate alone carries it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gymnasium.spaces import Space

from shoal import _core

if TYPE_CHECKING:
    from shoal.process.chunks import EnvChunk
    from shoal.process.native_chunk import NativeChunk

__all__ = [
    "AddSlot",
    "Bind",
    "CallMethod",
    "Chunk",
    "DropSlots",
    "ReadState",
    "Request",
    "Reset",
    "SetAttribute",
    "Step",
    "StepperMethod",
    "UseStepper",
    "WorkerSide",
]

StepperMethod = Literal["save", "restore", "require_checkpoint", "render"]


class WorkerSide(Protocol):
    """A worker's end of what it shares with its parent, as its chunk uses it."""

    board: Any

    def reply(self, value: Any) -> None:
        """Finishes the current command with a message."""

    def post(self, value: Any) -> None:
        """Sends a message that no command asked for."""

    def receive_fds(self, number: int) -> list[int]:
        """The descriptors that the parent sent with the current request."""


class Chunk(Protocol):
    """The environments of one worker, in Python (EnvChunk) or in C (NativeChunk)."""

    def facts(self) -> dict[str, Any]:
        """What the parent must know about the environments: spaces, metadata, names."""

    def serve(self, gate: _core.Gate) -> int:
        """Steps until the gate carries another command, and returns that command."""

    def on_bind(self, request: Bind) -> list[tuple[bool, bool]]:
        """Opens the memory for actions and results; for each environment whether its spaces agree."""

    def on_slot(self, number: int, rows: int, ahead: int) -> None:
        """Opens memory for `rows` results; observations begin `ahead` rows later."""

    def on_drop(self, numbers: list[int]) -> None:
        """Closes the memory of these slots."""

    def on_reset(
        self, slot: int, row: int, seeds: list[int | None], options: Any, mask: list[bool] | None
    ) -> list[Any]:
        """Resets all environments, or those of `mask`; returns reports."""

    def on_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Calls a method of every environment, or gets an attribute."""

    def on_set(self, name: str, values: list[Any]) -> list[Any]:
        """Sets an attribute of every environment."""

    def on_look(self, local: int | None) -> list[Any]:
        """The exported state of one environment, or of each of them."""

    def close(self) -> None:
        """Closes the environments."""


class Request(Protocol):
    """A message to a worker. It is pickled, and runs there."""

    def run(self, chunk: Any) -> Any:
        """Asks the chunk; the parent gets the result. The chunk is of the kind that knows the request."""


@dataclass(frozen=True, slots=True)
class Bind:
    """The spaces that all environments must have, and memory for actions and results (`blocks`)."""

    mode: Any
    observation_space: Space[Any]
    action_space: Space[Any]
    in_segment: bool
    """Whether observations have a layout; otherwise they travel as messages."""
    actions: str
    """How actions arrive: "array", "memory" or "message"."""
    blocks: list[tuple[int, int, int]]
    """For each block its number, its rows, and how many rows later its observations begin."""

    def run(self, chunk: Chunk) -> list[tuple[bool, bool]]:
        return chunk.on_bind(self)


@dataclass(frozen=True, slots=True)
class AddSlot:
    """Memory for results; its descriptor follows over the socket."""

    number: int
    rows: int
    ahead: int

    def run(self, chunk: Chunk) -> None:
        chunk.on_slot(self.number, self.rows, self.ahead)


@dataclass(frozen=True, slots=True)
class DropSlots:
    """Memory for results that is not used any more."""

    numbers: list[int]

    def run(self, chunk: Chunk) -> None:
        chunk.on_drop(self.numbers)


@dataclass(frozen=True, slots=True)
class Reset:
    """A reset of all environments of a worker, or of those in `mask`."""

    slot: int
    row: int
    seeds: list[int | None]
    options: Any
    mask: list[bool] | None

    def run(self, chunk: Chunk) -> list[Any]:
        return chunk.on_reset(self.slot, self.row, self.seeds, self.options, self.mask)


@dataclass(frozen=True, slots=True)
class Step:
    """A step with actions that do not fit shared memory."""

    slot: int
    row: int
    actions: Any

    def run(self, chunk: EnvChunk) -> list[Any]:
        return chunk.on_step(self.slot, self.row, self.actions)


@dataclass(frozen=True, slots=True)
class CallMethod:
    """A call of a method of every environment; an attribute that is not callable is returned."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None

    def run(self, chunk: Chunk) -> list[Any]:
        return chunk.on_call(self.name, self.args, self.kwargs or {})


@dataclass(frozen=True, slots=True)
class SetAttribute:
    """A new value of an attribute for every environment."""

    name: str
    values: list[Any]

    def run(self, chunk: Chunk) -> list[Any]:
        return chunk.on_set(self.name, self.values)


@dataclass(frozen=True, slots=True)
class UseStepper:
    """A checkpoint or a picture of one C environment."""

    method: StepperMethod
    local: int
    rest: tuple[Any, ...] = ()

    def run(self, chunk: NativeChunk) -> Any:
        return chunk.on_stepper(self.method, self.local, *self.rest)


@dataclass(frozen=True, slots=True)
class ReadState:
    """The exported state of one environment, or of each of them (None)."""

    local: int | None

    def run(self, chunk: Chunk) -> list[Any]:
        return chunk.on_look(self.local)
