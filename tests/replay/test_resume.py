"""A resumed run draws exactly the same rows as an uninterrupted one; damaged files raise clear errors."""

import json
import shutil
import struct

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from shoal.errors import CorruptFileError, ShoalError, VersionError
from shoal.replay import PrioritizedSampler, ReplayBuffer, TrajectoryBuffer
from shoal.replay.resume import _HEAD, Resumable, draws_path

FIELDS = {"x": (np.int64, ()), "y": (np.float32, (3,))}
SPACE = Box(-1e6, 1e6, (2,), np.float32)


def rows(begin, count):
    numbers = np.arange(begin, begin + count)
    return {"x": numbers, "y": np.repeat(numbers, 3).reshape(-1, 3).astype(np.float32)}


class PlainRun:
    """Pushes, draws and updates; each round is the same in every run."""

    def __init__(self, buffer, is_new=True):
        self.buffer, self.round = buffer, 0
        if is_new:
            self.samplers = [
                PrioritizedSampler(buffer, alpha=0.7, beta=0.5, seed=3),
                PrioritizedSampler(buffer, alpha=1.0, seed=4, name="mine"),
            ]
        else:
            self.samplers = [PrioritizedSampler.resume(buffer), PrioritizedSampler.resume(buffer, "mine")]

    def step(self):
        self.buffer.extend(rows(37 * self.round, 37))
        found = [batch_bytes(self.buffer.sample(16))]
        for sampler in self.samplers:
            batch = sampler.sample(16)
            sampler.update_priorities(batch.ids, np.abs(batch["x"] % 11) + 0.5)
            found.append(batch_bytes(batch))
        self.round += 1
        return found


class WalkRun:
    """The same for two environments, with n-step returns, stacks and sequences."""

    def __init__(self, buffer, is_new=True, time=0):
        self.buffer, self.time = buffer, time
        if is_new:
            self.sampler = PrioritizedSampler(buffer, seed=5)
            buffer.begin(self._seen())
        else:
            self.sampler = PrioritizedSampler.resume(buffer)
            buffer.resume_episodes()

    def _seen(self):
        return np.stack([np.full(2, self.time), np.arange(2)], axis=1).astype(np.float32)

    def step(self):
        for _ in range(9):
            self.time += 1
            ended = np.full(2, self.time % 7 == 0)
            rewards = np.full(2, float(self.time))
            self.buffer.add(np.zeros(2, np.int64), self._seen(), rewards, ended, np.zeros(2, bool))
        batch = self.sampler.sample_n_step(12, 3, 0.9, stack=2)
        self.sampler.update_priorities(batch.ids, np.abs(batch["reward"]) + 0.1)
        others = [
            self.buffer.sample(12),
            self.buffer.sample_sequences(4, 5),
            self.sampler.sample_sequences(4, 5),
            self.sampler.sample(6, stack=3),
        ]
        return [batch_bytes(one) for one in (batch, *others)]


def batch_bytes(batch):
    extra = {"ids": batch.ids, "weights": getattr(batch, "weights", np.empty(0))}
    return {name: np.asarray(array).tobytes() for name, array in {**batch, **extra}.items()}


def make_plain_buffer(capacity=100, **options):
    return ReplayBuffer(capacity, FIELDS, seed=1, **options)


def make_walk_buffer(capacity=60, **options):
    return TrajectoryBuffer(capacity, SPACE, Discrete(2), 2, AutoresetMode.NEXT_STEP, seed=2, **options)


def through_save(run, path):
    run.buffer.save(path / "saved")
    return ReplayBuffer.load(path / "saved")


def through_snapshot(run, path):
    run.buffer.snapshot(path / "snap")
    return ReplayBuffer.open(path / "snap")


def through_the_file_itself(run, path):
    run.buffer.close()
    return ReplayBuffer.open(path / "run.ring")


WAYS = {"save": through_save, "snapshot": through_snapshot, "file": through_the_file_itself}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("before", [1, 4])  # rows, and more rows than there is room for
@pytest.mark.parametrize("kind", [PlainRun, WalkRun])
def test_resumed_run_draws_the_same_rows_as_an_uninterrupted_run(kind, way, before, tmp_path):
    make = make_plain_buffer if kind is PlainRun else make_walk_buffer
    uninterrupted = kind(make())
    first = kind(make(path=tmp_path / "run.ring") if way == "file" else make())
    for _ in range(before):
        assert uninterrupted.step() == first.step()
    resumed_buffer = WAYS[way](first, tmp_path)
    assert type(resumed_buffer) is type(first.buffer)
    if kind is PlainRun:
        resumed = PlainRun(resumed_buffer, is_new=False)
        resumed.round = first.round
    else:
        resumed = WalkRun(resumed_buffer, is_new=False, time=first.time)
    assert resumed_buffer.total_pushed == uninterrupted.buffer.total_pushed
    for _ in range(5):
        assert uninterrupted.step() == resumed.step()
    for buffer in (uninterrupted.buffer, first.buffer, resumed_buffer):
        buffer.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_seed_restarts_the_draws_but_keeps_the_priorities(way, tmp_path):
    run = PlainRun(make_plain_buffer(path=tmp_path / "run.ring") if way == "file" else make_plain_buffer())
    run.step()
    weights = run.samplers[0]._weights.state()
    WAYS[way](run, tmp_path).close()
    where = {"save": "saved", "snapshot": "snap", "file": "run.ring"}[way]
    read = ReplayBuffer.load if way == "save" else ReplayBuffer.open
    one, other = (read(tmp_path / where, seed=9) for _ in range(2))
    assert one.sample(20).ids.tolist() == other.sample(20).ids.tolist()
    assert PrioritizedSampler.resume(one)._weights.state() == weights
    one.close(), other.close()


def test_samplers_that_are_not_resumed_are_saved_again(tmp_path):
    run = PlainRun(make_plain_buffer())
    run.step()
    run.buffer.save(tmp_path / "one")
    with ReplayBuffer.load(tmp_path / "one") as buffer:
        again = PrioritizedSampler.resume(buffer, "mine")
        again.update_priorities(buffer.latest(3).ids, [7, 8, 9])
        buffer.save(tmp_path / "two")
    with ReplayBuffer.load(tmp_path / "two") as buffer:
        assert sorted(buffer._saved) == ["mine", "sampler"]
        assert PrioritizedSampler.resume(buffer, "mine")._weights.state() == again._weights.state()
        assert PrioritizedSampler.resume(buffer)._weights.state() == run.samplers[0]._weights.state()
    run.buffer.close()


def test_names_of_samplers():
    with make_plain_buffer() as buffer, make_plain_buffer() as other:
        names = [PrioritizedSampler(buffer).name for _ in range(3)]
        assert names == ["sampler", "sampler-2", "sampler-3"] and PrioritizedSampler(other).name == "sampler"
        kept = PrioritizedSampler(buffer, name="mine")
        with pytest.raises(ValueError, match="has a sampler of the name 'mine' already"):
            PrioritizedSampler(buffer, name=kept.name)
        with pytest.raises(TypeError, match="name must be a str"):
            PrioritizedSampler(buffer, name=3)
        with pytest.raises(ValueError, match="a sampler of the name 'mine'; saved samplers: none"):
            PrioritizedSampler.resume(buffer, "mine")
        with pytest.raises(TypeError, match="ReplayBuffer"):
            PrioritizedSampler.resume([1])


def test_a_process_that_only_pushes_does_not_write_the_draws(tmp_path):
    path = tmp_path / "run.ring"
    run = PlainRun(make_plain_buffer(path=path))
    run.step()
    run.buffer.close()
    with ReplayBuffer.open(path) as actor:
        actor.extend(rows(1000, 5))
        with ReplayBuffer.open(path) as learner:
            learner.sample(3)
        kept = draws_path(path).read_bytes()
    assert draws_path(path).read_bytes() == kept
    with ReplayBuffer.open(path) as buffer:
        buffer.sample(3)
        assert PrioritizedSampler.resume(buffer)._weights.state()[1] <= buffer.total_pushed
    assert draws_path(path).read_bytes() != kept


def test_new_file_and_new_snapshot_do_not_use_older_draws(tmp_path):
    path = tmp_path / "run.ring"
    run = PlainRun(make_plain_buffer(path=path))
    run.step()
    run.buffer.close()
    path.unlink()
    with make_plain_buffer(path=path):
        assert not draws_path(path).exists()
    with make_plain_buffer() as buffer:
        buffer.extend(rows(0, 5))
        buffer.sample(2)
        draws_path(tmp_path / "snap").write_bytes(b"of another")
        buffer.snapshot(tmp_path / "snap")
        expected = buffer.sample(9).ids.tolist()
    with ReplayBuffer.open(tmp_path / "snap") as again:
        assert again.sample(9).ids.tolist() == expected


def test_draws_of_another_buffer_raise(tmp_path):
    for name in ("one", "other"):
        run = PlainRun(make_plain_buffer(path=tmp_path / name))
        run.step()
        run.buffer.close()
    shutil.copy(draws_path(tmp_path / "one"), draws_path(tmp_path / "other"))
    with pytest.raises(CorruptFileError, match="holds the draws of another buffer than .*other'; remove it"):
        ReplayBuffer.open(tmp_path / "other")
    draws_path(tmp_path / "other").unlink()
    ReplayBuffer.open(tmp_path / "other").close()


def damage_draws(data):
    head = json.loads(data[_HEAD.size : _HEAD.size + struct.unpack_from("<8sII", data)[2]])
    yield "empty", b"", "does not hold the draws"
    yield "short", data[:20], "does not hold the draws"
    yield "cut", data[:-1], "checksum is wrong"
    yield "flipped", data[:-5] + bytes([data[-5] ^ 1]) + data[-4:], "checksum is wrong"
    yield "foreign", b"PK\3\4" + data[4:], "begins with"
    yield "newer", data[:8] + struct.pack("<I", 9) + data[12:], "format 9; this version of Shoal reads 1"
    for change, why in (
        ({"draws": [1, 2]}, "5 words of 64 bits"),
        ({"draws": None}, "does not hold"),
        ({"samplers": [{"name": "x"}]}, "does not hold"),
        ({"arrays": [["<f4", [10**12]]]}, "does not hold"),
        ({"arrays": [["O", [1]]]}, "does not hold"),
    ):
        yield str(change), repack({**head, **change}, data), why


def repack(head, data):
    import hashlib

    text = json.dumps(head).encode()
    rest = text + data[_HEAD.size + struct.unpack_from("<8sII", data)[2] :]
    return _HEAD.pack(b"SHOALDRW", 1, len(text), hashlib.sha256(rest).digest()) + rest


def test_damaged_draws_raise_and_the_rows_can_still_be_loaded(tmp_path):
    run = PlainRun(make_plain_buffer())
    run.step()
    run.buffer.save(tmp_path / "saved")
    path = tmp_path / "saved" / "draws"
    whole = path.read_bytes()
    for name, data, why in damage_draws(whole):
        path.write_bytes(data)
        kind = VersionError if name == "newer" else CorruptFileError
        with pytest.raises(kind, match=why):
            ReplayBuffer.load(tmp_path / "saved")
    path.unlink()
    with pytest.raises(CorruptFileError, match="draws"):
        ReplayBuffer.load(tmp_path / "saved")
    path.write_bytes(whole)
    ReplayBuffer.load(tmp_path / "saved").close()
    run.buffer.close()


def test_saved_priorities_that_do_not_fit_raise(tmp_path):
    run = PlainRun(make_plain_buffer())
    run.step()
    run.buffer.save(tmp_path / "saved")
    path = tmp_path / "saved" / "draws"
    state = Resumable.unpack(path.read_bytes(), "it")
    for name, weights, why in (
        ("short", np.ones(7, np.float32), "weights for 7 rows, but the buffer has room for 100"),
        ("not a number", np.full(100, np.nan, np.float32), "out of range"),
        ("negative", np.full(100, -1, np.float32), "out of range"),
    ):
        state.samplers["sampler"].__dict__["weights"] = weights
        path.write_bytes(state.pack())
        with pytest.raises(CorruptFileError, match=why), ReplayBuffer.load(tmp_path / "saved") as buffer:
            PrioritizedSampler.resume(buffer)
        assert name
    run.buffer.close()


def test_manifest_with_impossible_ids_raises(tmp_path):
    run = PlainRun(make_plain_buffer())
    run.step()
    run.buffer.save(tmp_path / "saved")
    path = tmp_path / "saved" / "manifest.json"
    manifest = json.loads(path.read_text())
    for change in ({"next_id": 3}, {"next_id": 2**63}, {"total": 1}, {"capacity": 37, "next_id": 36}):
        path.write_text(json.dumps({**manifest, **change}))
        with pytest.raises(CorruptFileError, match="damaged|room"):
            ReplayBuffer.load(tmp_path / "saved")
    for change in ({"format": "2"}, {"format": None}, {"next_id": None}):
        path.write_text(json.dumps({**manifest, **change}))
        with pytest.raises(CorruptFileError):
            ReplayBuffer.load(tmp_path / "saved")
    run.buffer.close()


def test_format_1_can_still_be_loaded(tmp_path):
    buffer = make_walk_buffer()
    run = WalkRun(buffer)
    run.step(), run.step()
    buffer.save(tmp_path / "saved")
    path = tmp_path / "saved" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(
        json.dumps({k: v for k, v in manifest.items() if k not in ("next_id", "total")} | {"format": 1})
    )
    (tmp_path / "saved" / "draws").unlink()
    with ReplayBuffer.load(tmp_path / "saved", seed=1) as old:
        assert np.array_equal(old.latest(60)["obs"], buffer.latest(60)["obs"])
        batch = old.sample_n_step(50, 3, 0.9)
        assert (batch["next_obs"][:, 0] > batch["obs"][:, 0]).all()
    buffer.close()


def test_resume_episodes_needs_saved_episodes(tmp_path):
    with make_walk_buffer() as buffer:
        with pytest.raises(ShoalError, match="there are no saved episodes"):
            buffer.resume_episodes()
        WalkRun(buffer).step()
        buffer.save(tmp_path / "saved")
    with ReplayBuffer.load(tmp_path / "saved") as again:
        step = (
            np.zeros(2, np.int64),
            np.zeros((2, 2), np.float32),
            np.zeros(2),
            np.zeros(2, bool),
            np.zeros(2, bool),
        )
        with pytest.raises(ShoalError, match="begin"):
            again.add(*step)  # a reset may have come between: nothing is taken for granted
        again.begin(np.zeros((2, 2), np.float32))
        with pytest.raises(ShoalError, match="there are no saved episodes"):
            again.resume_episodes()
        again.add(*step)
