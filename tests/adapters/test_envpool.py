"""EnvPool's interface: the same shapes, types and reset semantics as EnvPool's, the numbers of Gymnasium."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import shoal
import shoal.adapters.envpool as ours
from shoal.native.plugin import bundled
from tests.adapters import needs

BACKENDS = {"native": {}, "workers": {"backend": "process", "num_threads": 2}}
backends = pytest.mark.parametrize("options", BACKENDS.values(), ids=BACKENDS)


def reference(num_envs, seed, limit):
    envs = SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1", max_episode_steps=limit)] * num_envs,
        autoreset_mode=AutoresetMode.NEXT_STEP,
    )
    return envs, envs.reset(seed=seed)[0]


@backends
def test_a_script_with_step_sees_gymnasiums_episodes(options):
    env = ours.make(
        "CartPole-v1", env_type="gym", num_envs=3, seed=np.int64(5), max_episode_steps=15, **options
    )
    expected, first = reference(3, 5, 15)
    observations, info = env.reset()
    np.testing.assert_array_equal(observations, first)
    assert info["env_id"].tolist() == [0, 1, 2] and info["elapsed_step"].tolist() == [0, 0, 0]
    rng = np.random.default_rng(0)
    elapsed, ended = np.zeros(3, int), np.zeros(3, bool)
    order = np.array([2, 0, 1])
    for step in range(100):
        actions = rng.integers(0, 2, 3)
        if step % 2:  # the same, said in another order
            results = env.step(actions[order], order)
        else:
            results = env.step(actions)
        observations, rewards, terminated, truncated, _ = expected.step(actions)
        elapsed = np.where(ended, 0, elapsed + 1)
        ended = terminated | truncated
        np.testing.assert_allclose(results[0], observations, atol=1e-6)
        np.testing.assert_array_equal(results[1], rewards)
        np.testing.assert_array_equal(results[2], terminated)
        np.testing.assert_array_equal(results[3], truncated)
        assert results[4]["elapsed_step"].tolist() == elapsed.tolist()
    assert env.envs.stats["episodes"] > 10
    env.close()
    expected.close()


@pytest.mark.parametrize(("env_id", "options"), [("CartPole-v1", {}), ("FrozenLake-v1", {"num_threads": 2})])
def test_a_script_with_send_and_recv_sees_the_same_whatever_comes_first(env_id, options):
    env = ours.make_gymnasium(env_id, num_envs=8, batch_size=4, seed=5, **options)
    assert env.is_async
    alone = shoal.make_vec(env_id, 8)
    alone.reset(seed=5)
    expected = [alone.step(np.full(8, step % 2))[0] for step in range(20)]
    alone.close()
    env.async_reset()
    steps = np.zeros(8, int)
    while steps.min() <= 5 or steps.sum() < 96:  # a busy machine may let some environments wait for long
        observations, rewards, _, _, info = env.recv()
        ids = info["env_id"]
        assert len(ids) == 4 and info["players"]["env_id"] is ids
        for row, one in enumerate(ids):
            if 0 < steps[one] <= 20:
                np.testing.assert_array_equal(observations[row], expected[steps[one] - 1][one])
        actions = steps[ids] % 2
        env.send({"action": actions, "env_id": ids}) if steps[0] % 2 else env.send(actions, ids)
        steps[ids] += 1
    with pytest.raises(shoal.ShoalError, match="use reset"):
        env.reset(np.array([1]))
    env.close()


@backends
def test_some_environments_begin_again_and_the_others_go_on(options):
    env = ours.make_gym("CartPole-v1", num_envs=3, seed=[7, 8, 9], **options)
    with pytest.raises(shoal.ShoalError, match="use reset"):
        env.reset(np.array([1]))
    env.reset()
    for _ in range(3):
        before = env.step(np.ones(3, np.int64))
    observations, info = env.reset(np.array([2, 0]))
    assert observations.shape == (2, 4) and (np.abs(observations) <= 0.05).all()
    assert info["env_id"].tolist() == [2, 0] and info["elapsed_step"].tolist() == [0, 0]
    after = env.step(np.ones(3, np.int64))
    assert after[4]["elapsed_step"].tolist() == [1, 4, 1]
    alone = gymnasium.make("CartPole-v1")
    alone.reset(seed=8)
    states = [alone.step(1)[0] for _ in range(4)]
    np.testing.assert_allclose(before[0][1], states[2], atol=1e-6)
    np.testing.assert_allclose(after[0][1], states[3], atol=1e-6)
    env.close()


def test_refusals_say_what_to_do():
    with pytest.raises(ValueError, match='"gym" or "gymnasium"'):
        ours.make("CartPole-v1", "dm")
    with pytest.raises(ValueError, match="several agents"):
        ours.make("Snake-v0", "gym", num_envs=2)
    with pytest.raises(TypeError, match="autoreset_mode"):
        ours.make("CartPole-v1", "gym", autoreset_mode="SAME_STEP")
    env = ours.make("CartPole-v1", "gym", num_envs=3)
    with pytest.raises(shoal.ShoalError, match=r"async_reset\(\) or send\(\) first"):
        env.recv()
    env.async_reset()
    with pytest.raises(shoal.ShoalError, match=r"recv\(\) them first"):
        env.send(np.zeros(3, np.int64))
    env.recv()
    for ids in ([0, 1], [0, 1, 1], [0, 1, 3]):
        with pytest.raises(shoal.ShoalError, match="make them with batch_size="):
            env.step(np.zeros(len(ids), np.int64), np.array(ids))
    with pytest.warns(UserWarning, match="seeded by make"):
        env.reset(seed=3)
    env.close()


def test_pictures_are_stacked():
    gymnasium.register("Drawn-v0", entry_point=Drawn)
    try:
        env = ours.make("Drawn-v0", "gym", num_envs=3, num_threads=1, render_mode="rgb_array")
        env.reset()
        assert env.render().shape == (1, 4, 5, 3) and env.render([2, 0]).shape == (2, 4, 5, 3)
        env.close()
    finally:
        del gymnasium.registry["Drawn-v0"]


class Drawn(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 1, 0.0, False, False, {}

    def render(self):
        return np.zeros((4, 5, 3), np.uint8)


@pytest.mark.parametrize("options", [{}, {"batch_size": 1}])
@pytest.mark.parametrize("task", ["CartPole-v1", "FrozenLake-v1"])
def test_it_is_printed_with_its_settings(task, options):
    env = ours.make(task, env_type="gym", num_envs=2, **options)
    for text in (repr(env), str(env), f"{env}"):
        assert text.startswith(f"EnvPool({task!r}, max_episode_steps=") and "num_envs=2" in text
    env.close()


def test_every_listed_environment_of_ours_can_be_made():
    listed = ours.list_all_envs()
    assert "FrozenLake-v1" in listed and len(set(listed)) == len(listed)
    for task in set(listed) & set(bundled()):
        ours.make_gym(task).close()
    assert set(bundled()) - set(listed) == {"Reef-v0", "Snake-v0"}  # several agents


@pytest.mark.parametrize(
    ("task", "own"),
    [("CartPole-v1", "'precision'"), ("shoal/Squared-v0", "['size']"), ("FrozenLake-v1", "'map_name'")],
)
@pytest.mark.parametrize("option", ["frame_stack", "autoreset_mode"])
def test_an_unknown_option_is_refused_with_the_known_ones(task, own, option):
    with pytest.raises(TypeError) as error:
        ours.make_gym(task, num_envs=2, **{option: 4})
    assert f"{task} has no option {option!r}; its own options are" in str(error.value)
    assert own in str(error.value) and "'max_episode_steps'" in str(error.value)


@pytest.mark.parametrize(
    ("task", "option", "meant"),
    [
        ("CartPole-v1", "num_env", "num_envs"),
        ("CartPole-v1", "precison", "precision"),
        ("FrozenLake-v1", "mapname", "map_name"),
    ],
)
def test_an_unknown_option_suggests_the_nearest_known_one(task, option, meant):
    with pytest.raises(TypeError, match=rf"has no option {option!r}; .*; did you mean {meant!r}\?$"):
        ours.make_gym(task, **{option: 4})


@pytest.mark.parametrize(
    ("task", "batch_size"), [("CartPole-v1", 0), ("CartPole-v1", 1), ("FrozenLake-v1", 1)]
)
def test_a_step_before_a_reset_says_to_call_reset(task, batch_size):
    env = ours.make_gym(task, num_envs=2, batch_size=batch_size)
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"^call reset\(\) before step\(\)$"):
        env.step(np.zeros(2, np.int64))
    env.close()


def test_options_of_the_environment_and_of_make_vec_are_taken():
    env = ours.make_gym("FrozenLake-v1", num_envs=2, map_name="8x8", on_fault="restart")
    assert env.observation_space.n == 64
    env.close()


@pytest.mark.filterwarnings("ignore:.*precision lowered")
class TestBesideEnvPool:
    """The same script through both."""

    @pytest.fixture
    def theirs(self):
        return needs("envpool")

    @pytest.mark.parametrize("task", ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "Acrobot-v1"])
    def test_shapes_types_and_settings_agree(self, theirs, task):
        made = [library.make(task, env_type="gym", num_envs=4, seed=1) for library in (theirs, ours)]
        assert made[0].observation_space.shape == made[1].observation_space.shape
        assert made[0].action_space == made[1].action_space
        assert len(made[0]) == len(made[1]) == 4 and made[0].is_async == made[1].is_async
        for name in ("num_envs", "batch_size", "seed", "max_episode_steps", "reward_threshold"):
            if name in made[0].config:
                assert made[0].config[name] == made[1].config[name], name
                assert getattr(made[0].spec.config, name) == getattr(made[1].spec.config, name)
        for results in zip(*(one.reset() for one in made), strict=True):
            assert_alike(*results)
        action = np.stack([made[1].action_space.sample() for _ in range(4)])
        for results in zip(*(one.step(action) for one in made), strict=True):
            assert_alike(*results)
        for one in made:
            one.close()

    def test_both_are_printed_list_environments_and_refuse_unknown_options(self, theirs):
        for library in (theirs, ours):
            env = library.make_gym("CartPole-v1", num_envs=2)
            assert "num_envs=2" in str(env)
            env.close()
            listed = library.list_all_envs()
            assert isinstance(listed, list) and "CartPole-v1" in listed
            with pytest.raises(Exception, match="no_such_option"):
                library.make_gym("CartPole-v1", num_envs=2, no_such_option=1)

    @pytest.mark.parametrize("batch_size", [4, 2])
    def test_episodes_end_and_begin_at_the_same_steps(self, theirs, batch_size):
        """A MountainCar that does nothing is cut off by its limit alone, whatever its generator drew."""
        logs = []
        for library in (theirs, ours):
            env = library.make_gymnasium(
                "MountainCar-v0", num_envs=4, batch_size=batch_size, seed=1, max_episode_steps=3
            )
            env.async_reset()
            log = [[] for _ in range(4)]
            for _ in range(12 * 4 // batch_size):
                _, rewards, terminated, truncated, info = env.recv()
                for row, one in enumerate(info["env_id"]):
                    flags = bool(terminated[row]), bool(truncated[row])
                    log[one].append((float(rewards[row]), *flags, int(info["elapsed_step"][row])))
                env.send(np.ones(batch_size, np.int64), info["env_id"])
            env.close()
            logs.append([one[:8] for one in log])
        assert min(map(len, logs[0])) == 8
        assert logs[0] == logs[1]


def assert_alike(theirs, ours):
    """The same kinds of arrays, nested in the same way; infos of single environments are their own."""
    if isinstance(theirs, dict):
        assert set(theirs) - {"state"} == set(ours)
        for key in ours:
            assert_alike(theirs[key], ours[key])
    else:
        assert (theirs.dtype, theirs.shape) == (ours.dtype, ours.shape)
