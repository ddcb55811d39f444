"""`SharedCircularBuffer`: a small replay buffer for transitions with float states, in shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.memory import Segment
from shoal.replay.arguments import require_capacity, require_count
from shoal.replay.records import Records

__all__ = ["SharedCircularBuffer"]


class SharedCircularBuffer:
    """The newest `capacity` transitions: state, action, reward, next state, done.

    >>> buffer = SharedCircularBuffer(capacity=2, state_dim=1)
    >>> for step in range(3):
    ...     buffer.push([step], step % 2, 1.0, [step + 1], step == 2)
    >>> buffer.latest(2)["states"]
    [[1.0], [2.0]]
    >>> buffer.close()

    Pass it to other processes as an argument of `multiprocessing.Process` or through a queue. Any number of
    processes can push and sample at once. A reader never gets a partly written transition.
    """

    def __init__(self, capacity: int, state_dim: int) -> None:
        capacity, state = require_capacity(capacity), (np.float64, (require_count("state_dim", state_dim),))
        self._begin(
            Records(
                capacity,
                {
                    "states": state,
                    "actions": (np.int64, ()),
                    "rewards": (np.float64, ()),
                    "next_states": state,
                    "dones": (np.bool_, ()),
                },
            )
        )

    def _begin(self, records: Records) -> None:
        self._records = records
        self.capacity = records.capacity
        (self.state_dim,) = records.columns["states"].shape
        self.states: NDArray[np.float64] = records.view("states")
        self.actions: NDArray[np.int64] = records.view("actions")
        self.rewards: NDArray[np.float64] = records.view("rewards")
        self.next_states: NDArray[np.float64] = records.view("next_states")
        self.dones: NDArray[np.bool_] = records.view("dones")

    def push(self, state: Any, action: int, reward: float, next_state: Any, done: bool) -> None:
        """Stores one transition, or raises and stores nothing."""
        row = {
            "states": self._state("state", state),
            "actions": _integer(action),
            "rewards": _number("reward", reward),
            "next_states": self._state("next_state", next_state),
            "dones": _flag(done),
        }
        stored = self._records.ring.push(row)
        assert stored is not None, "every value has the type of its field"

    def sample(self, batch_size: int, seed: int | None = None) -> dict[str, list[Any]]:
        """Returns transitions drawn with replacement, as lists."""
        count = require_count("batch_size", batch_size)
        used = len(self)
        if used == 0:
            raise ValueError("cannot sample from an empty buffer; push something first")
        generator = np.random.RandomState(_seed(seed))
        out = self._records.empty(count)
        missing = np.arange(count)
        slots = generator.randint(0, used, size=count)
        for _ in range(10_000):
            missing = missing[~self._read(slots[missing], missing, out)]
            if not len(missing):
                return {name: array.tolist() for name, array in out.items()}
            # These are being written, or their writer died: draw others.
            slots[missing] = generator.randint(0, used, size=len(missing))
        raise ValueError(
            f"there is no complete transition in the buffer: all {used} slots are being written, or their "
            "writers died; push some transitions"
        )

    def latest(self, n: int) -> dict[str, list[Any]]:
        """Returns the `n` newest transitions, oldest first; all if there are fewer."""
        count = min(require_count("n", n, 0), self.capacity)
        ids = np.empty(count, np.uint64)
        ids = ids[: self._records.ring.latest(count, ids)] if count else ids
        out, found = self._records.empty(len(ids)), np.empty(len(ids), np.bool_)
        self._records.ring.fetch(ids, tuple(out.values()), found.view(np.uint8))
        return {name: array[found].tolist() for name, array in out.items()}

    def __len__(self) -> int:
        return self._records.ring.length

    def close(self) -> None:
        """Closes this handle. Its arrays stay valid, and other processes can go on using the buffer."""
        self._records.close()

    def _read(
        self, slots: NDArray[Any], places: NDArray[Any], out: dict[str, NDArray[Any]]
    ) -> NDArray[np.bool_]:
        ids = slots.astype(np.uint64)
        self._records.ring.ids_in(ids)
        part, found = self._records.empty(len(slots)), np.empty(len(slots), np.bool_)
        self._records.ring.fetch(ids, tuple(part.values()), found.view(np.uint8))
        for name, array in part.items():
            out[name][places[found]] = array[found]
        return found

    def _state(self, name: str, value: Any) -> NDArray[np.float64]:
        try:
            array = np.array(value, np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} must be {self.state_dim} numbers, got {value!r}") from error
        if array.shape != (self.state_dim,):
            raise ValueError(f"{name} must have shape ({self.state_dim},), got {array.shape}")
        return array

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._records.segment,)

    def __repr__(self) -> str:
        return f"SharedCircularBuffer(capacity={self.capacity}, state_dim={self.state_dim})"


def _rebuild(segment: Segment) -> SharedCircularBuffer:
    self = SharedCircularBuffer.__new__(SharedCircularBuffer)
    self._begin(Records.of(segment))
    return self


def _integer(value: Any) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"action must be an int, got {type(value).__name__}: {value!r}")
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"action must fit 64 bits, got {value}")
    return int(value)


def _seed(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"seed must be None or an int, got {type(value).__name__}: {value!r}")
    if not 0 <= value < 2**32:
        raise ValueError(f"seed must be from 0 to 2**32 - 1, got {value}")
    return int(value)


def _number(name: str, value: Any) -> float:
    try:  # accept NumPy arrays of one number, but not text that float() could parse
        return float("" if isinstance(value, (str, bytes)) else value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} must be a number, got {type(value).__name__}: {value!r}") from error


def _flag(value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, (int, np.integer)) and value in (0, 1)):
        return bool(value)
    raise TypeError(f"done must be a bool, got {type(value).__name__}: {value!r}")
