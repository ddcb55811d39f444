"""Tests of the learner: its formulas against direct implementations of them, and that it learns."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

import shoal
from shoal.errors import ShoalError
from shoal.learner import Learner, Settings, ppo
from shoal.learner.model import Categorical, Gaussian, Model, Network
from shoal.learner.ppo import Adam, Batch, compute_advantages, differentiate

# -- gradients ---------------------------------------------------------------------------------------


def batch_for(head, rows, rng):
    """Returns rows with good and bad actions, ratios inside and outside the clip range, and weights of 0."""
    if isinstance(head, Categorical):
        samples = rng.integers(0, head.outputs, rows) + head.start
    else:
        samples = rng.normal(size=(rows, head.outputs))
    return Batch(
        rng.normal(size=(rows, 3)),
        samples,
        rng.normal(size=rows) * 0.5 - 1.2,
        rng.normal(size=rows),
        rng.normal(size=rows),
        rng.random(rows) * (rng.random(rows) > 0.2) / rows,
    )


HEADS = {
    "discrete": lambda: Categorical(4, start=2),
    "gaussian": lambda: Gaussian(np.array([-2.0, -1.0]), np.array([2.0, 3.0])),
}
PARTS = {
    "all": {},
    "policy": {"value": 0.0, "entropy": 0.0},
    "value": {"clip": 0.0, "entropy": 0.0},
    "entropy": {"value": 0.0, "clip": 0.0, "entropy": 1.0},
}


@pytest.mark.parametrize("rows", [13, 128], ids=["one block", "two blocks"])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("head", HEADS)
def test_gradient_matches_finite_differences(head, part, rows):
    rng = np.random.default_rng(3)
    model = Model(3, HEADS[head](), 5, rng, np.float64)
    model.weights += rng.normal(size=len(model.weights)) * 0.3
    batch = batch_for(model.head, rows, rng)
    settings = Settings(**{"entropy": 0.1, **PARTS[part]})
    differentiate(model, batch, settings)
    exact, approximate = model.gradient.copy(), np.zeros(len(model.gradient))
    for i in range(len(approximate)):
        weight = model.weights[i]
        losses = []
        for offset in (1e-6, -1e-6):
            model.weights[i] = weight + offset
            losses.append(differentiate(model, batch, settings))
        model.weights[i] = weight
        approximate[i] = (losses[0] - losses[1]) / 2e-6
    assert np.abs(exact).max() > 1e-3
    np.testing.assert_allclose(exact, approximate, rtol=1e-5, atol=1e-8)


def test_loss_matches_the_ppo_formula():
    rng = np.random.default_rng(5)
    model = Model(3, Categorical(4), 5, rng, np.float64)
    model.weights += rng.normal(size=len(model.weights)) * 0.3
    batch, settings = batch_for(model.head, 40, rng), Settings(entropy=0.1)
    expected, sides = 0.0, set()
    for row in range(40):
        observation = batch.observations[row : row + 1]
        logits, value = model.actor.forward(observation)[0], float(model.critic.forward(observation)[0, 0])
        p = np.exp(logits) / np.exp(logits).sum()
        ratio = p[batch.samples[row]] / np.exp(batch.old_log_probs[row])
        clipped = min(max(ratio, 0.8), 1.2)
        sides.add(np.sign(ratio - clipped))
        objective = min(ratio * batch.advantages[row], clipped * batch.advantages[row])
        entropy = -sum(p * np.log(p))
        loss = -objective - 0.1 * entropy + 0.5 * (value - batch.returns[row]) ** 2
        expected += batch.weights[row] * loss
    assert sides == {-1, 0, 1}
    assert differentiate(model, batch, settings) == pytest.approx(expected, rel=1e-12)


def test_rows_with_weight_0_do_not_change_loss_or_gradient():
    rng = np.random.default_rng(6)
    model = Model(3, Categorical(4), 5, rng, np.float64)
    batch = batch_for(model.head, 40, rng)
    before = differentiate(model, batch, Settings()), model.gradient.copy()
    batch.observations[batch.weights == 0] = 7.0
    batch.advantages[batch.weights == 0] = 99.0
    batch.returns[batch.weights == 0] = -99.0
    assert (batch.weights == 0).sum() > 3
    assert differentiate(model, batch, Settings()) == before[0]
    np.testing.assert_allclose(model.gradient, before[1], rtol=0, atol=1e-15)


def test_adam_converges_with_steps_no_longer_than_its_learning_rate():
    weights, adam, places = np.array([3.0, -2.0], np.float32), Adam(2), []
    for _ in range(400):
        places.append(weights.copy())
        gradient = 2 * weights * np.float32(1e4)
        adam.step(weights, gradient, 0.05, 0.5)
        assert np.linalg.norm(gradient) < 0.501  # it was scaled down
    assert np.abs(np.diff(places, axis=0)).max() < 0.055  # however long the gradient
    assert np.abs(weights).max() < 0.05


def test_initial_weights_are_orthogonal():
    network = Network([6, 4, 8], 0.5, np.random.default_rng(0))
    weights, gradient = np.zeros((2, network.size))
    network.bind(weights, gradient)
    first, second = weights[:24].reshape(6, 4), weights[28:60].reshape(4, 8)
    np.testing.assert_allclose(first.T @ first, 2 * np.eye(4), atol=1e-12)
    np.testing.assert_allclose(second @ second.T, 0.25 * np.eye(4), atol=1e-12)


# -- actions -----------------------------------------------------------------------------------------


def test_discrete_actions_are_sampled_with_their_probabilities():
    head, rng = Categorical(3, start=5), np.random.default_rng(1)
    logits = np.tile(np.log(np.array([0.2, 0.5, 0.3], np.float32)) + 40, (60_000, 1))
    samples = np.zeros(60_000, np.int64)
    assert head.sample(logits, rng, samples) is samples
    np.testing.assert_allclose(np.bincount(samples, minlength=8)[5:] / 60_000, [0.2, 0.5, 0.3], atol=0.01)


def test_gaussian_samples_are_around_the_mean_and_actions_are_clipped_to_the_box():
    head, rng = Gaussian(np.float32([-4, -np.inf]), np.float32([8, np.inf])), np.random.default_rng(1)
    head.bind(np.zeros(2, np.float32), np.zeros(2, np.float32))
    samples = np.zeros((50_000, 2), np.float32)
    actions = head.sample(np.tile(np.float32([0.5, 9.0]), (50_000, 1)), rng, samples)
    np.testing.assert_allclose(samples.mean(0), [0.5, 9.0], atol=0.02)
    np.testing.assert_allclose(samples.std(0), np.exp(-0.5), atol=0.02)
    assert actions.dtype == np.float32 and actions[:, 0].min() == -4 and actions[:, 0].max() == 8
    np.testing.assert_allclose(actions[:, 0], (2 + 6 * samples[:, 0]).clip(-4, 8), rtol=1e-5)
    np.testing.assert_array_equal(actions[:, 1], samples[:, 1])


# -- advantages, resets, episodes --------------------------------------------------------------------


def test_advantages_match_a_direct_sum_over_each_episode():
    """The advantage of a step is the discounted sum of the deltas until its episode ends."""
    rng = np.random.default_rng(2)
    rewards, values = rng.normal(size=(20, 5)), rng.normal(size=(21, 5))
    terminated, truncated = rng.random((20, 5)) < 0.1, rng.random((20, 5)) < 0.1
    found = compute_advantages(rewards, values, terminated, truncated, 0.9, 0.7)
    for env in range(5):
        for t in range(20):
            total, weight = 0.0, 1.0
            for k in range(t, 20):
                after = 0.0 if terminated[k, env] else values[k + 1, env]
                total += weight * (rewards[k, env] + 0.9 * after - values[k, env])
                weight *= 0.9 * 0.7
                if terminated[k, env] or truncated[k, env]:
                    break
            assert found[t, env] == pytest.approx(total, abs=1e-12)


def test_truncated_episode_is_bootstrapped_from_its_last_observation():
    rewards, values = np.array([[1.0], [1.0], [0.0]]), np.array([[2.0], [3.0], [50.0], [7.0]])
    yes, no = np.array([[False], [True], [False]]), np.zeros((3, 1), np.bool_)
    cut, ended = (
        compute_advantages(rewards, values, *flags, 0.5, 1.0)[:, 0] for flags in ((no, yes), (yes, no))
    )
    assert cut[1] == 1 + 0.5 * 50 - 3 and ended[1] == 1 - 3
    assert cut[0] == (1 + 0.5 * 3 - 2) + 0.5 * cut[1]  # the row after it does not count


class Clock(gymnasium.Env):
    """Episodes of 5 steps, truncated or terminated; the observation is the number of steps in the episode."""

    observation_space, action_space = Box(0, 9, (1,), np.float64), Discrete(2)

    def __init__(self, ends):
        self.ends = ends

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.array([0.0]), {}

    def step(self, action):
        self.t += 1
        last = self.t == 5
        return np.array([float(self.t)]), 2.0, last and self.ends, last and not self.ends, {}


def clock(ends, num_envs=3, length=8):
    envs = shoal.make_vec(lambda: Clock(ends), num_envs, num_workers=1)
    settings = Settings(rows=1, length=length, minibatch=num_envs * length, hidden=8)
    return envs, Learner(envs, settings=settings)


@pytest.mark.parametrize("ends", [True, False], ids=["terminated", "truncated"])
def test_steps_that_reset_have_weight_0_also_across_rollouts(ends):
    envs, learner = clock(ends, length=5)
    with envs:
        learner.collect()
        batch = learner._build_batch(learner.rollout.observations.reshape(-1, 1).astype(np.float32))
        assert batch.weights.all()
        learner.collect()  # its first step resets, because of the last step of the rollout before
        weights = learner._build_batch(learner.rollout.observations.reshape(-1, 1).astype(np.float32)).weights
        assert weights.reshape(5, 3)[:, 0].tolist() == [0, 1, 1, 1, 1]
        assert learner.rollout.observations[:, 0, 0].tolist() == [5, 0, 1, 2, 3, 4]
        learner.collect()
        weights = learner._build_batch(learner.rollout.observations.reshape(-1, 1).astype(np.float32)).weights
        assert weights.reshape(5, 3)[:, 2].tolist() == [1, 0, 1, 1, 1]
        assert learner.steps == 3 * (5 + 4 + 4)
        assert list(learner.returns) == [10.0] * 6 and list(learner.lengths) == [5] * 6
        assert learner.episodes == 6


@pytest.mark.parametrize("ends", [True, False], ids=["terminated", "truncated"])
def test_returns_at_the_end_of_an_episode(ends):
    envs, learner = clock(ends)
    with envs:
        learner.collect()
        observations = learner.rollout.observations.reshape(-1, 1).astype(np.float32)
        values = learner.model.critic.forward(observations).reshape(9, 3)
        returns = learner._build_batch(observations).returns.reshape(8, 3)
        assert learner.rollout.observations[5, 0] == 5  # the last of the episode, not the first of the next
        after = 0 if ends else learner.settings.gamma * values[5]
        np.testing.assert_allclose(returns[4], 2 + after, rtol=1e-5)


def test_minibatches_are_views_of_the_rollout():
    with shoal.make_vec("CartPole-v1", 64) as envs:
        learner = Learner(envs)
        learner.collect()
        rollout = learner.rollout
        batch = learner._build_batch(rollout.observations.reshape(-1, 4)).select_rows(slice(256, 512))
        assert np.shares_memory(batch.observations, rollout.observations)
        assert np.shares_memory(batch.samples, rollout.actions)
        assert batch.weights.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("num_envs", "length"), [(1, 2048), (7, 293), (64, 32), (100, 21), (1001, 8), (4000, 8)]
)
def test_minibatches_are_full_and_disjoint_and_leave_out_different_rows(num_envs, length, monkeypatch):
    used = []
    monkeypatch.setattr(ppo, "differentiate", lambda model, batch, settings: used.append(batch.observations))
    with shoal.make_vec("CartPole-v1", num_envs) as envs:
        learner = Learner(envs)
        assert learner.rollout.length == length
        learner.collect()
        learner.update()
        base = learner.rollout.observations.ctypes.data
    assert {len(rows) for rows in used} == {256}
    starts = np.array([(rows.ctypes.data - base) // 16 for rows in used]).reshape(8, -1)
    spare = length * num_envs % 256
    assert starts.shape[1] == length * num_envs // 256 and starts.min() >= 0
    assert starts.max() + 256 <= length * num_envs
    assert (np.diff(np.sort(starts, 1), axis=1) == 256).all()
    assert (len(set(starts.min(1))) > 1) == (spare > 0)  # where each epoch begins


# -- learning ----------------------------------------------------------------------------------------


def train(seed, env="CartPole-v1", updates=16, **options):
    with shoal.make_vec(env, 64, **options) as envs:
        learner = Learner(envs, seed)
        first = None
        for _ in range(updates):
            learner.collect()
            learner.update()
            if first is None and learner.episodes:
                first = np.mean(learner.returns)
        return first, np.mean(learner.returns), learner.model.weights


def test_learner_learns_cartpole_reproducibly():
    first, last, weights = train(0)
    assert first < 25 and last > 80  # at random the pole falls after 22 steps
    assert np.array_equal(train(0)[2], weights)
    assert not np.array_equal(train(1)[2], weights)


def test_learner_learns_continuous_actions():
    first, last, _ = train(0, "Pendulum-v1", 60)
    assert first < -1000 and last > -600


def test_worker_processes_give_the_same_weights():
    native, workers = train(1, updates=4), train(1, updates=4, backend="process", num_workers=2)
    assert np.array_equal(native[2], workers[2])


# -- rejected spaces ---------------------------------------------------------------------------------


class Fake:
    autoreset_mode, agents_per_env, num_envs = gymnasium.vector.AutoresetMode.NEXT_STEP, 1, 4
    single_observation_space, single_action_space = Box(-1, 1, (3,)), Discrete(2)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"single_observation_space": Box(0, 1, (2, 3))},
            r"a Box of shape \(n,\), found Box\(0.0, 1.0, \(2, 3\)",
        ),
        ({"single_observation_space": Discrete(9)}, r"found Discrete\(9\)"),
        (
            {"single_action_space": MultiDiscrete([2, 2])},
            r"Discrete\(n\) or .*found MultiDiscrete\(\[2 2\]\)",
        ),
        (
            {"single_action_space": Box(0, 5, (2,), np.int64)},
            r"a Box of floats .*found Box\(0, 5, \(2,\), int64",
        ),
        ({"agents_per_env": 4}, "one agent, found 4 agents"),
        ({"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}, "NEXT_STEP, found DISABLED"),
    ],
)
def test_unsupported_environments_are_rejected_with_a_message(changed, message):
    fake = Fake()
    for name, value in changed.items():
        setattr(fake, name, value)
    with pytest.raises(ShoalError, match=message):
        Learner(fake)
