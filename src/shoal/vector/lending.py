"""Lending: which memory the next results go into, so that what a user holds is never overwritten."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from shoal.spaces import Bounds
from shoal.vector.exchange import Rows, Slot
from shoal.vector.slots import Lent, copied
from shoal.vector.workers import Workers

__all__ = ["Lender"]


class Lender:
    """The slots of one vector environment in worker processes.

    The first slot is never lent: live results go there, those that must be copied, and asynchronous ones.
    """

    def __init__(
        self,
        workers: Workers,
        lent: Lent,
        space: Space[Any] | None,
        num_envs: int,
        rows: int,
        bounds: Bounds,
        finals: bool,
        buffers: str,
        max_slots: int,
    ) -> None:
        self._workers, self._lent = workers, lent
        self._space, self._bounds, self._finals = space, bounds, finals
        self._num_envs, self._rows = num_envs, rows
        self.buffers, self._max_slots = buffers, max_slots
        self._numbers = 0
        self.copies = 0
        self._slots: list[Slot] = []
        self._batches: list[Slot] = []
        self.first = self._add()

    @property
    def slots(self) -> int:
        return len(self._slots) - 1 + len(self._batches)

    def take(self) -> Slot:
        """A slot nobody holds."""
        if self.buffers != "leased":
            return self.first
        for slot in self._slots[1:]:
            if slot.free:
                return slot
        return self.first if len(self._slots) > self._max_slots else self._add()

    def lent(self, slot: Slot, results: Any) -> Any:
        """The results as the user gets them."""
        if slot is not self.first or self.buffers == "live":
            return results
        self.copies += self.buffers == "leased"
        return copied(results)

    def take_batch(self, size: int) -> Slot:
        """A slot for `size` gathered results, which the workers do not know."""
        for slot in self._batches:
            if slot.free:
                return slot
        slot = Slot(-1, self._space, size, size, self._bounds, finals=False)
        self._lent.add(slot.segment)
        slot.settle()
        if len(self._batches) < self._max_slots:
            self._batches.append(slot)
        else:
            self.copies += 1
        return slot

    def block(self, length: int, actions: Space[Any]) -> Rows:
        """Memory for a rollout of `length` steps."""
        # A vectorised plug-in writes whole lanes: the last row of the block needs room behind it.
        rows = length * self._num_envs + (self._rows - self._num_envs)
        block = Rows(self._numbers, self._space, rows, self._num_envs, self._bounds, actions=actions)
        self._publish(block)
        block.segment.close()
        return block

    def _add(self) -> Slot:
        slot = Slot(self._numbers, self._space, self._num_envs, self._rows, self._bounds, self._finals)
        self._publish(slot)
        self._slots.append(slot)
        slot.settle()
        return slot

    def _publish(self, rows: Rows) -> None:
        self._numbers += 1
        self._lent.add(rows.segment)
        self._workers.add_block(rows.segment, rows.number, rows.rows, rows.ahead)

    def holds_live(self, array: NDArray[np.generic]) -> bool:
        return self.buffers == "live" and self.first.holds(array)
