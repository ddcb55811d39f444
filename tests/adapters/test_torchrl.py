"""TorchRL over Shoal: its own check of specs, and each row of a rollout beside the same environment alone."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from tests.adapters import needs, run_snippet
from tests.adapters.worlds import Fragile, Telling
from tests.vector.test_process_envs import logged

needs("torchrl")
torch = needs("torch")
torch.set_num_threads(1)  # or its threads wait for each other where cores are busy
Collector = needs("torchrl.collectors").Collector
check_env_specs = needs("torchrl.envs.utils").check_env_specs
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

from shoal.adapters.torchrl import ShoalEnv  # noqa: E402


class Every(gymnasium.Env):
    """Actions and observations of every kind that TorchRL has a word for."""

    action_space = Dict({"turn": MultiDiscrete([2, 3]), "keys": MultiBinary(4), "push": Box(-1, 1, (2,))})
    observation_space = Dict(
        {
            "deep": Dict({"at": Box(-np.inf, np.inf, (3,), np.float64)}),
            "keys": MultiBinary(4),
            "one": Discrete(9),
        }
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return {"deep": {"at": np.zeros(3)}, "keys": np.zeros(4, np.int8), "one": 0}, {}

    def step(self, action):
        self.steps += 1
        at = np.array([action["turn"][0], action["turn"][1], action["push"][0]], np.float64)
        seen = {"deep": {"at": at}, "keys": action["keys"], "one": self.steps}
        return seen, 1.0, self.steps == 4, False, {}


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("CartPole-v1", {}),
        ("Pendulum-v1", {"max_episode_steps": 3}),
        ("CartPole-v1", {"backend": "process", "num_workers": 2, "max_episode_steps": 3}),
        ("FrozenLake-v1", {"num_workers": 1}),
        (Telling, {"num_workers": 2}),
        (Every, {"num_workers": 1}),
    ],
    ids=str,
)
def test_torchrls_check_of_specs_passes(env, options):
    env = ShoalEnv(env, 3, **options)
    check_env_specs(env)
    env.close()


def assert_rows_are_the_environments_own(data, make, seed):
    """Of TorchRL's data, [environments, time], each row against the environment itself, alone."""
    ends = 0
    for row in range(data.shape[0]):
        alone = make()
        seen, _ = alone.reset(seed=seed + row)
        for t in range(data.shape[1]):
            one = data[row, t]
            np.testing.assert_allclose(one["observation"], seen, atol=1e-6)
            seen, reward, terminated, truncated, _ = alone.step(one["action"].numpy())
            np.testing.assert_allclose(one["next", "observation"], seen, atol=1e-6)  # the last one too
            assert one["next", "reward"].item() == pytest.approx(reward)
            flags = [one["next", name].item() for name in ("terminated", "truncated", "done")]
            assert flags == [terminated, truncated, terminated or truncated]
            if terminated or truncated:
                ends += 1
                seen, _ = alone.reset()
    return ends


def cartpole():
    return gymnasium.make("CartPole-v1", max_episode_steps=18)


BACKENDS = [
    ("CartPole-v1", {"max_episode_steps": 18}),
    ("CartPole-v1", {"max_episode_steps": 18, "backend": "process", "num_workers": 2}),
    (cartpole, {"num_workers": 2}),
]


@pytest.mark.parametrize(("env", "options"), BACKENDS, ids=["native", "C in workers", "Python in workers"])
def test_a_rollout_is_what_happened(env, options):
    env = ShoalEnv(env, 3, **options)
    env.set_seed(7)
    data = env.rollout(50, break_when_any_done=False)
    assert assert_rows_are_the_environments_own(data, cartpole, 7) >= 6
    again = env.rollout(5, break_when_any_done=False)
    assert not torch.equal(again["observation"][:, 0], data["observation"][:, 0])
    env.set_seed(7)
    assert torch.equal(env.reset()["observation"], data["observation"][:, 0])
    env.close()


@pytest.mark.parametrize(("env", "options"), BACKENDS[::2], ids=["native", "Python in workers"])
def test_a_collector_collects_what_happened(env, options):
    env = ShoalEnv(env, 3, **options)
    env.set_seed(3)
    collector = Collector(env, None, frames_per_batch=60, total_frames=180)
    data = torch.cat([batch.clone() for batch in collector], 1)
    assert data.shape == (3, 60)
    assert assert_rows_are_the_environments_own(data, cartpole, 3) >= 6
    assert len(data["collector", "traj_ids"].unique()) >= 6
    collector.shutdown()
    if not env.is_closed:
        env.close()


def test_an_episode_that_a_fault_ended_is_never_bootstrapped_from():
    env = ShoalEnv(Fragile, 2, num_workers=2, on_fault="restart")
    data = env.reset().set("action", torch.tensor([0, 1]))
    after = env.step(data)["next"]
    assert after["terminated"].squeeze().tolist() == [False, True] and not after["truncated"].any()
    assert after["reward"].squeeze().tolist() == [1, 0]
    env.close()


def test_nothing_goes_on_after_an_end_without_a_reset():
    env = ShoalEnv("CartPole-v1", 2, max_episode_steps=1)
    ended = env.step(env.reset().set("action", torch.tensor([0, 1])))["next"]
    assert ended["done"].all()
    with logged(), pytest.raises(gymnasium.error.ResetNeeded):
        env.step(ended.set("action", torch.tensor([0, 1])))
    env.close()


def test_what_torchrl_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="several agents, which are reset together"):
        ShoalEnv("Snake-v0", 2)
    with pytest.raises(ValueError, match='use "leased"'):
        ShoalEnv("CartPole-v1", 2, buffers="live")
    with pytest.raises(TypeError, match="autoreset_mode"):
        ShoalEnv("CartPole-v1", 2, autoreset_mode="NEXT_STEP")
    with pytest.raises(TypeError, match=r"no spec for Tuple.*; expected Box"):
        ShoalEnv(Odd, 1, num_workers=1)


class Odd(Every):
    observation_space = Tuple([Discrete(2)])


def test_the_page_tells_the_truth(tmp_path):
    run_snippet("shoal.adapters.torchrl", tmp_path)
