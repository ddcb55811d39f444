"""RLlib over Shoal: its EnvRunner's episodes are those of the environment alone, and PPO learns."""

import os

import gymnasium
import numpy as np
import pytest

from tests.adapters import needs, run_snippet
from tests.adapters.worlds import Target

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = needs("ray")
needs("torch").set_num_threads(1)  # or its threads wait for each other where cores are busy
PPOConfig = needs("ray.rllib.algorithms.ppo").PPOConfig
SingleAgentEnvRunner = needs("ray.rllib.env.single_agent_env_runner").SingleAgentEnvRunner
pytestmark = pytest.mark.filterwarnings("ignore")  # many, and none of ours

from shoal.adapters.rllib import ENV_RUNNERS, register  # noqa: E402


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    yield
    ray.shutdown()


def config(name, num_envs, **env_config):
    made = PPOConfig().environment(name, env_config=env_config).framework("torch")
    made = made.env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs, **ENV_RUNNERS)
    return made.learners(num_learners=0).debugging(seed=0)


def cartpole():
    return gymnasium.make("CartPole-v1", max_episode_steps=15)


@pytest.mark.parametrize(
    ("env", "options"),
    [("CartPole-v1", {"max_episode_steps": 15}), (cartpole, {"num_workers": 2})],
    ids=["native", "workers"],
)
def test_an_env_runners_episodes_are_the_environments_own(cluster, env, options):
    register("cartpole", env, **options)
    runner = SingleAgentEnvRunner(config=config("cartpole", 3), worker_index=0)
    assert type(runner.env.unwrapped).__module__.startswith("shoal.")
    episodes = runner.sample(num_timesteps=90, random_actions=True)
    assert sum(map(len, episodes)) >= 90
    ends = 0
    for episode in episodes:
        alone = cartpole()
        alone.reset(seed=0)
        seen = np.asarray(episode.get_observations())
        alone.unwrapped.state = seen[0].astype(np.float64)
        for t, action in enumerate(episode.get_actions()):
            expected, reward, terminated, _, _ = alone.step(int(action))
            np.testing.assert_allclose(seen[t + 1], expected, atol=1e-4)  # the last observation too
            assert episode.get_rewards(t) == reward
        assert len(seen) == len(episode) + 1 and (np.abs(seen[0]) <= 0.05).all()
        assert episode.is_terminated == terminated
        ends += episode.is_done
    assert ends >= 6
    runner.stop()


def test_ppo_learns(cluster):
    register("target", Target, num_workers=1)
    algorithm = (
        config("target", 8)
        .training(train_batch_size_per_learner=512, minibatch_size=128, num_epochs=6, lr=2e-3, gamma=0.0)
        .build_algo()
    )
    returns = [algorithm.train()["env_runners"]["episode_return_mean"] for _ in range(5)]
    algorithm.stop()
    assert returns[-1] > 1.5 * returns[0], returns


def test_refusals_say_what_to_do(cluster):
    register("Snake-v0")
    register("cartpole", "CartPole-v1")
    for name, env_config, message in (
        ("Snake-v0", {}, "several agents"),
        ("cartpole", {"on_fault": "restart"}, "restart_failed_sub_environments"),
        ("cartpole", {"buffers": "live"}, 'use "leased"'),
    ):
        with pytest.raises(ValueError, match=message):
            SingleAgentEnvRunner(config=config(name, 2, **env_config), worker_index=0)
    single = config("cartpole", 2).env_runners(gym_env_vectorize_mode="sync")
    with pytest.raises(ValueError, match='gym_env_vectorize_mode="vector_entry_point"'):
        SingleAgentEnvRunner(config=single, worker_index=0)


def test_the_page_tells_the_truth(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)  # and not one more cluster
    run_snippet("shoal.adapters.rllib", tmp_path)
