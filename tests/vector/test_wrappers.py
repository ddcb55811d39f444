"""Gymnasium's vector wrappers give the same results over Shoal's environments as over Gymnasium's."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as wrappers

import shoal

BACKENDS = {
    "native": {},
    "C in workers": {"backend": "process", "num_workers": 2},
    "Python in workers": {"num_workers": 2},
}
WRAPPERS = {
    "RecordEpisodeStatistics": lambda env: wrappers.RecordEpisodeStatistics(env),
    "NormalizeObservation": lambda env: wrappers.NormalizeObservation(env),
    "NormalizeReward": lambda env: wrappers.NormalizeReward(env, gamma=0.9),
    "ClipReward": lambda env: wrappers.ClipReward(env, -2.0, -1.0),
    "TransformReward": lambda env: wrappers.TransformReward(env, lambda reward: 3 * reward),
    "VectorizeTransformReward": lambda env: wrappers.VectorizeTransformReward(
        env, gymnasium.wrappers.TransformReward, func=lambda reward: reward + 1
    ),
    "RescaleAction": lambda env: wrappers.RescaleAction(env, -1.0, 1.0),
    "ClipAction": lambda env: wrappers.ClipAction(env),
    "TransformAction": lambda env: wrappers.TransformAction(env, lambda action: action / 2),
    "VectorizeTransformAction": lambda env: wrappers.VectorizeTransformAction(
        env, gymnasium.wrappers.RescaleAction, min_action=-1.0, max_action=1.0
    ),
    "TransformObservation": lambda env: wrappers.TransformObservation(env, lambda seen: seen * 2),
    "VectorizeTransformObservation": lambda env: wrappers.VectorizeTransformObservation(
        env, gymnasium.wrappers.ReshapeObservation, shape=(1, 3)
    ),
    "ReshapeObservation": lambda env: wrappers.ReshapeObservation(env, (3, 1)),
    "RescaleObservation": lambda env: wrappers.RescaleObservation(env, -1.0, 1.0),
    "DtypeObservation": lambda env: wrappers.DtypeObservation(env, np.float64),
    "FlattenObservation": lambda env: wrappers.FlattenObservation(env),
    "DictInfoToList": lambda env: wrappers.DictInfoToList(wrappers.RecordEpisodeStatistics(env)),
    "several": lambda env: wrappers.NormalizeObservation(
        wrappers.ClipReward(wrappers.RecordEpisodeStatistics(wrappers.RescaleAction(env, -1.0, 1.0)), -5, 5)
    ),
}


def pendulums(backend, mode):
    options = dict(BACKENDS[backend], autoreset_mode=mode)
    if backend == "Python in workers":
        return shoal.make_vec(pendulum, 3, **options)
    return shoal.make_vec("Pendulum-v1", 3, max_episode_steps=9, **options)


def pendulum():
    return gymnasium.make("Pendulum-v1", max_episode_steps=9)


def run(env, steps=30):
    """Everything that comes out of a wrapped vector of pendulums."""
    log = [env.reset(seed=3)]
    rng = np.random.default_rng(0)
    for _ in range(steps):
        log.append(env.step(rng.uniform(-1, 1, (3, 1)).astype(np.float32)))
    log.append((str(env.single_observation_space), str(env.single_action_space)))
    return log


def assert_close(found, expected):
    assert isinstance(found, dict) == isinstance(expected, dict)
    if isinstance(expected, dict):
        for timed in ("t", "_t"):  # seconds
            assert (timed in found) == (timed in expected)
        for key in expected.keys() - {"t"} - ({"final_info"} if expected.get("final_info") == {} else set()):
            assert_close(found[key], expected[key])
        assert set(found) == set(expected)
    elif isinstance(expected, (tuple, list)):
        for pair in zip(found, expected, strict=True):
            assert_close(*pair)
    elif isinstance(expected, np.ndarray) and expected.dtype == object:
        for pair in zip(found, expected, strict=True):
            assert_close(*pair)
    elif expected is None or isinstance(expected, str):
        assert found == expected
    else:
        assert np.asarray(found).dtype == np.asarray(expected).dtype
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def outcome(make, wrap, act):
    """What `act` gives on wrapped environments, or Gymnasium's refusal to wrap them."""
    env = make()
    try:
        return act(wrap(env))
    except ValueError as error:
        return str(error)
    finally:
        env.close()


# Gymnasium's own, on Gymnasium's own environments too.
@pytest.mark.filterwarnings("ignore:.*precision lowered", "ignore:overflow encountered in cast")
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda one: one.name)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", WRAPPERS)
def test_wrapper_gives_the_same_results(name, backend, mode):
    expected = outcome(lambda: SyncVectorEnv([pendulum] * 3, autoreset_mode=mode), WRAPPERS[name], run)
    found = outcome(lambda: pendulums(backend, mode), WRAPPERS[name], run)
    if isinstance(expected, str):  # wrappers of observations, which know nothing of final ones
        assert mode == AutoresetMode.SAME_STEP and "NEXT_STEP or DISABLED" in expected
    assert_close(found, expected)


class Pair(gymnasium.Env):
    observation_space = Dict({"seen": Box(-1, 1, (2,), np.float32), "hidden": Discrete(9)})
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        seen = {"seen": np.full(2, action, np.float32), "hidden": np.int64(3)}
        return seen, 1.0, False, False, {}


def test_dicts_are_filtered():
    with shoal.make_vec(Pair, 2, num_workers=1) as envs:
        env = wrappers.FilterObservation(envs, ["seen"])
        env.reset(seed=0)
        seen = env.step(np.array([0, 1]))[0]
    assert list(seen) == ["seen"] and seen["seen"].tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize("options", [{}, {"backend": "process", "num_workers": 2}], ids=["native", "workers"])
def test_pictures_are_transformed(options):
    with shoal.make_vec("Pixels-v0", 2, **options) as envs:
        env = wrappers.TransformObservation(envs, lambda seen: 255 - seen)
        first = env.reset(seed=0)[0].copy()
        with shoal.make_vec("Pixels-v0", 2) as plain:
            np.testing.assert_array_equal(255 - first, plain.reset(seed=0)[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrapper_does_not_change_leased_arrays(backend):
    with pendulums(backend, "NEXT_STEP") as envs:
        env = wrappers.NormalizeReward(wrappers.NormalizeObservation(envs))
        env.reset(seed=3)
        kept = [env.step(np.zeros((3, 1), np.float32))[:2] for _ in range(12)]
        copies = [tuple(part.copy() for part in one) for one in kept]
        for _ in range(12):
            env.step(np.ones((3, 1), np.float32))
        assert_close(kept, copies)


@pytest.mark.parametrize(("name", "options"), [("Snake-v0", {"agents": 1}), ("CartPole-v1", {})])
def test_episodes_are_filmed(name, options, tmp_path):
    pytest.importorskip("moviepy", reason="needs moviepy: make torch")
    with shoal.make_vec(name, 2, render_mode="rgb_array", **options) as envs:
        env = wrappers.RecordVideo(
            envs, str(tmp_path / "films"), video_length=5, step_trigger=lambda step: step == 0
        )
        env.reset(seed=0)
        for _ in range(8):
            env.step(np.zeros(envs.num_envs, np.int64))
        env.close()
    assert env.frames_per_sec == envs.metadata["render_fps"] == {"Snake-v0": 10, "CartPole-v1": 50}[name]
    assert [path.suffix for path in (tmp_path / "films").iterdir() if path.suffix == ".mp4"] == [".mp4"]


def test_an_episode_of_one_environment_is_filmed(tmp_path):
    pytest.importorskip("moviepy", reason="needs moviepy: make torch")
    env = gymnasium.make("shoal/CartPole-v1", render_mode="rgb_array")
    env = gymnasium.wrappers.RecordVideo(env, str(tmp_path / "films"), episode_trigger=lambda number: True)
    env.reset(seed=0)
    for _ in range(8):
        env.step(1)
    assert len(env.recorded_frames) == 9 and env.recorded_frames[0].shape == (400, 600, 3)
    env.close()
    assert [path.suffix for path in (tmp_path / "films").iterdir() if path.suffix == ".mp4"] == [".mp4"]


def test_torch_gets_tensors():
    torch = pytest.importorskip("torch", reason="needs torch: make torch")
    pytest.importorskip("array_api_compat", reason="needs array-api-compat: make torch")
    with shoal.make_vec("CartPole-v1", 2) as envs:
        env = wrappers.NumpyToTorch(envs)
        seen, _ = env.reset(seed=0)
        results = env.step(torch.zeros(2, dtype=torch.int64))
        assert all(isinstance(one, torch.Tensor) for one in (seen, *results[:4]))
