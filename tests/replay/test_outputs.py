"""`out=`: every kind of sampling fills all of the caller's arrays and nothing else."""

import tracemalloc

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from shoal.errors import SpaceError, SpaceKeyError
from shoal.replay import Batch, ReplayBuffer, TrajectoryBuffer
from tests.replay.samplers import SAMPLERS, check, make_walk_buffer

EVERY = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)


def arrays_like(batch):
    """Returns arrays for such a batch, filled with values that must be overwritten."""
    return {name: np.full_like(array, 77) for name, array in batch.items()}


@EVERY
def test_out_is_filled_with_the_same_rows_as_without_out(make):
    buffer, sample = make()
    out = arrays_like(sample(40))
    for _ in range(3):
        batch = sample(40, out=out)
        assert isinstance(batch, Batch) and list(batch) == list(out)
        assert all(batch[name] is array for name, array in out.items())
        check(batch, buffer)
    buffer.close()
    (one, first), (other, second) = make(), make()
    given, new = first(40, out=out), second(40)
    assert given.ids.tolist() == new.ids.tolist()
    for name, array in new.items():
        assert np.array_equal(out[name], array), name
    one.close(), other.close()


@EVERY
def test_misaligned_arrays_are_filled_as_well(make):
    buffer, sample = make()
    whole = sample(40)
    out = {}
    for name, array in whole.items():
        memory = np.empty(array.nbytes + 1, np.uint8)
        out[name] = memory[1:].view(array.dtype).reshape(array.shape)
    check(sample(40, out=out), buffer)
    buffer.close()


@EVERY
def test_error_for_out_that_does_not_fit_names_the_expected_array(make):
    buffer, sample = make()
    out = arrays_like(sample(8))
    name = next(name for name, array in out.items() if array.ndim > 1)
    fits = out[name]
    frozen = fits.copy()
    frozen.flags.writeable = False
    for wrong in (fits.astype(np.complex64), fits[:7], fits[:, ::-1], np.asfortranarray(fits), frozen, [1]):
        with pytest.raises(SpaceError, match=f"out\\['{name}'\\] must be a writable C-contiguous array"):
            sample(8, out=out | {name: wrong})
    with pytest.raises(SpaceKeyError, match="out must have the keys"):
        sample(8, out={key: array for key, array in out.items() if key != name})
    with pytest.raises(SpaceKeyError, match="out must have the keys"):
        sample(8, out=out | {"more": fits})
    with pytest.raises(SpaceError, match="out"):
        sample(9, out=out)
    with pytest.raises(TypeError, match="out must be a dict"):
        sample(8, out=[fits])
    check(sample(8, out=out), buffer)
    buffer.close()


def test_out_with_renamed_arrays_is_checked_again():
    fields = {"a": (np.int64, ()), "b": (np.int64, ())}
    with ReplayBuffer(10, fields, seed=0) as buffer:
        buffer.extend({"a": np.arange(10), "b": -np.arange(10)})
        one, other = np.zeros(5, np.int64), np.zeros(5, np.int64)
        buffer.sample(5, {"a": one, "b": other})
        batch = buffer.sample(5, {"b": one, "a": other})
        assert batch["b"] is one and (one <= 0).all() and (other >= 0).all()


def test_out_can_be_used_with_several_samplers_of_a_buffer():
    buffer = make_walk_buffer()
    steps = arrays_like(buffer.sample_n_step(8, 3, 0.5))
    with pytest.raises(SpaceKeyError, match="discount"):
        buffer.sample(8, steps)
    plain = {name: array for name, array in steps.items() if name != "discount"}
    buffer.sample(8, plain)
    with pytest.raises(SpaceError, match="out\\['obs/.*\\[8, 4"):  # though the arrays are known
        buffer.sample(8, plain, stack=4)
    for _ in range(2):
        check(buffer.sample(8, plain), buffer)
        check(buffer.sample_n_step(8, 3, 0.5, steps), buffer)
    buffer.close()


@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("name", ["sample", "sample_n_step", "sample_sequences"])
def test_sample_with_out_allocates_nothing_large(name, stack):
    space = Box(0, 255, (64, 64), np.uint8)
    buffer = TrajectoryBuffer(60, space, Discrete(2), 1, AutoresetMode.NEXT_STEP, seed=0)
    seen, none = np.zeros((1, 64, 64), np.uint8), np.zeros(1, np.bool_)
    buffer.begin(seen)
    for _ in range(50):  # one episode: nothing is drawn twice, but for the row it began with
        buffer.add(np.zeros(1, np.int64), seen, np.zeros(1), none, none)
    arguments = {"sample": (), "sample_n_step": (3, 0.9), "sample_sequences": (4,)}[name]
    options = {} if name == "sample_sequences" else {"stack": stack}
    sample = getattr(buffer, name)
    out = arrays_like(sample(64, *arguments, **options))
    sample(64, *arguments, out, **options)
    tracemalloc.start()
    sample(64, *arguments, out, **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 4096, "less than one array of observations"
    buffer.close()


@EVERY
def test_ids_that_do_not_fit_are_replaced(make):
    buffer, sample = make()
    frozen = np.empty(8, np.uint64)
    frozen.flags.writeable = False
    given = sample(8)
    for ids in (None, [0] * 8, np.empty(8), np.empty(8, ">u8"), np.empty((8, 1), np.uint64), frozen):
        given.ids = ids
        batch = sample(8, out=given)
        assert batch is not given and batch.ids.dtype == np.uint64 and batch.ids.shape == (8,)
        check(batch, buffer)
    nameless = type(given)(given)
    check(sample(8, out=nameless), buffer)
    with pytest.raises(SpaceError, match="out"):
        sample(2**64, out=sample(8))
    buffer.close()
