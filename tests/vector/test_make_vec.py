"""The arguments that `shoal.make_vec` has in common with `gymnasium.make_vec`."""

import os

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import VectorizeMode
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TransformReward

import shoal
from shoal.vector import ProcessVectorEnv, VectorEnv


class Noted(gymnasium.Wrapper):
    """Says in which process it was applied, and to what."""

    def reset(self, **keywords):
        observation, info = self.env.reset(**keywords)
        return observation, {**info, "pid": os.getpid(), "inner": type(self.env).__name__}


class Bare(gymnasium.Env):
    """Takes no arguments, and no `__init__` says so."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)


def double(env):
    return TransformReward(env, lambda reward: 2 * reward)


@pytest.mark.parametrize(
    "env", ["Blackjack-v1", lambda: gymnasium.make("Blackjack-v1")], ids=["id", "function"]
)
def test_wrappers_are_applied_in_the_workers_the_last_one_outermost(env):
    with shoal.make_vec(env, 2, num_workers=2, wrappers=[double, Noted]) as envs:
        _, info = envs.reset(seed=0)
        assert sorted(info["pid"]) == sorted(envs.worker_pids)
        assert info["inner"].tolist() == ["TransformReward"] * 2
        rewards = set()
        for _ in range(60):
            rewards |= set(envs.step(envs.action_space.sample())[1].tolist())
        assert rewards == {-2.0, 0.0, 2.0}


def test_wrappers_of_environments_in_c_are_refused_with_what_to_use():
    for backend in (None, "process"):
        with pytest.raises(gymnasium.error.Error, match=r"is in C.*gymnasium\.wrappers\.vector"):
            shoal.make_vec("CartPole-v1", 2, wrappers=[double], backend=backend)
    with pytest.raises(TypeError, match="wrappers must be a list of functions, got function"):
        shoal.make_vec("Blackjack-v1", 2, wrappers=double)
    with pytest.raises(TypeError, match="takes an environment, got 3"):
        shoal.make_vec("Blackjack-v1", 2, wrappers=[3])
    shoal.make_vec("CartPole-v1", 2, wrappers=[]).close()


@pytest.mark.parametrize("mode", ["async", VectorizeMode.ASYNC])
def test_mode_async_is_the_process_backend(mode):
    with shoal.make_vec("CartPole-v1", 2, mode) as envs:
        assert isinstance(envs, ProcessVectorEnv)
    with shoal.make_vec("Blackjack-v1", 2, vectorization_mode=mode) as envs:
        assert isinstance(envs, ProcessVectorEnv)


def test_mode_vector_entry_point_is_the_native_backend():
    with shoal.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point") as envs:
        assert isinstance(envs, VectorEnv)
    with pytest.raises(gymnasium.error.Error, match="not an environment in C"):
        shoal.make_vec("Blackjack-v1", 2, vectorization_mode="vector_entry_point")


def test_other_modes_raise_what_gymnasium_raises():
    with pytest.raises(gymnasium.error.Error, match="no vectorization mode 'sync'.*Leave vectorization_mode"):
        shoal.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    with pytest.raises(ValueError) as theirs:
        gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="threads")
    with pytest.raises(ValueError) as ours:
        shoal.make_vec("CartPole-v1", 2, vectorization_mode="threads")
    assert str(ours.value) == str(theirs.value).replace("'sync', ", ""), "the modes that Shoal has"
    with pytest.raises(ValueError, match=r"valid modes: \['async', 'v.*\]; did you mean backend='native'\?"):
        shoal.make_vec("CartPole-v1", 2, vectorization_mode="native")
    with pytest.raises(ValueError, match="'async' means backend='process', but backend='native' was given"):
        shoal.make_vec("CartPole-v1", 2, vectorization_mode="async", backend="native")


def test_vector_kwargs_are_keyword_arguments():
    settings = {
        "autoreset_mode": AutoresetMode.SAME_STEP,
        "copy": False,
        "context": "fork",
        "max_concurrency": 1,
    }
    with shoal.make_vec("Blackjack-v1", 4, vector_kwargs=settings) as envs:
        assert envs.autoreset_mode == AutoresetMode.SAME_STEP
        assert (envs.buffers, envs.context, envs.num_workers) == ("live", "fork", 1)
    with shoal.make_vec(
        "CartPole-v1", 4, vector_kwargs={"autoreset_mode": "SAME_STEP", "copy": False}
    ) as envs:
        assert (envs.autoreset_mode, envs.buffers) == (AutoresetMode.SAME_STEP, "live")


@pytest.mark.parametrize("env", ["Blackjack-v1", "CartPole-v1"])
def test_wrong_vector_kwargs_raise(env):
    with pytest.raises(TypeError, match="no argument 'contxt'; it has .*'context'"):
        shoal.make_vec(env, 2, vector_kwargs={"contxt": "fork"})
    with pytest.raises(TypeError, match="buffers: given both in vector_kwargs and as a keyword"):
        shoal.make_vec(env, 2, vector_kwargs={"copy": False}, buffers="copy")
    with pytest.raises(TypeError, match="vector_kwargs must be a dict, got list"):
        shoal.make_vec(env, 2, vector_kwargs=["copy"])


@pytest.mark.parametrize("env", ["Blackjack-v1", "CartPole-v1", Bare, lambda: Bare()])
def test_error_for_copy_names_the_buffers_to_use(env):
    with pytest.raises(TypeError, match='in place of copy=False use buffers="live"$'):
        shoal.make_vec(env, 2, copy=False)
    with pytest.raises(TypeError, match='in place of copy=True use buffers="leased", the default$'):
        shoal.make_vec(env, 2, copy=True)


@pytest.mark.parametrize("functions", [[Bare, Bare], (Bare,)])
def test_a_list_of_functions_is_for_process_vector_env(functions):
    with pytest.raises(TypeError, match=r"use shoal\.vector\.ProcessVectorEnv\(\[function, \.\.\.\]\)"):
        shoal.make_vec(functions)


@pytest.mark.parametrize("settings", [{"context": "fork"}, {"observation_mode": "same"}])
def test_vector_kwargs_of_processes_are_refused_for_native_environments(settings):
    with pytest.raises(TypeError, match=r"is for worker processes; use backend='process'"):
        shoal.make_vec("CartPole-v1", 2, vector_kwargs=settings)


def test_gymnasiums_make_vec_takes_our_keywords_and_raises_its_own_errors():
    with gymnasium.make_vec("shoal/CartPole-v1", 2, buffers="live", autoreset_mode="SAME_STEP") as envs:
        assert isinstance(envs, VectorEnv) and envs.buffers == "live"
    with gymnasium.make_vec("shoal/CartPole-v1", 2, vectorization_mode="vector_entry_point") as envs:
        assert isinstance(envs, VectorEnv)
    envs = gymnasium.make_vec("shoal/CartPole-v1", 2, vectorization_mode="sync", wrappers=[double])
    envs.reset(seed=0)
    assert envs.step(np.zeros(2, np.int64))[1].tolist() == [2, 2]
    envs.close()
    for wrong in ({"wrappers": [double]}, {"vector_kwargs": {"copy": False}}):
        with pytest.raises(gymnasium.error.Error):
            gymnasium.make_vec("shoal/CartPole-v1", 2, **wrong)


def test_spec_holds_the_arguments_of_its_vector_environment():
    keywords = {"vectorization_mode": "async", "wrappers": [Noted], "map_name": "8x8"}
    theirs = gymnasium.make_vec("FrozenLake-v1", 3, **keywords)
    spec = theirs.spec
    theirs.close()
    with shoal.make_vec(spec) as envs:
        assert (envs.num_envs, envs.single_observation_space.n) == (3, 64)
        assert envs.reset(seed=0)[1]["inner"].tolist() == ["TimeLimit"] * 3
    with shoal.make_vec(gymnasium.spec("shoal/CartPole-v1"), 2, max_episode_steps=7) as envs:
        assert isinstance(envs, VectorEnv) and envs.num_envs == 2
