"""ReplayBuffer: every process reads whole rows, until newer rows overwrite them."""

import multiprocessing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal import ReplayBuffer
from shoal.errors import ClosedError, CorruptFileError, SpaceError
from shoal.replay import PrioritizedSampler

FIELDS = {
    "obs": (np.float32, (3,)),
    "action": (np.int64, ()),
    "reward": (np.float32, ()),
    "done": (np.bool_, ()),
    "image": (np.uint8, (5, 7)),
}


def rows(numbers):
    numbers = np.asarray(numbers)
    return {
        "obs": np.stack([numbers, numbers + 0.5, -numbers], axis=1).astype(np.float32),
        "action": numbers.astype(np.int64),
        "reward": (numbers / 4).astype(np.float32),
        "done": numbers % 3 == 0,
        "image": np.repeat(numbers % 251, 35).reshape(-1, 5, 7).astype(np.uint8),
    }


def check(batch):
    """Checks that every row of the batch is one of `rows`, whole."""
    for name, expected in rows(batch["action"]).items():
        assert batch[name].dtype == expected.dtype
        assert np.array_equal(batch[name], expected), name


@given(
    st.integers(1, 40),
    st.lists(st.integers(0, 25), max_size=8),
)
def test_buffer_holds_the_newest_rows_for_any_batch_sizes(capacity, sizes):
    with ReplayBuffer(capacity, FIELDS, seed=0) as buffer:
        total, ids = 0, []
        for size in sizes:
            ids += list(buffer.extend(rows(range(total, total + size))))
            total += size
        assert ids == list(range(total))
        assert buffer.total_pushed == total and len(buffer) == min(total, capacity)
        kept = list(range(max(0, total - capacity), total))
        latest = buffer.latest(capacity)
        check(latest)
        assert latest["action"].tolist() == kept == latest.ids.tolist()
        assert [int(row["action"]) for row in buffer] == kept
        if kept:
            batch = buffer.sample(50)
            check(batch)
            assert set(batch["action"]) <= set(kept)
            assert batch.ids.tolist() == batch["action"].tolist()


def test_push_takes_python_numbers():
    with ReplayBuffer(4, FIELDS) as buffer:
        image = np.zeros((5, 7), np.uint8)
        first = buffer.push({"obs": [1, 2, 3], "action": 7, "reward": 1, "done": True, "image": image})
        second = buffer.push(
            {"obs": np.ones(3, np.float32), "action": 8, "reward": 0.5, "done": False, "image": image}
        )
        assert (first, second) == (0, 1)
        latest = buffer.latest(2)
        assert latest["obs"].tolist() == [[1, 2, 3], [1, 1, 1]]
        assert latest["action"].tolist() == [7, 8] and latest["reward"].tolist() == [1, 0.5]
        assert latest["done"].tolist() == [True, False]


def test_the_same_seed_and_content_give_the_same_draws():
    drawn = []
    for _ in range(2):
        with ReplayBuffer(100, FIELDS, seed=5) as buffer:
            buffer.extend(rows(range(60)))
            drawn.append([buffer.sample(16).ids.tolist() for _ in range(5)])
    assert drawn[0] == drawn[1]
    with ReplayBuffer(100, FIELDS) as one, ReplayBuffer(100, FIELDS) as other:
        one.extend(rows(range(60))), other.extend(rows(range(60)))
        assert one.sample(32).ids.tolist() != other.sample(32).ids.tolist()


def test_draws_are_uniform():
    with ReplayBuffer(50, FIELDS, seed=1) as buffer:
        buffer.extend(rows(range(80)))
        counts = np.bincount(np.concatenate([buffer.sample(1000)["action"] for _ in range(100)]) - 30)
        expected = 100_000 / 50
        assert len(counts) == 50
        assert ((counts - expected) ** 2 / expected).sum() < 100  # 49 degrees of freedom: 1e-5


def test_out_that_is_an_earlier_batch_is_filled_with_its_ids():
    with ReplayBuffer(100, FIELDS, seed=0) as buffer, ReplayBuffer(100, FIELDS, seed=0) as other:
        for one in (buffer, other):
            one.extend(rows(np.arange(60)))
        batch = buffer.sample(8)
        first, memory = batch.ids.copy(), {name: array.ctypes.data for name, array in batch.items()}
        assert first.tolist() == other.sample(8).ids.tolist()
        assert buffer.sample(8, batch) is batch
        assert batch.ids.tolist() == other.sample(8).ids.tolist() != first.tolist()
        assert {name: array.ctypes.data for name, array in batch.items()} == memory
        whole = buffer.fetch(batch.ids)
        assert all((whole[name] == batch[name]).all() for name in FIELDS)
        with pytest.raises(SpaceError, match="out\\['"):  # of another size: raises, and out is not changed
            buffer.sample(9, batch)
        assert len(batch.ids) == 8
        batch["obs"].flags.writeable = False
        with pytest.raises(SpaceError, match="out\\['obs'\\] must be a writable"):
            buffer.sample(8, batch)


def test_out_is_filled_and_returned():
    with ReplayBuffer(50, FIELDS, seed=1) as buffer:
        buffer.extend(rows(range(20)))
        out = {name: np.zeros((8, *shape), dtype) for name, (dtype, shape) in buffer.fields.items()}
        batch = buffer.sample(8, out)
        assert all(batch[name] is out[name] for name in FIELDS)
        check(batch)
        with pytest.raises(SpaceError, match="out\\['obs'\\]"):
            buffer.sample(9, out)
        out["obs"] = out["obs"].astype(np.float64)
        with pytest.raises(SpaceError, match="out\\['obs'\\]"):
            buffer.sample(8, out)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda batch: batch.pop("obs"), "expected the keys"),
        (lambda batch: batch.update(more=np.zeros(4)), "expected the keys"),
        (lambda batch: batch.update(obs=np.zeros((4, 2))), "expected rows of shape"),
        (lambda batch: batch.update(obs=np.zeros((3, 3))), "the same number of rows"),
        (lambda batch: batch.update(action=np.full(4, 0.5)), "field 'action'"),
        (lambda batch: batch.update(obs="text"), "field 'obs'"),
        (lambda batch: batch.update(action=3), "expected rows of shape"),
    ],
)
def test_bad_batch_raises_and_stores_nothing(change, match):
    with ReplayBuffer(10, FIELDS) as buffer:
        buffer.extend(rows(range(2)))
        batch = rows(range(4))
        change(batch)
        with pytest.raises((SpaceError, TypeError), match=match):
            buffer.extend(batch)
        assert buffer.total_pushed == 2 and buffer.latest(10)["action"].tolist() == [0, 1]


def test_bad_questions_are_refused():
    with ReplayBuffer(10, FIELDS) as buffer:
        with pytest.raises(ValueError, match="empty"):
            buffer.sample(1)
        with pytest.raises(ValueError, match="at least 1"):
            buffer.sample(0)
        with pytest.raises(TypeError, match="n must be"):
            buffer.sample(1.5)
        with pytest.raises(ValueError, match="at least 0"):
            buffer.latest(-1)
        assert len(buffer.latest(5).ids) == 0 and list(buffer) == []
    with pytest.raises(ClosedError):
        buffer.sample(1)
    for capacity, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="capacity"):
            ReplayBuffer(capacity, FIELDS)
    with pytest.raises(shoal.errors.LayoutError):
        ReplayBuffer(5, {})
    with pytest.raises(MemoryError, match="bytes"):
        ReplayBuffer(2**38, FIELDS)


def test_fetch_skips_overwritten_rows():
    with ReplayBuffer(4, FIELDS) as buffer:
        buffer.extend(rows(range(6)))
        batch = buffer.fetch([0, 5, 2, 99, 1])
        assert batch.ids.tolist() == [5, 2]
        check(batch)


def push_and_read(buffer, first, pushes, reads):
    for number in range(first, first + pushes, 10):
        buffer.extend(rows(range(number, number + 10)))
        for _ in range(reads):
            check(buffer.sample(4))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_that_push_and_sample_at_once_read_no_torn_row(method):
    with ReplayBuffer(32, FIELDS) as buffer:  # small: rows are overwritten all the time
        buffer.extend(rows(range(32)))
        context = multiprocessing.get_context(method)
        processes = [
            context.Process(target=push_and_read, args=(buffer, 10_000 * p, 4000, 2)) for p in (1, 2, 3)
        ]
        for process in processes:
            process.start()
        for _ in range(500):
            check(buffer.sample(16))
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
        assert buffer.total_pushed == 32 + 3 * 4000
        check(buffer.latest(32))


def test_forked_child_gets_its_own_writer_number():
    with ReplayBuffer(1000, FIELDS) as buffer:
        buffer.extend(rows(range(10)))  # the parent has its number already
        process = multiprocessing.get_context("fork").Process(
            target=push_and_read, args=(buffer, 100, 200, 0)
        )
        process.start()
        for number in range(300, 500, 10):
            buffer.extend(rows(range(number, number + 10)))
        process.join(60)
        assert process.exitcode == 0
        expected = [*range(10), *range(100, 300), *range(300, 500)]
        assert sorted(buffer.latest(1000)["action"].tolist()) == expected
        check(buffer.latest(1000))


def test_opening_a_file_again_returns_every_row(tmp_path):
    path = tmp_path / "ring.seg"
    buffer = ReplayBuffer(20, FIELDS, path=path)
    buffer.extend(rows(range(33)))
    again = ReplayBuffer.open(path)  # while it is in use
    check(again.latest(20))
    again.extend(rows(range(33, 36)))
    assert buffer.latest(3)["action"].tolist() == [33, 34, 35]
    buffer.close(), again.close()
    with ReplayBuffer.open(path) as last:
        assert last.latest(20)["action"].tolist() == list(range(16, 36))
        assert last.extend(rows([36])) == range(36, 37)  # ids go on


def test_a_snapshot_and_a_save_hold_the_same_rows(tmp_path):
    with ReplayBuffer(20, FIELDS) as buffer:
        buffer.extend(rows(range(50)))
        assert buffer.snapshot(tmp_path / "snap.seg") == 20
        assert buffer.save(tmp_path / "saved") == 20
        with pytest.raises(FileExistsError, match="new directory"):
            buffer.save(tmp_path / "saved")
    for other in (ReplayBuffer.open(tmp_path / "snap.seg"), ReplayBuffer.load(tmp_path / "saved")):
        with other:
            check(other.latest(20))
            assert other.latest(20)["action"].tolist() == list(range(30, 50))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved", "snap.seg"]


def test_loading_a_damaged_directory_raises(tmp_path):
    with ReplayBuffer(20, FIELDS) as buffer:
        buffer.extend(rows(range(10)))
        buffer.save(tmp_path / "saved")
    field = tmp_path / "saved" / "0.npy"
    whole = field.read_bytes()
    for damage in (whole[:40], whole[:-8], b"", b"junk" * 50):
        field.write_bytes(damage)
        with pytest.raises(CorruptFileError):
            ReplayBuffer.load(tmp_path / "saved")
    field.write_bytes(whole)
    (tmp_path / "saved" / "manifest.json").write_text("{}")
    with pytest.raises(CorruptFileError):
        ReplayBuffer.load(tmp_path / "saved")


def test_opening_another_kind_of_segment_raises(tmp_path):
    shoal.Segment.file(shoal.Layout({"x": (np.float32, (4,))}), tmp_path / "other.seg").close()
    with pytest.raises(CorruptFileError, match="does not hold a replay buffer"):
        ReplayBuffer.open(tmp_path / "other.seg")


def test_large_buffers_request_huge_pages_and_report_what_they_got():
    with ReplayBuffer(200_000, {"obs": (np.float32, (12,))}) as large, ReplayBuffer(10, FIELDS) as small:
        assert small.huge_page_bytes == 0
        assert 0 <= large.huge_page_bytes <= large.size_bytes
        with shoal.Segment(shoal.Layout({"a": ("u1", (16 << 20,))}), huge_pages=True) as plain:
            if plain.huge_page_bytes:  # they are to be had here
                assert large.huge_page_bytes > 0


def test_save_does_not_create_missing_parent_directories(tmp_path):
    with ReplayBuffer(4, {"x": (np.float32, ())}) as buffer:
        buffer.push({"x": 1.0})
        with pytest.raises(FileNotFoundError, match="is not a directory; create it first"):
            buffer.save(tmp_path / "typo" / "saved")
    assert list(tmp_path.iterdir()) == []


def test_latest_finds_rows_far_behind_the_tail(tmp_path):
    with ReplayBuffer(8, {"x": (np.int64, ())}, path=tmp_path / "rows") as buffer:
        buffer.extend({"x": np.arange(11)})
        buffer._records.segment["tail"][0] = 1000  # as tickets that were taken and lost, or one flipped bit
        assert buffer.latest(3)["x"].tolist() == [8, 9, 10]
        assert buffer.latest(8)["x"].tolist() == [row["x"] for row in buffer] == list(range(3, 11))
        assert buffer.save(tmp_path / "saved") == 8
        assert buffer.push({"x": 11}) == 1000 and buffer.latest(2)["x"].tolist() == [10, 11]


def test_out_of_another_batch_class_gets_the_right_ids():
    with ReplayBuffer(100, {"x": (np.int64, ())}, seed=0) as buffer:
        buffer.extend({"x": np.arange(100)})
        sampler = PrioritizedSampler(buffer, seed=0)
        for first, then in ((sampler.sample, buffer.sample), (buffer.sample, sampler.sample)):
            batch = first(16)
            other = then(16, out=batch)
            assert type(other) is not type(batch) and other["x"] is batch["x"]
            assert batch.ids.tolist() == other.ids.tolist() == batch["x"].tolist()
