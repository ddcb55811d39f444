"""gymnasium.make of bundled environments: one C environment as a gymnasium.Env."""

import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RenderCollection, TimeLimit

import shoal
from shoal.native.plugin import bundled, load
from shoal.vector import ProcessVectorEnv

SINGLE = [name for name, library in bundled().items() if load(library, {}).agents == 1]
DRAWN = [name for name in SINGLE if load(bundled()[name], {}).plugin.has_extension("shoal.render/1")]
MANY = sorted(set(bundled()) - set(SINGLE))


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.filterwarnings("ignore:.*A Box observation space (min|max)imum value is -?infinity")
@pytest.mark.filterwarnings("ignore:.*For Box action spaces, we recommend using a symmetric")
@pytest.mark.filterwarnings("error")
def test_gymnasiums_checker_accepts_every_bundled_environment(name):
    env = gymnasium.make(f"shoal/{name}")
    check_env(env.unwrapped)
    env.close()


@pytest.mark.parametrize("name", SINGLE)
def test_single_env_behaves_as_environment_0_of_a_vector(name):
    env = gymnasium.make(f"shoal/{name}")
    with shoal.make_vec(name, 1, autoreset_mode="DISABLED") as envs:
        seen = [env.reset(seed=3)[0], envs.reset(seed=3)[0][0]]
        assert np.array_equal(*seen)
        env.action_space.seed(5)
        for _ in range(60):
            action = env.action_space.sample()
            one, many = env.step(action), envs.step(np.asarray(action)[None])
            for mine, theirs in zip(one[:4], many[:4], strict=True):
                assert np.array_equal(mine, theirs[0])
            assert [type(value) for value in one[1:4]] == [float, bool, bool]
            if one[2] or one[3]:
                assert np.array_equal(env.reset(seed=4)[0], envs.reset(seed=4)[0][0])
    env.close()


def test_step_limit_is_applied_once_and_can_be_changed():
    def truncated_at(**keywords):
        env = gymnasium.make("shoal/Pendulum-v1", **keywords)
        wrappers, outer = 0, env
        while outer is not env.unwrapped:
            wrappers += isinstance(outer, TimeLimit)
            outer = outer.env
        env.reset(seed=0)
        truncated = [env.step(np.zeros(1, np.float32))[3] for _ in range(300)]
        env.close()
        return wrappers, truncated.index(True) + 1 if any(truncated) else None

    assert truncated_at() == (1, 200)
    assert truncated_at(max_episode_steps=250) == (1, 250)
    assert truncated_at(max_episode_steps=-1) == (0, None)


def test_returned_arrays_do_not_change():
    env = gymnasium.make("shoal/CartPole-v1")
    kept = [env.reset(seed=0)[0]]
    copies = [kept[0].copy()]
    for _ in range(100):
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        kept.append(observation), copies.append(observation.copy())
        if terminated or truncated:
            env.reset()
    env.close()
    assert np.array_equal(kept, copies)


def test_options_are_keyword_arguments_and_wrong_ones_are_named():
    with pytest.raises(TypeError, match="has no option 'sise'; it has"):
        gymnasium.make("shoal/Squared-v0", sise=3)
    option, value = next(iter(load(bundled()["Squared-v0"], {}).options.items()))
    env = gymnasium.make("shoal/Squared-v0", **{option: value})
    with pytest.raises(ValueError, match="takes no options, got"):
        env.reset(options={"level": 3})
    env.close()
    env.close()


@pytest.mark.parametrize("name", DRAWN)
def test_render_returns_an_array(name):
    env = gymnasium.make(f"shoal/{name}", render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().dtype == np.uint8 and env.render().ndim == 3
    env.close()
    env = gymnasium.make(f"shoal/{name}", render_mode="rgb_array_list")
    assert isinstance(env, RenderCollection)
    env.reset(seed=0)
    assert len(env.render()) == 1
    env.close()


@pytest.mark.parametrize("name", MANY)
def test_an_environment_of_several_agents_says_what_to_use(name):
    with pytest.raises(gymnasium.error.Error, match=r"agents per environment.*use shoal\.make_vec"):
        gymnasium.make(f"shoal/{name}")


def test_an_action_that_does_not_fit_is_refused():
    env = gymnasium.make("shoal/CartPole-v1", disable_env_checker=True)
    env.reset(seed=0)
    for action, error in ((2, ValueError), ([0, 1], ValueError), (0.5, TypeError), (None, TypeError)):
        with pytest.raises(error) as raised:
            env.step(action)
        assert str(raised.value).startswith(f"action {action!r} is not in Discrete(2); nothing was stepped.")
        assert "row" not in str(raised.value) and "check=" not in str(raised.value)
    env.close()


def test_a_step_after_the_end_says_to_call_reset():
    env = gymnasium.make("shoal/CartPole-v1", disable_env_checker=True).unwrapped
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"call reset\(\) before the next step"):
        env.step(0)
    env.reset(seed=0)
    while not any(env.step(0)[2:4]):
        pass
    with pytest.raises(gymnasium.error.ResetNeeded) as raised:
        env.step(0)
    assert str(raised.value) == "no episode is running: call reset() before the next step"
    env.reset()
    env.step(0)
    env.close()


def test_single_env_runs_in_worker_processes_and_its_spec_is_picklable():
    spec = pickle.loads(pickle.dumps(gymnasium.spec("shoal/Squared-v0")))
    gymnasium.make(spec).close()
    function = lambda: gymnasium.make("shoal/CartPole-v1")  # noqa: E731
    with ProcessVectorEnv([function] * 2) as envs, shoal.make_vec("CartPole-v1", 2) as expected:
        assert np.array_equal(envs.reset(seed=0)[0], expected.reset(seed=0)[0])
