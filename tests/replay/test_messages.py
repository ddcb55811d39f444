"""Errors of replay buffers say what was expected, what was found and what to do."""

import os

import gymnasium
import numpy as np
import pytest

import shoal
from shoal.errors import CorruptFileError, LayoutError, NameInUse, SegmentError
from shoal.replay import PrioritizedSampler, ReplayBuffer, SharedCircularBuffer

FIELDS = {"x": (np.float32, ())}


def test_error_for_an_existing_file_suggests_open(tmp_path):
    path = tmp_path / "rows"
    ReplayBuffer(4, FIELDS, path=path).close()
    with pytest.raises(
        NameInUse, match=r"rows' exists; open it with ReplayBuffer\.open, or remove it"
    ) as caught:
        ReplayBuffer(4, FIELDS, path=path)
    assert "Segment" not in str(caught.value) and isinstance(caught.value, FileExistsError)


def test_error_of_load_names_what_it_expected(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"a directory that save wrote.*manifest\.json.*nope.*nothing"
    ):
        ReplayBuffer.load(tmp_path / "nope")
    (tmp_path / "other").mkdir()
    with pytest.raises(FileNotFoundError, match="found something else"):
        ReplayBuffer.load(tmp_path / "other")
    with ReplayBuffer(4, FIELDS) as buffer:
        buffer.snapshot(tmp_path / "snap")
        buffer.save(tmp_path / "saved")
    with pytest.raises(FileNotFoundError, match=r"a snapshot, use ReplayBuffer\.open"):
        ReplayBuffer.load(tmp_path / "snap")
    (tmp_path / "saved" / "0.npy").unlink()
    with pytest.raises(CorruptFileError, match=r"0\.npy"):
        ReplayBuffer.load(tmp_path / "saved")


def test_for_env_rejects_a_single_environment():
    env = gymnasium.make("CartPole-v1")
    with pytest.raises(TypeError, match=r"takes a vector environment, got .*; make one with shoal\.make_vec"):
        ReplayBuffer.for_env(env, 100)
    env.close()
    envs = shoal.make_vec("CartPole-v1", 2)
    ReplayBuffer.for_env(envs, 100).close()
    envs.close()


def test_ids_must_be_integers_of_at_least_0():
    with ReplayBuffer(4, FIELDS) as buffer:
        buffer.extend({"x": np.arange(4, dtype=np.float32)})
        for ask in (buffer.fetch, lambda ids: PrioritizedSampler(buffer).update_priorities(ids, np.ones(1))):
            for ids, error, match in [
                ([-1], ValueError, "ids must be at least 0, like those in batch.ids, got -1"),
                ([0.5], TypeError, "ids must be integers, like those in batch.ids"),
                (["a"], TypeError, "ids must be integers"),
                ([None], TypeError, "ids must be integers"),
                ([2**64], TypeError, "ids must be integers"),
                ([[1]], ValueError, "ids must have one dimension"),
                (1, ValueError, "ids must have one dimension"),
            ]:
                with pytest.raises(error, match=match):
                    ask(ids)
        assert buffer.fetch([]).ids.tolist() == [] and buffer.fetch(range(2)).ids.tolist() == [0, 1]
        assert buffer.fetch(np.array([2**64 - 1, 3], np.uint64)).ids.tolist() == [3]


def test_a_shape_must_be_a_tuple():
    with pytest.raises(LayoutError, match=r"field 'x': a shape must be a tuple of ints, got 4; write \(4,\)"):
        ReplayBuffer(4, {"x": (np.float32, 4)})
    with pytest.raises(LayoutError, match=r"a shape must be a tuple of ints, got None$"):
        ReplayBuffer(4, {"x": (np.float32, None)})


def test_capacity_must_be_in_range():
    for make in (lambda n: ReplayBuffer(n, FIELDS), lambda n: SharedCircularBuffer(n, 1)):
        with pytest.raises(ValueError, match=r"capacity must be less than 2\*\*40 rows"):
            make(2**40)
        with pytest.raises(ValueError, match="capacity must be at least 1"):
            make(0)


def test_a_buffer_whose_rows_are_all_being_written_is_not_called_empty():
    with ReplayBuffer(3, {"x": (np.float32, ())}) as buffer:
        buffer.extend({"x": np.zeros(3, np.float32)})
        buffer._records.segment["rows"][:, :8] = 0  # as those of three writers at work
        with pytest.raises(ValueError, match="none of the 3 rows is complete"):
            buffer.sample(1)


@pytest.mark.parametrize("name", ["add", "begin", "sample_n_step", "sample_sequences"])
def test_methods_of_trajectory_buffers_name_for_env_in_their_error(name):
    with ReplayBuffer(4, FIELDS) as buffer:
        assert not hasattr(buffer, name) and not hasattr(buffer, "nonsense")
        with pytest.raises(AttributeError, match=rf"{name}.*ReplayBuffer\.for_env\(envs, capacity\)"):
            getattr(buffer, name)
        with pytest.raises(AttributeError, match="'ReplayBuffer' object has no attribute 'nonsense'"):
            buffer.nonsense()


def test_snapshot_does_not_replace_the_file_of_its_buffer(tmp_path):
    path, link = tmp_path / "rows", tmp_path / "link"
    with ReplayBuffer(8, FIELDS, path=path, durability="sync") as buffer:
        buffer.push({"x": 1.0})
        os.link(path, link)
        for own in (path, link):
            with pytest.raises(FileExistsError, match="is the file of this buffer itself"):
                buffer.snapshot(own)
        buffer.push({"x": 2.0})
        assert buffer.snapshot(tmp_path / "other") == 2 and buffer.snapshot(tmp_path / "other") == 2
    with ReplayBuffer.open(path) as again:
        assert len(again) == 2


def test_error_for_opening_a_directory_suggests_load(tmp_path):
    with ReplayBuffer(4, FIELDS) as buffer:
        buffer.save(tmp_path / "saved")
    with pytest.raises(SegmentError, match=r"found a directory; .*ReplayBuffer\.load"):
        ReplayBuffer.open(tmp_path / "saved")


def test_for_env_needs_the_autoreset_mode_in_the_metadata():
    class Silent(gymnasium.vector.VectorEnv):
        single_observation_space = single_action_space = gymnasium.spaces.Discrete(2)
        num_envs = 2

    with pytest.raises(ValueError, match=r'Silent\.metadata\["autoreset_mode"\].*found None; set it'):
        ReplayBuffer.for_env(Silent(), 100)


def test_seeds_and_rewards_of_the_small_buffer_are_checked():
    buffer = SharedCircularBuffer(4, 1)
    buffer.push([0.0], 0, 0.0, [0.0], False)
    with pytest.raises(TypeError, match=r"seed must be None or an int, got float: 1\.5"):
        buffer.sample(1, seed=1.5)
    with pytest.raises(ValueError, match=r"seed must be from 0 to 2\*\*32 - 1, got -1"):
        buffer.sample(1, seed=-1)
    with pytest.raises(TypeError, match="reward must be a number, got str: '1'"):
        buffer.push([0.0], 0, "1", [0.0], False)
    assert len(buffer) == 1
    buffer.close()
