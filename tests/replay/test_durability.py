"""Files after a crash of the machine: no torn rows, and with sync every row whose push returned."""

import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal import ReplayBuffer
from tests.replay.power import Counting, Numbered, crash, dirty_kilobytes, other_boot, unsynced

BATCHES = st.lists(st.integers(1, 12), max_size=5)
GRAINS = st.sampled_from([8, 64, 512, 4096])
SIZES = st.sampled_from([1, 30, 48, 300, 1500])  # of a body: rows in one line, in one sector, over several


@settings(max_examples=300)
@given(
    st.sampled_from(["process", "sync"]),
    st.integers(1, 30),
    SIZES,
    st.lists(st.tuples(BATCHES, BATCHES, GRAINS, st.integers(0, 2**32)), min_size=1, max_size=3),
)
def test_power_loss_leaves_whole_rows_and_keeps_synced_ones(level, capacity, size, crashes):
    rows = Numbered(size)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "first.ring"
        buffer = ReplayBuffer(capacity, rows.fields, path=path, durability=level, seed=0)
        ever: set[int] = set()  # ids that must not come again
        least = most = 0  # rows that were ever pushed: known to be on disk, and in truth
        for waited, lost, grain, seed in crashes:
            images = [path.read_bytes()]
            acknowledged = [i for count in waited for i in rows.push(buffer, count)]
            most += len(acknowledged)
            if level == "sync":
                least += len(acknowledged)
                images = []  # all before is on disk
            images.append(path.read_bytes())
            unsynced(buffer)
            for count in lost:
                most += len(rows.push(buffer, count))
                images.append(path.read_bytes())
            tail = int(buffer._records.segment["tail"][0])
            buffer.close()

            path = crash(images, grain, seed, Path(name))
            buffer = ReplayBuffer.open(path, seed=0)
            assert buffer.durability == level
            there = rows.check(buffer)
            assert max(len(there), least) <= buffer.total_pushed <= most
            assert buffer.total_pushed <= int(buffer._records.segment["tail"][0]) <= tail
            if level == "sync":
                assert {i for i in acknowledged if i >= tail - capacity} <= set(there)
            ever.update(there, acknowledged if level == "sync" else ())
            again = rows.push(buffer, 1)[0]
            most += 1
            least += level == "sync"
            assert again > max(ever, default=-1)
        buffer.close()


def test_lost_row_is_not_mistaken_for_a_new_row_with_its_id(tmp_path):
    rows = Numbered(30)
    buffer = ReplayBuffer(4, rows.fields, path=tmp_path / "a.ring")
    before = (tmp_path / "a.ring").read_bytes()
    record = _place(buffer, "rows", 8)  # behind its word
    assert rows.push(buffer, 1) == [0]
    after = (tmp_path / "a.ring").read_bytes()
    buffer.close()
    # Of the first row all reached the disk but its word; of the second, which gets its id, only the word.
    (tmp_path / "b.ring").write_bytes(before[:record] + after[record:])
    buffer = ReplayBuffer.open(tmp_path / "b.ring")
    assert rows.check(buffer) == []
    before = (tmp_path / "b.ring").read_bytes()
    assert rows.push(buffer, 1) == [0]
    after = (tmp_path / "b.ring").read_bytes()
    (tmp_path / "c.ring").write_bytes(after[:record] + before[record:])
    buffer.close()
    with ReplayBuffer.open(tmp_path / "c.ring") as buffer:
        assert rows.check(buffer) == []
        assert rows.push(buffer, 1) == [1]


def test_row_with_a_changed_byte_is_dropped_and_its_id_is_not_reused(tmp_path):
    rows = Numbered(40)  # with its word, its number and its check it fills a line
    with ReplayBuffer(4, rows.fields, path=tmp_path / "a.ring") as buffer:
        assert buffer._records.stride == 64
        rows.push(buffer, 7)
        slot, stride = 6 % 4, 64
        begin = _place(buffer, "rows", slot * stride)
    whole = (tmp_path / "a.ring").read_bytes()
    for at in range(begin + 8, begin + stride):
        path = tmp_path / f"{at}.ring"
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with ReplayBuffer.open(path) as buffer:
            assert rows.check(buffer) == [3, 4, 5]
            assert buffer.total_pushed == 7 and buffer.extend(rows.batch(1)) == range(7, 8)
        path.unlink()


def test_rows_are_checked_once_after_a_reboot(tmp_path):
    rows = Numbered(48)
    path = tmp_path / "a.ring"
    buffer = ReplayBuffer(4, rows.fields, path=path)
    rows.push(buffer, 4)
    buffer._records.view("body")[2] ^= 1  # what no process and no crash of one can do
    with ReplayBuffer.open(path) as other:
        assert other.latest(4).ids.tolist() == [0, 1, 2, 3]
        other_boot(other)
    with ReplayBuffer.open(path) as other:
        assert rows.check(other) == [0, 1, 3]
    assert rows.check(buffer) == [0, 1, 3]
    buffer._records.view("body")[1] ^= 1
    with ReplayBuffer.open(path) as other:  # it was looked at in this boot
        assert other.latest(4).ids.tolist() == [0, 1, 3]
    buffer.close()


def _open_and_push(path, numbers, barrier):
    barrier.wait()
    rows = Numbered(1500)
    with ReplayBuffer.open(path) as buffer:
        for number in numbers:
            rows.next = number
            buffer.extend(rows.batch(1))
            for batch in (buffer.latest(8), buffer.sample(16)):
                assert (batch["body"] == rows.bodies(batch["number"])).all()


def test_several_processes_can_open_a_file_at_once_after_a_crash(tmp_path):
    rows = Numbered(1500)
    with ReplayBuffer(400, rows.fields, path=tmp_path / "a.ring") as buffer:
        images = []
        for _ in range(8):
            rows.push(buffer, 80)
            images.append((tmp_path / "a.ring").read_bytes())
    path = crash(images, 512, 0, tmp_path)
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(3)
    numbers = [range(10_000 * p, 10_000 * p + 60) for p in (1, 2, 3)]
    processes = [context.Process(target=_open_and_push, args=(path, n, barrier)) for n in numbers]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    with ReplayBuffer.open(path) as buffer:
        other_boot(buffer)
    with ReplayBuffer.open(path) as buffer:  # every row of theirs has its check
        batch = buffer.latest(400)
        assert (batch["body"] == rows.bodies(batch["number"])).all()
        assert {n for part in numbers for n in part} <= set(batch["number"].tolist())
        assert sorted(set(batch.ids.tolist())) == batch.ids.tolist()


def test_push_syncs_once_and_its_rows_are_on_disk(tmp_path):
    rows = Numbered(48)
    path = tmp_path / "a.ring"
    with ReplayBuffer(1000, rows.fields, path=path, durability="sync") as buffer:
        ring = Counting(buffer)
        for number in range(1, 4):
            buffer.push({"number": np.uint64(number), "body": np.zeros(48, np.uint8)})
            assert ring.syncs == number and dirty_kilobytes(path) == 0
        rows.push(buffer, 100)
        assert ring.syncs == 4 and dirty_kilobytes(path) == 0
        batch = rows.batch(4)
        buffer.extend({name: array[::2] for name, array in batch.items()})  # copied first: it has gaps
        assert ring.syncs == 5 and dirty_kilobytes(path) == 0
        buffer.sample(10), buffer.latest(10)
        assert ring.syncs == 5
    with ReplayBuffer(1000, rows.fields, path=tmp_path / "b.ring") as buffer:
        ring = Counting(buffer)
        rows.push(buffer, 100)
        assert ring.syncs == 0


def test_failed_sync_raises_and_the_rows_are_checked_again(tmp_path):
    rows = Numbered(48)
    path = tmp_path / "a.ring"
    with ReplayBuffer(10, rows.fields, path=path, durability="sync") as buffer:
        rows.push(buffer, 3)
        buffer._records.ring.renew(os.open("/dev/full", os.O_RDWR))  # which cannot be synced
        with pytest.raises(OSError, match="in the buffer but may not be on disk.*snapshot"):
            buffer.extend(rows.batch(2))
        assert buffer.latest(10)["number"].tolist() == [1, 2, 3, 4, 5]
        buffer._records.view("body")[1] ^= 1
    with ReplayBuffer.open(path) as buffer:
        assert buffer.latest(10).ids.tolist() == [0, 2, 3, 4]


def test_durability_that_needs_a_file_raises_without_one(tmp_path):
    fields = {"x": (np.float32, ())}
    with pytest.raises(ValueError, match="needs a file.*: set path="):
        ReplayBuffer(4, fields, durability="sync")
    with pytest.raises(ValueError, match="'process' or 'sync', got 'disk'"):
        ReplayBuffer(4, fields, path=tmp_path / "a.ring", durability="disk")
    assert list(tmp_path.iterdir()) == []
    with ReplayBuffer(4, fields) as buffer:
        assert buffer.durability == "process"


def _say_level(buffer, queue):
    queue.put((buffer.durability, buffer.push({"x": 1.0})))


def test_other_processes_use_the_same_durability(tmp_path):
    with ReplayBuffer(4, {"x": (np.float32, ())}, path=tmp_path / "a.ring", durability="sync") as buffer:
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        process = context.Process(target=_say_level, args=(buffer, queue))
        process.start()
        assert queue.get(timeout=60) == ("sync", 0)
        process.join(60)
        queue.close(), queue.join_thread()


@pytest.mark.parametrize("size", [30, 56, 100])  # 56: a record is longer in a file than in memory
def test_snapshot_has_checksums_for_any_source(tmp_path, size):
    rows = Numbered(size)
    with ReplayBuffer(20, rows.fields) as buffer:
        rows.push(buffer, 33)
        assert buffer.snapshot(tmp_path / "a.ring") == 20
    with ReplayBuffer.open(tmp_path / "a.ring") as buffer:
        assert buffer.durability == "process" and buffer.total_pushed == 33
        other_boot(buffer)
    with ReplayBuffer.open(tmp_path / "a.ring") as buffer:
        assert rows.check(buffer) == list(range(13, 33)) and buffer.total_pushed == 33
        assert buffer.snapshot(tmp_path / "b.ring") == 20
    with ReplayBuffer(20, rows.fields, path=tmp_path / "c.ring", durability="sync") as buffer:
        buffer.snapshot(tmp_path / "d.ring")
    with ReplayBuffer.open(crash([(tmp_path / "b.ring").read_bytes()], 512, 0, tmp_path)) as buffer:
        assert rows.check(buffer) == list(range(13, 33))
    with ReplayBuffer.open(tmp_path / "d.ring") as buffer:
        assert buffer.durability == "sync"


def test_draws_from_few_remaining_rows_are_uniform_and_fast(tmp_path):
    rows = Numbered(40)
    path = tmp_path / "a.ring"
    with ReplayBuffer(300_000, rows.fields, path=path) as buffer:
        for _ in range(60):
            buffer.extend(rows.batch(5000))
        lost = np.ones(300_000, bool)
        lost[[5, 77, 123_456, 299_999]] = False
        buffer._records.view("number")[lost] += 1  # as if their records had not reached the disk
        other_boot(buffer)
    with ReplayBuffer.open(path, seed=0) as buffer:
        begin = time.monotonic()
        ids = np.concatenate([buffer.sample(256).ids for _ in range(8)])
        assert time.monotonic() - begin < 10  # one by one it takes minutes
        found, counts = np.unique(ids, return_counts=True)
        assert found.tolist() == [5, 77, 123_456, 299_999]
        assert ((counts - 512) ** 2 / 512).sum() < 21  # chi-square, 3 degrees of freedom: 1 in 10,000
        with pytest.raises(ValueError, match="is complete"):
            buffer._records.view("number")[:] += 1
            other_boot(buffer)
            with ReplayBuffer.open(path) as again:
                again.sample(8)


def _place(buffer, field, offset):
    """Returns the offset of a byte of a field in the file."""
    segment = buffer._records.segment
    return segment[field].__array_interface__["data"][0] - segment._address + offset
