"""Slots: memory that a user holds is never leased again, even if making a slot is interrupted."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from shoal import _core


class Maker:
    """Makes the memory of slots: two arrays of observations, rewards and flags. Raises when asked to."""

    def __init__(self, rows: int = 3) -> None:
        self.rows, self.made = rows, 0
        self.error: BaseException | None = None

    def __call__(self):
        arrays = (
            np.zeros((self.rows, 2)),
            np.zeros(self.rows, np.int32),
            np.zeros(self.rows),
            np.zeros(self.rows, np.bool_),
            np.zeros(self.rows, np.bool_),
        )
        self.made += 1
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return self.made, arrays


def make_slots(maker: Maker, max_slots: int = 4, is_leased: bool = True, shape=None) -> _core.Slots:
    return _core.Slots(maker, 2, {"a": 0, "b": (1,)} if shape is None else shape, max_slots, is_leased)


def test_results_are_nested_like_the_shape():
    slots = make_slots(Maker())
    info = {"x": 1}
    observation, reward, terminated, truncated, same = slots.results(slots.take(), info)
    assert observation["a"].shape == (3, 2) and observation["b"][0].dtype == np.int32
    assert reward.dtype == np.float64 and terminated.dtype == truncated.dtype == np.bool_ and same is info


def test_a_slot_is_free_when_no_array_view_or_memoryview_of_it_is_left():
    slots = make_slots(Maker())
    first = slots.take()
    held = [slots.results(first, {})]
    assert slots.take() != first
    held.append(held.pop()[0]["a"][1:])  # a view of one array of one field
    assert slots.take() != first
    held.append(memoryview(held.pop()))
    assert slots.take() != first
    held.clear()
    assert slots.take() == first


def test_slot_whose_creation_was_interrupted_is_never_leased():
    maker = Maker()
    slots = make_slots(maker)
    held = [slots.results(slots.take(), {})]
    maker.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        slots.take()
    seen = {id(held[0][1])}
    for number in range(2, 5):
        slot = slots.take()
        assert slots.rows(slot) == number + 2, "the memory of the slot, not that of the interrupted one"
        held.append(slots.results(slot, {}))
        assert id(held[-1][1]) not in seen, "lent twice"
        seen.add(id(held[-1][1]))
    assert slots.take() == 0, "all four are held"


def test_results_beyond_max_slots_go_to_slot_0():
    slots = make_slots(Maker(), max_slots=2)
    held = [slots.results(slots.take(), {}) for _ in range(2)]
    assert slots.take() == 0 and slots.count == 2
    del held[0]
    assert slots.take() == 1
    assert make_slots(Maker(), is_leased=False).take() == 0


def test_a_wrong_number_of_arrays_is_refused():
    class Short(Maker):
        def __call__(self):
            number, arrays = super().__call__()
            return number, arrays[:3]

    with pytest.raises(ValueError, match="one array per field"):
        make_slots(Short())
    with pytest.raises(IndexError):
        make_slots(Maker()).results(7, {})


def test_slots_keep_no_memory_when_they_are_gone():
    maker = Maker()
    slots = make_slots(maker)
    array = slots.results(slots.take(), {})[1]
    alive = weakref.ref(array)
    del array, slots
    gc.collect()
    assert alive() is None
