"""Stable-Baselines3's replay buffers in the shared ring, compared with SB3's own."""

import copy
import multiprocessing
import pickle

import numpy as np
import pytest
from gymnasium import spaces

from tests.adapters import needs

needs("stable_baselines3")

import torch  # noqa: E402
from stable_baselines3 import DQN, SAC, TD3  # noqa: E402
from stable_baselines3.common import buffers  # noqa: E402
from stable_baselines3.common.vec_env import VecNormalize  # noqa: E402

import shoal  # noqa: E402
from shoal.adapters import sb3  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    """Threads of torch that wait for each other cost more than these small networks."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


VECTOR = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (2, 8, 8), np.uint8)
DICT = spaces.Dict({"camera": IMAGE, "a/b": VECTOR, "mode": spaces.Discrete(5)})
TURN, MOVE = spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float64)


def random_step(observation_space, action_space, n_envs, rng):
    """One call of add with random values, in the shapes that SB3's algorithms have."""

    def observe():
        if isinstance(observation_space, spaces.Dict):
            return {name: random_values(space, n_envs, rng) for name, space in observation_space.items()}
        return random_values(observation_space, n_envs, rng)

    done = rng.random(n_envs) < 0.3
    infos = [{"TimeLimit.truncated": bool(end and rng.random() < 0.5)} for end in done]
    action = random_values(action_space, n_envs, rng)
    return observe(), observe(), action, rng.random(n_envs), done, infos


def random_values(space, n, rng):
    if isinstance(space, spaces.Box) and space.dtype != np.uint8:
        return rng.random((n, *space.shape)).astype(space.dtype)
    return rng.integers(4, size=(n, *space.shape)).astype(space.dtype)


def fill(buffer, steps, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        buffer.add(*random_step(buffer.observation_space, buffer.action_space, buffer.n_envs, rng))
    return buffer


def draw(buffer, seed, n=64, env=None):
    np.random.seed(seed)
    return buffer.sample(n, env=env)


def require_equal(found, expected):
    if isinstance(expected, tuple):
        assert type(found) is type(expected)
        for name in expected._fields:
            require_equal(getattr(found, name), getattr(expected, name))
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for name, value in expected.items():
            require_equal(found[name], value)
    elif expected is None:
        assert found is None
    else:
        assert found.dtype == expected.dtype and found.shape == expected.shape
        assert torch.equal(found, expected)


@pytest.mark.parametrize("steps", [1, 9, 20, 37])  # of 20: not full, just full, in the second lap
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("action", [TURN, MOVE], ids=["turn", "move"])
@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize(
    "observation", [VECTOR, IMAGE, spaces.Discrete(5)], ids=["vector", "image", "discrete"]
)
def test_batches_are_those_of_sb3(observation, optimize, action, n_envs, steps):
    arguments = 20 * n_envs + n_envs - 1, observation, action, "cpu", n_envs, optimize, not optimize
    ours, theirs = (fill(kind(*arguments), steps) for kind in (sb3.ReplayBuffer, buffers.ReplayBuffer))
    assert (ours.pos, ours.full, ours.size()) == (theirs.pos, theirs.full, theirs.size())
    for seed in range(8):
        require_equal(draw(ours, seed), draw(theirs, seed))


@pytest.mark.parametrize("timeouts", [True, False])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_batches_of_dict_observations_are_those_of_sb3(n_envs, timeouts):
    arguments = 20 * n_envs, DICT, MOVE, "cpu", n_envs, False, timeouts
    ours = fill(sb3.DictReplayBuffer(*arguments), 27)
    theirs = fill(buffers.DictReplayBuffer(*arguments), 27)
    for seed in range(8):
        require_equal(draw(ours, seed), draw(theirs, seed))


@pytest.mark.parametrize("steps", [9, 20, 37])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_n_step_batches_are_those_of_sb3(n_envs, steps):
    arguments, options = (20 * n_envs, VECTOR, TURN, "cpu", n_envs), {"n_steps": 3, "gamma": 0.9}
    ours = fill(sb3.NStepReplayBuffer(*arguments, **options), steps)
    theirs = fill(buffers.NStepReplayBuffer(*arguments, **options), steps)
    for seed in range(8):
        require_equal(draw(ours, seed), draw(theirs, seed))
    assert np.array_equal(ours.timeouts, theirs.timeouts)


@pytest.mark.parametrize("norm_obs", [True, False])
def test_batches_are_normalized_as_sb3_does(norm_obs):
    env = VecNormalize(sb3.make("Pendulum-v1", 2), norm_obs=norm_obs)
    env.reset()
    for _ in range(30):
        env.step(np.ones((2, 1), np.float32))
    arguments = 40, env.observation_space, env.action_space, "cpu", 2
    ours, theirs = (fill(kind(*arguments), 15) for kind in (sb3.ReplayBuffer, buffers.ReplayBuffer))
    before = ours.observations.copy()
    require_equal(draw(ours, 3, env=env), draw(theirs, 3, env=env))
    assert np.array_equal(ours.observations, before)
    env.close()


def test_dict_observations_are_normalized_as_sb3_does():
    class Norm(VecNormalize):  # of which a buffer calls these two
        def __init__(self):
            pass

        def normalize_obs(self, obs):
            return {name: (value * 0.5).astype(np.float32) for name, value in obs.items()}

        def normalize_reward(self, reward):
            return reward / 3

    arguments = 40, DICT, TURN, "cpu", 2
    ours = fill(sb3.DictReplayBuffer(*arguments), 15)
    theirs = fill(buffers.DictReplayBuffer(*arguments), 15)
    require_equal(draw(ours, 3, env=Norm()), draw(theirs, 3, env=Norm()))


def train(algorithm, env_id, kind, steps, **options):
    env, options = sb3.make(env_id, 2), copy.deepcopy(options)  # SB3 changes policy_kwargs
    model = algorithm("MlpPolicy", env, seed=5, device="cpu", replay_buffer_class=kind, **options)
    assert kind is None or type(model.replay_buffer) is kind
    model.learn(steps)
    env.close()
    return model


COMMON = {
    "learning_starts": 50,
    "buffer_size": 200,  # so the ring goes round
    "batch_size": 32,
    "policy_kwargs": {"net_arch": [32, 32]},
}
RUNS = [
    (DQN, "CartPole-v1", {"train_freq": 1, "target_update_interval": 50}),
    (SAC, "Pendulum-v1", {}),
    (TD3, "Pendulum-v1", {}),
    (
        DQN,
        "CartPole-v1",
        {
            "train_freq": 1,
            "optimize_memory_usage": True,
            "replay_buffer_kwargs": {"handle_timeout_termination": False},
        },
    ),
]


@pytest.mark.parametrize(("algorithm", "env_id", "options"), RUNS, ids=["DQN", "SAC", "TD3", "DQN-optimized"])
def test_the_learned_parameters_are_those_with_the_buffer_of_sb3(algorithm, env_id, options):
    ours, theirs = (
        train(algorithm, env_id, kind, 460, **COMMON, **options)
        for kind in (sb3.ReplayBuffer, buffers.ReplayBuffer)
    )
    assert ours._n_updates == theirs._n_updates >= 200
    parameters = ours.policy.state_dict()
    assert ours.replay_buffer.full
    for name, value in theirs.policy.state_dict().items():
        assert torch.equal(parameters[name], value), name


def test_an_index_that_is_drawn_leads_to_the_row_that_was_added():
    buffer = sb3.ReplayBuffer(20, VECTOR, TURN, "cpu", 2)
    for step in range(14):  # of which the last 10 are kept, steps 10 to 13 in slots 0 to 3
        obs = np.array([[step, 0, 0], [step, 1, 0]], np.float32)
        buffer.add(obs, obs + 100, np.array([step % 4, 0]), np.array([step, -step]), np.zeros(2), [{}, {}])
    rows = buffer._gather(np.array([0, 3, 4, 9]), np.array([0, 1, 0, 1]))
    assert rows["obs"][:, :2].tolist() == [[10, 0], [13, 1], [4, 0], [9, 1]]
    assert rows["reward"].tolist() == [10, -13, 4, -9]
    assert rows["next_obs"][:, 0].tolist() == [110, 113, 104, 109]


def test_a_tensor_is_the_memory_that_was_gathered_into():
    buffer = fill(sb3.ReplayBuffer(50, VECTOR, TURN, "cpu"), 20)
    gathered = {}
    gather = buffer._gather
    buffer._gather = lambda *given: gathered.update(gather(*given)) or gathered
    batch = buffer.sample(8)
    for name, tensor in (("obs", batch.observations), ("next_obs", batch.next_observations)):
        assert tensor.data_ptr() == gathered[name].ctypes.data
    held = batch.observations.clone()
    for _ in range(20):
        buffer.sample(8)
    assert torch.equal(batch.observations, held)


@pytest.mark.parametrize("kind", ["ReplayBuffer", "DictReplayBuffer", "NStepReplayBuffer", "optimized"])
@pytest.mark.parametrize("steps", [0, 7, 20, 33])
def test_a_saved_buffer_is_loaded_and_goes_on_where_it_was(kind, steps, tmp_path):
    options = (True, False) if kind == "optimized" else ()
    made = getattr(sb3, "ReplayBuffer" if kind == "optimized" else kind)
    buffer = made(60, DICT if kind == "DictReplayBuffer" else VECTOR, TURN, "cpu", 3, *options)
    fill(buffer, steps)
    loaded = pickle.loads(pickle.dumps(buffer))
    again = copy.deepcopy(buffer)
    for other in (loaded, again):
        assert type(other) is made and (other.pos, other.full) == (buffer.pos, buffer.full)
        assert other.shared is not buffer.shared
    for more in (0, 5, 25):
        for one in (buffer, loaded, again):
            fill(one, more, seed=more)
        if buffer.size():
            require_equal(draw(loaded, more), draw(buffer, more))
            require_equal(draw(again, more), draw(buffer, more))


def test_a_model_saves_and_loads_it(tmp_path):
    model = train(DQN, "CartPole-v1", sb3.ReplayBuffer, 300, **COMMON)
    model.save_replay_buffer(tmp_path / "rows.pkl")
    expected = draw(model.replay_buffer, 1)
    other = DQN("MlpPolicy", sb3.make("CartPole-v1", 2), device="cpu", replay_buffer_class=sb3.ReplayBuffer)
    other.load_replay_buffer(tmp_path / "rows.pkl")
    assert type(other.replay_buffer) is sb3.ReplayBuffer
    require_equal(draw(other.replay_buffer, 1), expected)
    other.learn(100)
    assert other.replay_buffer.size() == 100  # of 200 rows for two environments
    other.get_env().close()


def test_learning_twice_ends_the_last_episode_as_sb3_does():
    models = []
    for kind in (sb3.ReplayBuffer, buffers.ReplayBuffer):
        env = sb3.make("CartPole-v1", 2)
        model = DQN(
            "MlpPolicy", env, seed=1, device="cpu", replay_buffer_class=kind, buffer_size=100,
            optimize_memory_usage=True, replay_buffer_kwargs={"handle_timeout_termination": False},
        )  # fmt: skip
        assert model.replay_buffer.optimize_memory_usage
        model.learn(20)
        last = model.replay_buffer.pos - 1
        with pytest.warns(UserWarning, match="The last trajectory in the replay buffer will be truncated"):
            model.learn(20)
        env.close()
        models.append(model)
    ours, theirs = (model.replay_buffer for model in models)
    assert ours.dones[last].tolist() == [1, 1]
    assert np.array_equal(ours.dones[: ours.pos], theirs.dones[: theirs.pos])


def test_reset_and_extend():
    buffer = fill(sb3.ReplayBuffer(20, VECTOR, TURN, "cpu"), 33)
    buffer.reset()
    assert (buffer.size(), buffer.pos, buffer.full, len(buffer.shared)) == (0, 0, False, 0)
    rng = np.random.default_rng(1)
    steps = [random_step(VECTOR, TURN, 1, rng) for _ in range(6)]
    whole = [[step[part] for step in steps] for part in range(6)]
    theirs = buffers.ReplayBuffer(20, VECTOR, TURN, "cpu")
    for one in (buffer, theirs):
        one.extend(*whole)
    assert buffer.size() == 6
    require_equal(draw(buffer, 2), draw(theirs, 2))
    with pytest.raises(ValueError):
        sb3.ReplayBuffer(20, VECTOR, TURN, "cpu").sample(4)  # which SB3's raises too, with nothing in it


def read_rows(shared, answer):
    answer.put(shared.latest(2)["reward"].tolist())


def push_row(shared, answer):
    shared.push({name: np.zeros(shape, dtype) for name, (dtype, shape) in shared.fields.items()})
    answer.put("pushed")


@pytest.mark.parametrize("target", [read_rows, push_row])
def test_other_processes_may_read_the_rows_but_not_push(target):
    buffer = sb3.ReplayBuffer(20, VECTOR, TURN, "cpu")
    for reward in (1.0, 2.0):
        zeros = np.zeros((1, 3), np.float32)
        buffer.add(zeros, zeros, np.zeros(1, np.int64), np.array([reward]), np.zeros(1), [{}])
    spawn = multiprocessing.get_context("spawn")
    answer = spawn.SimpleQueue()
    process = spawn.Process(target=target, args=(buffer.shared, answer))
    process.start()
    found = answer.get()
    process.join(30)
    if target is read_rows:
        assert found == [1.0, 2.0]
        fill(buffer, 3)
        return
    with pytest.raises(shoal.ShoalError, match="expected the next row of this buffer to be 2, found 3"):
        fill(buffer, 1)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="optimize_memory_usage=True does not keep the last observation"):
        sb3.ReplayBuffer(20, VECTOR, TURN, optimize_memory_usage=True)
    with pytest.raises(ValueError, match="optimize_memory_usage=True is for observations of one array"):
        sb3.DictReplayBuffer(20, DICT, TURN, "cpu", 1, True, False)
    with pytest.raises(TypeError, match="DictReplayBuffer is for Dict observation spaces, got Box"):
        sb3.DictReplayBuffer(20, VECTOR, TURN)
    for name, arguments in (("buffer_size", (0, 1)), ("n_envs", (20, 0)), ("buffer_size", (2.5, 1))):
        with pytest.raises(ValueError, match=f"{name} must be an int of at least 1"):
            sb3.ReplayBuffer(arguments[0], VECTOR, TURN, "cpu", arguments[1])
    buffer = sb3.ReplayBuffer(20, VECTOR, TURN, "cpu", 2)
    step = list(random_step(VECTOR, TURN, 2, np.random.default_rng(0)))
    for place, name, bad in [
        (0, r"obs must have shape \(2, 3\)", np.zeros((1, 3))),
        (1, r"next_obs must have shape \(2, 3\)", np.zeros((2, 4))),
        (2, r"action must have shape \(2, 1\)", np.zeros(1)),
        (3, r"reward must have shape \(2,\)", np.zeros(3)),
        (4, r"done must have shape \(2,\)", np.zeros(1)),
        (5, "infos must be a list of 2 dicts, .* found 1 entries", [{}]),
        (5, "infos must be a list of 2 dicts, .* found one dict", {}),
    ]:
        with pytest.raises(ValueError, match=name):
            buffer.add(*step[:place], bad, *step[place + 1 :])
    mixed = sb3.DictReplayBuffer(20, DICT, TURN, "cpu", 1)
    step = list(random_step(DICT, TURN, 1, np.random.default_rng(0)))
    with pytest.raises(ValueError, match=r"obs must be a dict with the keys .*, found \['camera'\]"):
        mixed.add({"camera": step[0]["camera"]}, *step[1:])
    assert (buffer.size(), mixed.size(), len(buffer.shared)) == (0, 0, 0)
