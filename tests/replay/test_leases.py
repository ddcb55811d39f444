"""Batches without `out=`: the buffer reuses its arrays, but never while they are in use."""

import gc
import multiprocessing
import threading
import tracemalloc
import weakref

import numpy as np
import pytest

from shoal.errors import ClosedError
from shoal.replay import PrioritizedBatch, ReplayBuffer
from shoal.replay.sampling import LEASES
from tests.replay.samplers import SAMPLERS, check, make_plain_buffer, make_walk_buffer

EVERY = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)

HOLDERS = {
    "the batch": lambda batch: batch,
    "one array": lambda batch: next(array for array in batch.values() if array.size),
    "a view": lambda batch: next(array for array in batch.values() if array.size)[2:],
    "a view of a view": lambda batch: next(array for array in batch.values() if array.size)[1:].T[..., ::2],
    "a memoryview": lambda batch: memoryview(next(array for array in batch.values() if array.size)),
    "the ids": lambda batch: batch.ids,
    "a view of the ids": lambda batch: batch.ids[3:],
}


def addresses(batch):
    arrays = [*batch.values(), batch.ids]
    if isinstance(batch, PrioritizedBatch):
        arrays.append(batch.weights)
    return {array.__array_interface__["data"][0] for array in arrays if array.size}


def content(held):
    return (
        {name: np.array(array) for name, array in held.items()} if isinstance(held, dict) else np.array(held)
    )


def same(one, other):
    if isinstance(one, dict):
        return all(np.array_equal(one[name], other[name]) for name in one)
    return np.array_equal(one, other)


@EVERY
@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_held_arrays_are_not_overwritten(make, hold):
    buffer, sample = make()
    held = hold(sample(20))
    before = content(held)
    for _ in range(2 * LEASES):
        sample(20)
    many = [sample(20) for _ in range(2 * LEASES)]
    assert same(content(held), before)
    for batch in many:
        check(batch, buffer)
    buffer.close()


@EVERY
def test_free_arrays_are_reused(make):
    buffer, sample = make()
    first = addresses(sample(20))
    assert all(addresses(sample(20)) == first for _ in range(10))
    kept, used = sample(20), set()
    for _ in range(10):
        kept = sample(20)
        used |= addresses(kept)
        check(kept, buffer)
    assert len(used) == 2 * len(first), "the batch that is held, and the next"
    buffer.close()


def test_holding_only_the_weights_keeps_the_batch():
    buffer, sample = SAMPLERS["prioritized rows"]()
    weights = sample(20).weights
    before = weights.copy()
    for _ in range(10):
        sample(20)
    assert np.array_equal(weights, before)
    buffer.close()


def test_a_tensor_of_an_array_keeps_the_lease():
    torch = pytest.importorskip("torch", reason="needs torch: make torch")
    with make_plain_buffer() as buffer:
        tensor = torch.from_numpy(buffer.sample(20)["image"])[3:]
        before = tensor.clone()
        for _ in range(10):
            buffer.sample(20)
        assert torch.equal(tensor, before)


def test_sampling_allocates_nothing_but_the_batch():
    buffer = ReplayBuffer(100, {"image": (np.uint8, (64, 64))}, seed=0)
    buffer.extend({"image": np.zeros((100, 64, 64), np.uint8)})
    batch = buffer.sample(64)
    batch = buffer.sample(64)  # the second set
    tracemalloc.start()
    for _ in range(10):
        batch = buffer.sample(64)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4096 and batch["image"].shape == (64, 64, 64)
    buffer.close()


def test_number_of_sets_is_limited_and_later_batches_are_correct():
    with make_plain_buffer() as buffer:
        held = [buffer.sample(n) for n in range(1, 6) for _ in range(LEASES)]
        assert buffer._leases.count == LEASES
        assert len({address for batch in held for address in addresses(batch)}) == 4 * len(
            held
        )  # 3 fields, ids
        for batch in held:
            check(batch, buffer)
        again = addresses(buffer.sample(7))  # though all that were held are held for ever
        assert addresses(buffer.sample(7)) == again
    assert buffer._leases.count == 0
    check(held[0], make_plain_buffer())


def test_changing_the_stack_in_every_call_does_not_fill_the_memory():
    buffer = make_walk_buffer()
    for length in range(1, 60):
        check(buffer.sample_sequences(5, length), buffer)
    assert len(buffer._samplings._cached) <= 16 and buffer._leases.count <= LEASES
    buffer.close()


def test_arrays_with_a_changed_shape_are_not_reused():
    with make_plain_buffer() as buffer:
        for change in (
            lambda array: array.resize((4, 3, 5), refcheck=False),
            lambda array: array.setflags(write=False),
            lambda array: setattr(array, "shape", (20, 5, 3)),
            lambda array: setattr(array, "dtype", np.int8),
        ):
            change(buffer.sample(20)["image"])
            for _ in range(3):
                batch = buffer.sample(20)
                assert batch["image"].shape == (20, 3, 5) and batch["image"].flags.writeable
                check(batch, buffer)


def test_a_batch_can_be_changed_and_the_next_has_every_field():
    with make_plain_buffer() as buffer:
        batch = buffer.sample(20)
        batch.pop("x")
        batch["image"] = batch["image"] / 255
        batch["more"] = 1
        del batch
        check(buffer.sample(20), buffer)
        assert list(buffer.sample(20)) == list(buffer.fields)


def test_a_leased_batch_can_be_given_as_out():
    with make_plain_buffer() as buffer:
        batch = buffer.sample(20)
        assert buffer.sample(20, batch) is batch
        assert addresses(buffer.sample(20)).isdisjoint(addresses(batch))
        check(batch, buffer)
        with make_plain_buffer() as other:
            assert other.sample(20, batch) is batch
            check(batch, other)
        assert addresses(buffer.sample(20)).isdisjoint(addresses(batch))


@pytest.mark.parametrize("name", ["rows", "prioritized rows", "stacks", "sequences"])
def test_threads_never_get_the_same_arrays(name):
    buffer, sample = SAMPLERS[name]()
    n = 4000  # long enough that the GIL is released
    errors = []

    def work():
        try:
            for _ in range(25):
                batch = sample(n)
                before = content(batch)
                sample(n)
                assert same(content(batch), before)
                check(batch, buffer)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    buffer.close()


def test_sample_called_from_a_callback_of_sample_gets_other_arrays():
    """Freeing a dropped array can run a callback in the middle of a call."""
    with make_plain_buffer() as buffer:
        inner = []
        held = [buffer.sample(20) for _ in range(LEASES)]
        references = [weakref.ref(batch["x"], lambda _: inner.append(buffer.sample(20))) for batch in held]
        batches = []
        for _ in range(2 * LEASES):
            if held:
                held.pop(0)
            batches.append(buffer.sample(20))
        batches += inner
        assert len({address for batch in batches for address in addresses(batch)}) == 4 * len(batches)
        for batch in batches:
            check(batch, buffer)
        del references


def sample_in_child(buffer, held, before, queue):
    buffer.seed(5)
    batches = [buffer.sample(20) for _ in range(40)]
    queue.put((same(content(held), before), len(batches), [batch.ids.tolist() for batch in batches[:2]]))


def test_forked_child_has_its_own_batches():
    context = multiprocessing.get_context("fork")
    with make_plain_buffer() as buffer:
        held = buffer.sample(20)
        before = content(held)
        queue = context.Queue()
        child = context.Process(target=sample_in_child, args=(buffer, held, before, queue))
        child.start()
        mine = [buffer.sample(20) for _ in range(40)]
        assert queue.get(timeout=60)[:2] == (True, 40)
        child.join()
        assert same(content(held), before)
        for batch in mine:
            check(batch, buffer)


def test_closing_while_another_thread_samples_raises_closed_error_there():
    for _ in range(5):
        buffer = make_plain_buffer()
        kept, raised, begun = [], [], threading.Event()

        def work(buffer=buffer, kept=kept, raised=raised, begun=begun):
            try:
                while True:
                    kept[:] = [buffer.sample(5000)]
                    begun.set()
            except ClosedError as error:
                raised.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        assert begun.wait(60)
        buffer.close()
        thread.join(60)
        assert raised and not thread.is_alive()
        check(kept[0], None)


def test_a_buffer_that_is_dropped_is_freed_at_once():
    gc.disable()
    try:
        for make in (make_plain_buffer, make_walk_buffer):
            buffer = make()
            buffer.sample(4)
            gone = weakref.ref(buffer)
            del buffer
            assert gone() is None
    finally:
        gc.enable()


class Sampler:
    """Samples when it is garbage-collected, which can happen at any allocation."""

    def __init__(self, buffer, batches):
        self.buffer, self.batches, self.itself = buffer, batches, self

    def __del__(self):
        self.batches.append(self.buffer.sample(20))


def test_sample_called_from_a_finalizer_during_sample_gets_other_arrays():
    before = gc.get_threshold()
    with make_plain_buffer() as buffer:
        buffer.sample(20)
        try:
            for _ in range(20):
                inner = []
                gc.disable()
                Sampler(buffer, inner)
                gc.set_threshold(1)
                gc.enable()
                batch = buffer.sample(20)
                gc.set_threshold(*before)
                gc.collect()
                batches = [batch, *inner]
                assert len(inner) == 1
                assert len({address for one in batches for address in addresses(one)}) == 4 * 2
                for one in batches:
                    check(one, buffer)
        finally:
            gc.set_threshold(*before)
            gc.enable()
