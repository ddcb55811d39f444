"""Forks, threads, unusual values and damaged files."""

import multiprocessing
import os
import resource
import threading
import time

import numpy as np
import pytest

from shoal import ReplayBuffer
from shoal.errors import ClosedError, CorruptFileError, ShoalError, SpaceError, VersionError
from shoal.replay import PrioritizedSampler


def put_ids(buffer, sampler, queue):
    drawn = buffer.sample(32).ids.tolist()
    queue.put((drawn, sampler.sample(32).ids.tolist() if sampler else None))


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("seed", [None, 5])
def test_each_process_draws_its_own_random_numbers(context, seed):
    chosen = multiprocessing.get_context(context)
    with ReplayBuffer(1000, {"x": (np.float32, ())}, seed=seed) as buffer:
        buffer.extend({"x": np.arange(1000, dtype=np.float32)})
        sampler = PrioritizedSampler(buffer, seed=seed) if context == "fork" else None
        queue = chosen.Queue()
        children = [chosen.Process(target=put_ids, args=(buffer, sampler, queue)) for _ in range(2)]
        for child in children:
            child.start()
        found = [queue.get(timeout=60) for _ in children]
        for child in children:
            child.join()
        found.append((buffer.sample(32).ids.tolist(), sampler.sample(32).ids.tolist() if sampler else None))
        for drawn in zip(*found, strict=True):
            if drawn[0] is not None:
                assert len({tuple(ids) for ids in drawn}) == 3


@pytest.mark.parametrize(
    ("dtype", "value", "stored"),
    [
        (np.int32, 2**31 - 1, 2**31 - 1),
        (np.int32, 2**31, None),
        (np.int64, np.uint64(2**63 + 5), None),
        (np.uint8, 255, 255),
        (np.uint8, np.uint16(300), None),
        (np.uint8, -1, None),
        (np.uint8, 1.0, None),
        (np.bool_, 1, True),
        (np.bool_, 2, None),
        (np.float32, 1e300, None),
        (np.float32, np.float64(-1e39), None),
        (np.float32, float("inf"), np.inf),
        (np.float32, 3, 3.0),
        (np.float64, 2**70, None),
        (np.longlong, 7, 7),
    ],
)
def test_value_that_fits_is_stored_unchanged_and_others_raise(dtype, value, stored):
    with ReplayBuffer(8, {"x": (dtype, ())}) as one, ReplayBuffer(8, {"x": (dtype, ())}) as many:
        for store in (lambda: one.push({"x": value}), lambda: many.extend({"x": [value, value]})):
            if stored is None:
                with pytest.raises(SpaceError, match="'x'.*nothing stored"):
                    store()
            else:
                store()
        assert one.latest(8)["x"].tolist() == ([] if stored is None else [stored])
        assert many.latest(8)["x"].tolist() == ([] if stored is None else [stored] * 2)


def test_error_for_a_row_without_its_leading_axis_suggests_push():
    with ReplayBuffer(8, {"x": (np.float32, (3,))}) as buffer:
        with pytest.raises(
            SpaceError, match=r"\[n, 3\], found \[3\]; nothing stored; for one row use push\(row\)"
        ):
            buffer.extend({"x": np.zeros(3, np.float32)})
        assert buffer.push({"x": np.zeros(3, np.float32)}) == 0


@pytest.mark.parametrize("nothing", [None, 5, "x", [1.0]])
def test_pushing_something_else_than_a_row_names_the_expected_keys(nothing):
    with ReplayBuffer(8, {"x": (np.float32, (3,)), "y": (np.int64, ())}) as buffer:
        for store in (buffer.push, buffer.extend):
            with pytest.raises(TypeError, match=r"expected a dict with the keys \['x', 'y'\]"):
                store(nothing)
        assert len(buffer) == 0


def test_priorities_out_of_the_range_of_floats_raise():
    with ReplayBuffer(8, {"x": (np.float32, ())}) as buffer:
        ids = np.asarray(buffer.extend({"x": np.zeros(3, np.float32)}))
        sampler = PrioritizedSampler(buffer, alpha=1, seed=0)
        sampler.sample(4)
        for priorities in ([1e39, 1, 1], [1e-46, 1, 1], [1e26, 1, 1]):
            with pytest.raises(ValueError, match=r"priority \*\* alpha must be from 1e-25 to 1e\+25"):
                sampler.update_priorities(ids, priorities)
        assert sampler.update_priorities(ids, [9e24, 2e-25, 9e24]) == 3
        assert set(sampler.sample(100).ids.tolist()) == {0, 2}
        with pytest.raises(TypeError, match="beta must be a number"):
            sampler.sample(4, {"x": np.zeros(4, np.float32)})


def leave_open(buffer):
    """Leaves the first slot as a writer does that was killed before its commit."""
    segment = buffer._records.segment
    word = segment["rows"][0, :8].view(np.uint64)
    word[0] = word[0] & ~np.uint64(3) | np.uint64(1)
    lap, owner = int(word[0]) >> 14, int(word[0]) >> 2 & 4095
    segment["writers"][owner, 1:3] = (lap - 1) * buffer.capacity, 1


def within(seconds, call):
    """Runs a call in a thread, which must end within this time."""
    ended = []
    thread = threading.Thread(target=lambda: ended.append(call()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert ended, "it hangs"
    return ended[0]


def test_sampling_ends_if_every_row_was_left_unfinished():
    with ReplayBuffer(1000, {"x": (np.float32, ())}, seed=0) as buffer:
        sampler = PrioritizedSampler(buffer, seed=0)
        buffer.push({"x": 1.0})
        sampler.sample(2)
        leave_open(buffer)
        for draw in (buffer.sample, sampler.sample):
            with pytest.raises(ValueError, match="is complete"):
                draw(4)
        buffer.push({"x": 2.0})
        assert buffer.sample(4)["x"].tolist() == [2.0] * 4
        assert sampler.sample(4)["x"].tolist() == [2.0] * 4


def test_update_for_a_row_being_overwritten_does_not_change_the_new_row():
    with ReplayBuffer(100, {"x": (np.float32, ())}, seed=0) as buffer:
        sampler = PrioritizedSampler(buffer, alpha=1, seed=0)
        ids = np.asarray(buffer.extend({"x": np.zeros(100, np.float32)}))
        sampler.sample(4)
        buffer._records.segment["tail"][0] += (
            50  # another writer has taken fifty tickets, and not yet the slots
        )
        sampler.sample(4)
        assert sampler.update_priorities(ids, np.full(100, 1e-3)) == 50


def test_threads_that_fill_one_batch_get_mixed_rows_at_worst():
    with ReplayBuffer(50, {"x": (np.uint8, (20_000,))}, seed=0) as buffer:
        for _ in range(30):
            buffer.extend({"x": np.zeros((50, 20_000), np.uint8)})
        batch = buffer.sample(100)
        until = time.monotonic() + 1.5

        def draw():
            while time.monotonic() < until:
                buffer.sample(100, batch)
            return True

        threads = [threading.Thread(target=draw) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (batch.ids < 1500).all()


def test_forked_child_without_descriptors_is_closed_and_does_not_use_its_parents_number():
    with (
        ReplayBuffer(8, {"x": (np.float32, ())}) as buffer,
        ReplayBuffer(8, {"x": (np.float32, ())}) as other,
    ):
        buffer.push({"x": 1.0})
        other.push({"x": 1.0})
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(map(int, os.listdir("/proc/self/fd")))
        taken = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        try:
            while True:
                taken.append(os.dup(0))
        except OSError:
            pass
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                closed = 0
                for one in (buffer, other):
                    try:
                        one.push({"x": 2.0})
                    except ClosedError:
                        closed += 1
                owners = {
                    int(r[:8].view(np.uint64)[0]) >> 2 & 4095 for r in buffer._records.segment["rows"][1:2]
                }
                status = 0 if closed or owners != {0} else 2
            finally:
                os._exit(status)
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert os.waitpid(pid, 0)[1] == 0
        assert buffer.push({"x": 3.0}) is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"capacity": 8', '"capacity": 0'),
        ("<f8", "|O8"),
        ('"protocol": 1, "c', '"protocol":1.5,"c'),
        ('"protocol": 1, "c', '"protocol":"1","c'),
        ('"stride": 64', '"stride": 00'),
        ('"capacity": 8, "stride": 64, ', '"capacity":1e999,"stride":64,'),
        ("[3], 8]", "[3], 9]"),
    ],
)
def test_file_whose_schema_does_not_fit_its_rows_raises(tmp_path, old, new):
    path = tmp_path / "a.ring"
    with ReplayBuffer(8, {"x": (np.float64, (3,))}, path=path) as buffer:
        buffer.push({"x": np.zeros(3)})
    data = path.read_bytes()
    assert old.encode() in data and len(old) == len(new)
    path.write_bytes(data.replace(old.encode(), new.encode()))
    with pytest.raises(CorruptFileError, match="does not hold a replay buffer"):
        ReplayBuffer.open(path)


def test_ring_of_another_protocol_raises_version_error(tmp_path):
    path = tmp_path / "a.ring"
    ReplayBuffer(8, {"x": (np.float64, ())}, path=path).close()
    data = path.read_bytes()
    assert data.count(b'"protocol": 1') == 1
    path.write_bytes(data.replace(b'"protocol": 1', b'"protocol": 7'))
    with pytest.raises(VersionError, match=r"protocol 7, this version of Shoal speaks 1; save\(\)") as caught:
        ReplayBuffer.open(path)
    assert (caught.value.found, caught.value.expected) == (7, 1)


def test_restored_copy_of_a_file_is_checked(tmp_path):
    path, copy = tmp_path / "a.ring", tmp_path / "copy"
    with ReplayBuffer(8, {"x": (np.float64, (3,))}, path=path) as buffer:
        buffer.extend({"x": np.ones((4, 3))})
        buffer._records.view("x")[2] = 7  # as a copy made while it was written
        copy.write_bytes(path.read_bytes())
    with path.open("r+b") as file:
        file.write(copy.read_bytes())
    with ReplayBuffer.open(path) as buffer:
        assert buffer.latest(8).ids.tolist() == [0, 1, 3]


def hold_everything(buffer, ready):
    leave_open(buffer)
    ready.set()
    time.sleep(60)


def test_push_raises_if_living_writers_hold_every_slot():
    with ReplayBuffer(1, {"x": (np.float32, ())}) as buffer:
        buffer.push({"x": 1.0})
        context = multiprocessing.get_context("fork")
        ready = context.Event()
        child = context.Process(target=hold_everything_as_writer, args=(buffer, ready))
        child.start()
        assert ready.wait(30)
        with pytest.raises(ShoalError, match="0 of 1 rows stored: living writers hold every slot"):
            buffer.push({"x": 2.0})
        child.kill()
        child.join()
        assert buffer.push({"x": 3.0}) > 0 and buffer.latest(1)["x"].tolist() == [3.0]


def hold_everything_as_writer(buffer, ready):
    buffer.push({"x": 5.0})  # has a number now
    hold_everything(buffer, ready)


def test_a_push_waits_for_a_slot_that_a_living_writer_holds_for_a_while():
    with ReplayBuffer(1, {"x": (np.float32, ())}) as buffer:
        context = multiprocessing.get_context("fork")
        ready = context.Event()
        child = context.Process(target=hold_everything_for_a_while, args=(buffer, ready))
        child.start()
        assert ready.wait(30)
        begin = time.monotonic()
        buffer.push({"x": 2.0})  # as if that one had lost its core: a system's time slice, not a fault
        assert time.monotonic() - begin > 0.1 and buffer.latest(1)["x"].tolist() == [2.0]
        child.join()


def hold_everything_for_a_while(buffer, ready):
    buffer.push({"x": 5.0})
    leave_open(buffer)
    ready.set()
    time.sleep(0.5)
    os._exit(0)
