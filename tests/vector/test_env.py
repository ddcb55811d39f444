"""The contract of gymnasium.vector.VectorEnv, held against Gymnasium's own SyncVectorEnv."""

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

import shoal


def sync(num_envs, mode, env="CartPole-v1", **kwargs):
    return gymnasium.make_vec(
        env, num_envs, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}, **kwargs
    )


def assert_same_infos(found, expected):
    assert set(found) == set(expected)
    for key, value in expected.items():
        if key == "final_obs":
            for one, other in zip(found[key], value, strict=True):
                assert (one is None) == (other is None)
                if one is not None:
                    assert np.allclose(one, other, 1e-6, 1e-6) and one.dtype == other.dtype
        elif isinstance(value, np.ndarray):
            assert np.array_equal(found[key], value) and found[key].dtype == value.dtype
        else:
            assert found[key] == value


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
@pytest.mark.parametrize("num_envs", [1, 5, 40])
def test_every_autoreset_mode_gives_what_gymnasium_gives(mode, num_envs):
    ours = shoal.make_vec("CartPole-v1", num_envs, autoreset_mode=mode, max_episode_steps=30)
    theirs = sync(num_envs, mode, max_episode_steps=30)
    rng = np.random.default_rng(3)
    for found, expected in zip(ours.reset(seed=11), theirs.reset(seed=11), strict=True):
        assert np.array_equal(found, expected)
    for _ in range(120):
        actions = rng.integers(0, 2, num_envs)
        found, expected = ours.step(actions), theirs.step(actions)
        assert np.allclose(found[0], expected[0], 1e-6, 1e-6)
        for one, other in zip(found[:4], expected[:4], strict=True):
            assert one.dtype == other.dtype and one.shape == other.shape
        for one, other in zip(found[1:4], expected[1:4], strict=True):
            assert np.array_equal(one, other)
        assert_same_infos(found[4], expected[4])
        over = found[2] | found[3]
        if mode == AutoresetMode.DISABLED and over.any():
            found, _ = ours.reset(options={"reset_mask": over})
            expected, _ = theirs.reset(options={"reset_mask": over})
            assert np.allclose(found, expected, 1e-6, 1e-6)
    ours.close()
    theirs.close()


def test_vector_env_has_gymnasiums_attributes():
    envs = shoal.make_vec("CartPole-v1", 6)
    theirs = sync(6, AutoresetMode.NEXT_STEP)
    assert isinstance(envs, gymnasium.vector.VectorEnv)
    assert envs.num_envs == 6
    for name in ("single_observation_space", "single_action_space", "observation_space", "action_space"):
        assert getattr(envs, name) == getattr(theirs, name)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP is envs.autoreset_mode
    assert envs.reset()[0] in envs.observation_space
    assert not envs.closed
    envs.close()
    envs.close()
    assert envs.closed


def test_gymnasium_make_vec_accepts_the_namespaced_id():
    envs = gymnasium.make_vec("shoal/CartPole-v1", num_envs=3, buffers="copy")
    observations, _ = envs.reset(seed=1)
    assert observations.shape == (3, 4)
    assert envs.spec.id == "shoal/CartPole-v1"
    envs.close()


@pytest.mark.parametrize("wrapper", ["RecordEpisodeStatistics", "NormalizeObservation", "FlattenObservation"])
def test_gymnasiums_vector_wrappers_work_over_it(wrapper):
    envs = getattr(gymnasium.wrappers.vector, wrapper)(shoal.make_vec("CartPole-v1", 4))
    envs.reset(seed=0)
    for _ in range(60):
        observations, *_, info = envs.step(envs.action_space.sample())
    assert observations.shape == (4, 4)
    envs.close()


def test_seeds_are_gymnasiums_int_list_and_none():
    envs, theirs = shoal.make_vec("CartPole-v1", 3), sync(3, AutoresetMode.NEXT_STEP)
    for seed in (5, [5, 9, 0], [2**40, 1, 2]):
        assert np.array_equal(envs.reset(seed=seed)[0], theirs.reset(seed=seed)[0])
    # None goes on with the same generators; a None in a list keeps that environment's.
    assert np.array_equal(envs.reset()[0], theirs.reset()[0])
    assert np.array_equal(envs.reset(seed=[None, 3, None])[0], theirs.reset(seed=[None, 3, None])[0])
    huge = 2**70 + 3
    assert np.array_equal(envs.reset(seed=huge)[0], theirs.reset(seed=huge)[0])
    first = shoal.make_vec("CartPole-v1", 3).reset()[0]
    assert not np.array_equal(first, shoal.make_vec("CartPole-v1", 3).reset()[0])


@pytest.mark.parametrize("seed", [-1, [1, 2], [1, 2, 3, 4], ["a", 1, 2], 1.5, [1.0, 2.0, 3.0]])
def test_a_bad_seed_is_refused(seed):
    envs = shoal.make_vec("CartPole-v1", 3)
    with pytest.raises((ValueError, TypeError)):
        envs.reset(seed=seed)


def test_list_with_one_bad_seed_seeds_nothing():
    envs, other = shoal.make_vec("CartPole-v1", 3), shoal.make_vec("CartPole-v1", 3)
    envs.reset(seed=4)
    other.reset(seed=4)
    with pytest.raises(ValueError, match="got -5 for environment 2"):
        envs.reset(seed=[1, 2, -5])
    assert np.array_equal(envs.reset()[0], other.reset()[0])


def test_a_masked_reset_starts_only_those_episodes_again():
    envs = shoal.make_vec("CartPole-v1", 4)
    envs.reset(seed=0)
    before = envs.step(np.ones(4, np.int64))[0]
    after, info = envs.reset(seed=[7, 7, 7, 7], options={"reset_mask": np.array([True, False, False, True])})
    fresh = shoal.make_vec("CartPole-v1", 4).reset(seed=[7, 7, 7, 7])[0]
    assert np.array_equal(after[[1, 2]], before[[1, 2]])
    assert np.array_equal(after[[0, 3]], fresh[[0, 3]])
    assert info == {}


@pytest.mark.parametrize(
    "mask", [[True] * 4, np.ones(3, bool), np.ones(4), np.zeros(4, bool), np.ones((4, 1), bool)], ids=str
)
def test_a_bad_reset_mask_raises_gymnasiums_error(mask):
    envs, theirs = shoal.make_vec("CartPole-v1", 4), sync(4, AutoresetMode.NEXT_STEP)
    envs.reset(seed=0)
    theirs.reset(seed=0)
    with pytest.raises((TypeError, ValueError)) as expected:
        theirs.reset(options={"reset_mask": mask})
    with pytest.raises(expected.type) as found:
        envs.reset(options={"reset_mask": mask})
    assert str(found.value) == str(expected.value)


def test_unknown_reset_options_are_named():
    envs = shoal.make_vec("CartPole-v1", 1)
    with pytest.raises(ValueError, match=r"got \['low'\]"):
        envs.reset(options={"low": 3})


def test_stepping_before_reset_and_a_finished_environment_need_a_reset():
    envs = shoal.make_vec("CartPole-v1", 2, autoreset_mode="Disabled", max_episode_steps=2)
    with pytest.raises(ResetNeeded, match="call reset"):
        envs.step(np.zeros(2, np.int64))
    envs.reset(seed=0)
    envs.step(np.zeros(2, np.int64))
    truncated = envs.step(np.zeros(2, np.int64))[3]
    assert truncated.all()
    with pytest.raises(ResetNeeded, match="reset_mask"):
        envs.step(np.zeros(2, np.int64))
    envs.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ResetNeeded):
        envs.step(np.zeros(2, np.int64))
    envs.reset(options={"reset_mask": np.array([False, True])})
    envs.step(np.zeros(2, np.int64))


def test_episode_statistics_are_those_of_gymnasiums_wrapper():
    ours = shoal.make_vec("CartPole-v1", 7, episode_stats=True)
    theirs = gymnasium.wrappers.vector.RecordEpisodeStatistics(sync(7, AutoresetMode.NEXT_STEP))
    rng = np.random.default_rng(0)
    ours.reset(seed=2)
    theirs.reset(seed=2)
    returns, lengths = [], []
    for _ in range(200):
        actions = rng.integers(0, 2, 7)
        found, expected = ours.step(actions)[4], theirs.step(actions)[4]
        assert ("episode" in found) == ("episode" in expected)
        if "episode" in found:
            assert np.array_equal(found["_episode"], expected["_episode"])
            for key in ("r", "l"):
                assert np.array_equal(found["episode"][key], expected["episode"][key])
            returns += found["episode"]["r"][found["_episode"]].tolist()
            lengths += found["episode"]["l"][found["_episode"]].tolist()
    stats = ours.stats
    assert stats["episodes"] == len(returns) > 20
    assert stats["mean_return"] == pytest.approx(np.mean(returns))
    assert stats["mean_length"] == pytest.approx(np.mean(lengths))
    assert 200 * 7 - len(returns) <= stats["steps"] <= 200 * 7  # a reset is no step


@pytest.mark.parametrize("mode", ["SAME_STEP", "same_step", "SameStep", AutoresetMode.SAME_STEP])
def test_an_autoreset_mode_is_taken_by_name_and_by_value(mode):
    assert shoal.make_vec("CartPole-v1", 1, autoreset_mode=mode).autoreset_mode is AutoresetMode.SAME_STEP


def test_the_time_limit_can_be_changed_and_truncates():
    envs = shoal.make_vec("CartPole-v1", 2, max_episode_steps=3)
    envs.reset(seed=0)
    flags = [envs.step(np.array([1, 0]))[3].all() for _ in range(8)]
    assert flags == [False, False, True, False, False, False, True, False]


@pytest.mark.parametrize("threads", [1, 2, 5, 16])
def test_any_number_of_threads_gives_the_same_bytes(threads):
    def trace(num_threads):
        envs = shoal.make_vec("CartPole-v1", 1000, num_threads=num_threads)
        rng = np.random.default_rng(0)
        parts = [envs.reset(seed=3)[0].tobytes()]
        for _ in range(300):
            parts += [part.tobytes() for part in envs.step(rng.integers(0, 2, 1000))[:4]]
        return parts

    assert trace(threads) == trace(1)
