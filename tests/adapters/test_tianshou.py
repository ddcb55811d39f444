"""The adapter for Tianshou: its vector environment against DummyVectorEnv, its buffers against its own."""

import multiprocessing
import pickle

import gymnasium
import numpy as np
import pytest

from tests.adapters import needs, run_snippet

needs("tianshou")

import torch  # noqa: E402
from tianshou import data  # noqa: E402
from tianshou.algorithm import DQN, SAC  # noqa: E402
from tianshou.algorithm.algorithm_base import policy_within_training_step  # noqa: E402
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy  # noqa: E402
from tianshou.algorithm.modelfree.sac import SACPolicy  # noqa: E402
from tianshou.algorithm.optim import AdamOptimizerFactory  # noqa: E402
from tianshou.data import Batch, Collector  # noqa: E402
from tianshou.env import BaseVectorEnv, DummyVectorEnv  # noqa: E402
from tianshou.utils.net.common import Net  # noqa: E402
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic  # noqa: E402

import shoal  # noqa: E402
from shoal.adapters import tianshou as ours  # noqa: E402
from shoal.errors import SpaceError  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    """Threads of torch that wait for each other cost more than these small networks."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Counting(gymnasium.Env):
    """Observes how many steps the episode has, and how many episodes there were; ends after 3 to 5 steps."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, size=3):
        self.size, self.episodes = size, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.episodes = 0, self.episodes + 1
        self.limit = int(self.np_random.integers(3, 6))
        return self.observe(), {"episodes": self.episodes}

    def step(self, action):
        self.steps += 1
        return self.observe(), float(action), self.steps == self.limit, False, {"steps": self.steps}

    def observe(self):
        return np.array([self.steps, self.episodes], np.float32)


# -- the vector environment -------------------------------------------------------------------------------


def require_same_steps(mine, theirs, rng, rounds, actions=3):
    """Steps, part-steps and resets of both, with the same results."""
    assert len(mine) == len(theirs) and isinstance(mine, BaseVectorEnv)
    n = len(mine)
    mine.seed(7), theirs.seed(7)
    over = np.zeros(n, bool)
    for _ in range(rounds):
        going = np.flatnonzero(~over)
        ids = going if rng.random() < 0.5 else going[rng.random(len(going)) < 0.6]
        if len(ids):
            ids = rng.permutation(ids)
            act = rng.integers(actions, size=len(ids))
            found, expected = mine.step(act, ids), theirs.step(act, ids)
            np.testing.assert_allclose(found[0], expected[0], atol=1e-6)
            for a, b in zip(found[1:4], expected[1:4], strict=True):
                assert np.array_equal(a, b)
            assert [info["env_id"] for info in found[4]] == ids.tolist()
            over[ids] = found[2] | found[3]
        ended = np.flatnonzero(over)
        if len(ended) and rng.random() < 0.7:
            found, expected = mine.reset(ended), theirs.reset(ended)
            np.testing.assert_allclose(found[0], expected[0], atol=1e-6)
            assert len(found[1]) == len(ended) and isinstance(found[1][0], dict)
            over[ended] = False
    mine.close(), theirs.close()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_python_environments_step_as_in_dummy_vector_env(num_workers):
    mine = ours.make(Counting, 5, num_workers=num_workers)
    require_same_steps(mine, DummyVectorEnv([Counting] * 5), np.random.default_rng(0), 120)


@pytest.mark.parametrize("limit", [12, 500])
def test_c_environments_step_as_in_dummy_vector_env(limit):
    mine = ours.make("CartPole-v1", 5, max_episode_steps=limit)
    theirs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1", max_episode_steps=limit)] * 5)
    require_same_steps(mine, theirs, np.random.default_rng(1), 300, 2)


def test_an_environment_that_is_left_out_keeps_its_state_and_its_generator():
    for env in ("CartPole-v1", Counting):
        with_pause, without = (
            ours.make(env, 2, **({} if env == "CartPole-v1" else {"num_workers": 1})) for _ in "ab"
        )
        for one in (with_pause, without):
            one.seed(3)
        for _ in range(40):  # CartPole ends several times meanwhile
            results = with_pause.step(np.array([0]), [1])
            if results[2][0]:
                with_pause.reset([1])
        found, expected = with_pause.step(np.array([1]), 0), without.step(np.array([1, 0]))
        assert np.array_equal(found[0][0], expected[0][0])
        assert np.array_equal(with_pause.reset(0)[0][0], without.reset([0])[0][0])
        with_pause.close(), without.close()


def test_infos_and_attributes_are_those_of_each_environment():
    env = ours.make(Counting, 3, num_workers=1)
    observations, infos = env.reset()
    assert observations.shape == (3, 2) and [info["episodes"] for info in infos] == [1, 1, 1]
    assert [info["steps"] for info in env.step(np.array([1, 2]), [2, 0])[4]] == [1, 1]
    assert env.get_env_attr("size", 1) == [3]
    env.set_env_attr("size", 8, [0, 2])
    assert env.get_env_attr("size") == [8, 3, 8]
    assert [type(space) for space in env.action_space] == [gymnasium.spaces.Discrete] * 3
    assert env.action_space[0] is not env.action_space[1]
    env.close()
    assert env.is_closed
    env = ours.make("CartPole-v1", 2)
    with pytest.raises(AttributeError, match="in C have no attributes to set, asked for 'size'"):
        env.set_env_attr("size", 3)
    env.close()


def test_environments_and_arguments_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match='Tianshou needs autoreset_mode="DISABLED", got SAME_STEP'):
        ours.make("CartPole-v1", 2, autoreset_mode="SAME_STEP")
    with pytest.raises(ValueError, match="batch_size= is not for Tianshou"):
        ours.make("CartPole-v1", 2, batch_size=1)
    with pytest.raises(TypeError, match="got DummyVectorEnv"):
        ours.VectorEnv(DummyVectorEnv([Counting]))
    with shoal.make_vec("CartPole-v1", 2) as envs, pytest.raises(ValueError, match="not NEXT_STEP"):
        ours.VectorEnv(envs)
    with pytest.raises(ValueError, match="have 4 agents each"):
        ours.make("Snake-v0", 2, agents=4)
    env = ours.make("CartPole-v1", 3)
    with pytest.raises(shoal.ShoalError, match=r"environments \[0, 1, 2\] need a reset"):
        env.step(np.zeros(3, int))
    env.reset()
    with pytest.raises(ValueError, match="action must be an array"):
        env.step(None)
    with pytest.raises(ValueError, match=r"expected 2 actions, one for each id, found shape \(3,\)"):
        env.step(np.zeros(3, int), [0, 1])
    for bad in ([3], [-1], [1, 1], [], 0.5):
        with pytest.raises(ValueError, match="id"):
            env.step(np.zeros(1, int), bad)
    with pytest.raises(TypeError, match=r"seed and options, found \['seeds'\]"):
        env.reset(seeds=3)
    with pytest.raises(ValueError, match="expected 3 seeds, one for each environment, found 2"):
        env.seed([1, 2])
    env.close()


# -- buffers ----------------------------------------------------------------------------------------------


def random_batch(rng, n, kind="vector"):
    def observe():
        if kind == "dict":
            return Batch(near=rng.random((n, 2)), far=Batch(count=rng.integers(9, size=n)))
        return rng.random((n, 4, 5) if kind == "stacked" else (n, 3)).astype(np.float32)

    return Batch(
        obs=observe(),
        act=rng.integers(4, size=n),
        rew=rng.random(n),
        terminated=rng.random(n) < 0.1,
        truncated=rng.random(n) < 0.1,
        obs_next=observe(),
        info=Batch(env_id=np.arange(n)),
        policy=Batch(),
    )


def require_equal(found, expected):
    if isinstance(expected, Batch):
        assert set(found.get_keys()) == set(expected.get_keys())
        for key in expected.get_keys():
            require_equal(found[key], expected[key])
    else:
        assert found.dtype == expected.dtype and found.shape == expected.shape
        assert np.array_equal(found, expected)


def draw(buffer, seed, n=32):
    np.random.seed(seed)
    return buffer.sample(n)


OPTIONS = [
    {},
    {"stack_num": 3},
    {"ignore_obs_next": True},
    {"stack_num": 2, "ignore_obs_next": True, "sample_avail": True},
]


@pytest.mark.parametrize("observations", ["vector", "dict"])
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "stack", "no-next", "available"])
@pytest.mark.parametrize("name", ["VectorReplayBuffer", "PrioritizedVectorReplayBuffer"])
def test_batches_are_those_of_tianshou(name, options, observations):
    if name.startswith("Prioritized"):
        options = {**options, "alpha": 0.6, "beta": 0.4}
    theirs, mine = (getattr(module, name)(80, 4, **options) for module in (data, ours))
    rng = np.random.default_rng(0)
    for step in range(50):  # some sub-buffers get ahead of others, all go round
        ids = rng.permutation(4)[: rng.integers(1, 5)]
        batch = random_batch(rng, len(ids), observations)
        for a, b in zip(mine.add(batch, ids), theirs.add(batch, ids), strict=True):
            assert np.array_equal(a, b)
        if step == 20 and "alpha" not in options:
            mine.reset(), theirs.reset()
            continue
        if 10 < step < 20 or step > 32:
            (found, indices), (expected, chosen) = draw(mine, step), draw(theirs, step)
            assert np.array_equal(indices, chosen)
            require_equal(found, expected)
            if "alpha" in options:
                for one in (mine, theirs):
                    one.update_weight(indices, np.abs(expected.rew))
    assert (len(mine), mine.unfinished_index().tolist()) == (len(theirs), theirs.unfinished_index().tolist())
    every = theirs.sample_indices(0)
    assert np.array_equal(mine.sample_indices(0), every)
    for index in (slice(None), slice(3, 9), 5, every[::-1], np.array([7, 61, 2, 40])):
        require_equal(mine[index], theirs[index])
    require_equal(mine.get(every, "obs", stack_num=2), theirs.get(every, "obs", stack_num=2))
    assert np.array_equal(mine.next(every), theirs.next(every))
    require_equal(mine.act[every], theirs.act[every])


@pytest.mark.parametrize("name", ["ReplayBuffer", "PrioritizedReplayBuffer"])
def test_a_buffer_of_one_environment_is_that_of_tianshou(name):
    options = {"alpha": 0.6, "beta": 0.4} if name.startswith("Prioritized") else {}
    theirs, mine = (getattr(module, name)(10, **options) for module in (data, ours))
    rng = np.random.default_rng(0)
    for _ in range(23):
        batch = random_batch(rng, 1)
        for one in (mine, theirs):
            one.add(batch[0])
    require_equal(mine[:], theirs[:])
    require_equal(draw(mine, 3)[0], draw(theirs, 3)[0])
    for one in (mine, theirs):
        one.add(random_batch(np.random.default_rng(1), 1), buffer_ids=[0])
    require_equal(mine[:], theirs[:])
    if name == "ReplayBuffer":
        expected = data.ReplayBuffer(6)
        moved = expected.update(theirs)
        for source in (mine, theirs):
            other = ours.ReplayBuffer(6)
            assert np.array_equal(other.update(source), moved)
            require_equal(other[:], expected[:])
        mine.reset(), mine.add(batch[0])
        assert len(mine[:]) == 1


def test_only_the_last_frame_of_stacked_observations_is_kept():
    theirs, mine = (
        module.VectorReplayBuffer(40, 2, stack_num=4, save_only_last_obs=True) for module in (data, ours)
    )
    rng = np.random.default_rng(0)
    for _ in range(30):
        batch = random_batch(rng, 2, "stacked")
        mine.add(batch), theirs.add(batch)
    require_equal(draw(mine, 1)[0], draw(theirs, 1)[0])
    assert mine.shared[0].fields["obs"] == (np.float32, (5,))


@pytest.mark.parametrize("steps", [7, 20, 33])
def test_a_saved_buffer_is_loaded_and_goes_on_where_it_was(steps, tmp_path):
    buffer = ours.VectorReplayBuffer(40, 2, stack_num=2)
    rng = np.random.default_rng(0)
    for step in range(steps):
        buffer.add(random_batch(rng, 2, "dict"))
        if step == 3:
            buffer.reset()
    buffer.save_hdf5(str(tmp_path / "rows.hdf5"))
    loaded = (
        ours.VectorReplayBuffer.load_hdf5(str(tmp_path / "rows.hdf5")),
        pickle.loads(pickle.dumps(buffer)),
    )
    for more in range(25):
        for one in (buffer, *loaded):
            one.add(random_batch(np.random.default_rng(more), 2, "dict"))
        for one in loaded:
            require_equal(one[:], buffer[:])
            if more == 0:
                assert np.array_equal(
                    one.sample_indices(9), pickle.loads(pickle.dumps(buffer)).sample_indices(9)
                )


def test_data_of_a_dataset_is_taken():
    batch = random_batch(np.random.default_rng(0), 12)
    batch.done = batch.terminated | batch.truncated
    given = {key: batch[key] for key in ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next")}
    theirs, mine = (module.ReplayBuffer.from_data(**given) for module in (data, ours))
    require_equal(mine[:], theirs[:])
    mine.add(batch[0])
    assert np.array_equal(mine[0].obs, batch[0].obs) and np.array_equal(mine[1].obs, batch[1].obs)


def test_a_prioritized_buffer_forgets_priorities_when_it_is_reset():
    buffer = ours.PrioritizedVectorReplayBuffer(40, 2, alpha=0.6, beta=0.4)
    rng = np.random.default_rng(0)
    for _ in range(20):
        buffer.add(random_batch(rng, 2))
    buffer.reset()
    buffer.add(random_batch(rng, 2))
    assert set(buffer.sample_indices(50).tolist()) <= {0, 20}


def read_rows(shared, answer):
    answer.put(shared.latest(2)["rew"].tolist())


def push_row(shared, answer):
    shared.push({name: np.zeros(shape, dtype) for name, (dtype, shape) in shared.fields.items()})
    answer.put("pushed")


@pytest.mark.parametrize("target", [read_rows, push_row])
def test_other_processes_may_read_the_rows_but_not_push(target):
    buffer = ours.VectorReplayBuffer(40, 2)
    for reward in (1.0, 2.0):
        batch = random_batch(np.random.default_rng(0), 2)
        batch.rew = np.array([reward, 10 * reward])
        buffer.add(batch)
    spawn = multiprocessing.get_context("spawn")
    answer = spawn.SimpleQueue()
    process = spawn.Process(target=target, args=(buffer.shared[1], answer))
    process.start()
    found = answer.get()
    process.join(30)
    if target is read_rows:
        assert found == [10.0, 20.0]
        buffer.add(batch)
        return
    with pytest.raises(shoal.ShoalError, match="sub-buffer 1: expected row 2, found row 3"):
        buffer.add(batch)


def test_batches_that_do_not_fit_are_refused():
    buffer = ours.VectorReplayBuffer(40, 2)
    batch = random_batch(np.random.default_rng(0), 2)
    with pytest.raises(KeyError):
        buffer[0]
    for key in ("obs", "act", "rew"):
        without = Batch({name: batch[name] for name in batch.get_keys() if name != key})
        with pytest.raises(ValueError, match="must have the keys obs, act, rew, terminated and truncated"):
            buffer.add(without)
    without = Batch({name: batch[name] for name in batch.get_keys() if name != "obs_next"})
    with pytest.raises(ValueError, match="must have the key obs_next, or .* ignore_obs_next=True"):
        buffer.add(without)
    strange = Batch(batch)
    strange.obs = np.array([[1, 2], None], object)
    with pytest.raises(SpaceError, match="obs: expected numbers of a fixed shape, found object"):
        buffer.add(strange)
    buffer.add(batch)
    wrong = Batch(batch)
    wrong.obs = np.zeros((2, 4), np.float32)
    with pytest.raises(SpaceError, match=r"obs: expected shape \(2, 3\), as in the first batch, found"):
        buffer.add(wrong)
    with pytest.raises(SpaceError, match="expected the parts .* found .*'obs/near'"):
        buffer.add(random_batch(np.random.default_rng(0), 2, "dict"))
    for ids in ([0], [0, 2], [1, 1]):
        with pytest.raises(ValueError, match=r"of 0 to 1; found 2 rows and buffer_ids"):
            buffer.add(batch, ids)
    assert len(buffer) == 2
    with pytest.raises(NotImplementedError, match="cannot be dropped one by one"):
        buffer.dropnull()


# -- both together ----------------------------------------------------------------------------------------


def make_dqn(env):
    space = env.action_space[0]
    net = Net(state_shape=4, action_shape=int(space.n), hidden_sizes=[32, 32])
    policy = DiscreteQLearningPolicy(model=net, action_space=space, eps_training=0.3)
    return DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=1e-3),
        gamma=0.9,
        n_step_return_horizon=3,
        target_update_freq=20,
    )


def make_sac(env):
    space = env.action_space[0]
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=3, hidden_sizes=[32]),
        action_shape=1,
        unbounded=True,
        conditioned_sigma=True,
    )
    critic = ContinuousCritic(
        preprocess_net=Net(state_shape=3, action_shape=1, hidden_sizes=[32], concat=True)
    )
    return SAC(
        policy=SACPolicy(actor=actor, action_space=space),
        policy_optim=AdamOptimizerFactory(lr=1e-3),
        critic=critic,
        critic_optim=AdamOptimizerFactory(lr=1e-3),
    )


def train(make_algorithm, env_id, buffer, updates, **collect):
    torch.manual_seed(4)
    np.random.seed(4)
    env = ours.make(env_id, 4)
    env.seed(1)
    algorithm = make_algorithm(env)
    collector = Collector(algorithm, env, buffer, exploration_noise=True)
    collector.reset(gym_reset_kwargs={"seed": 3})
    collector.collect(n_step=80, random=True)
    losses = []
    for _ in range(updates):
        collector.collect(**collect)
        with policy_within_training_step(algorithm.policy):
            losses.append(algorithm.update(buffer, 32).get_loss_stats_dict())
    env.close()
    return algorithm, losses


RUNS = {
    "DQN": (make_dqn, "CartPole-v1", "VectorReplayBuffer", {"n_step": 8}),
    "SAC": (make_sac, "Pendulum-v1", "VectorReplayBuffer", {"n_step": 8}),
    "DQN-episodes": (make_dqn, "CartPole-v1", "VectorReplayBuffer", {"n_episode": 5}),
    "DQN-priorities": (make_dqn, "CartPole-v1", "PrioritizedVectorReplayBuffer", {"n_step": 8}),
}


@pytest.mark.parametrize("run", RUNS)
def test_the_learned_parameters_are_those_with_the_buffer_of_tianshou(run):
    make_algorithm, env_id, name, collect = RUNS[run]
    options = {"alpha": 0.6, "beta": 0.4} if name.startswith("Prioritized") else {}
    updates = 15 if "n_episode" in collect else 100
    results = []
    for module in (ours, data):
        buffer = getattr(module, name)(400, 4, **options)
        results.append((*train(make_algorithm, env_id, buffer, updates, **collect), len(buffer)))
    (mine, losses, size), (theirs, expected, _) = results
    assert losses == expected and len(losses) == updates and size == 400
    parameters, expected = (
        {key: value for key, value in one.state_dict().items() if torch.is_tensor(value)}
        for one in (mine, theirs)
    )
    assert len(parameters) >= 6 and parameters.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(parameters[key], value), key


def test_the_page_tells_the_truth(tmp_path):
    run_snippet("shoal.adapters.tianshou", tmp_path)
