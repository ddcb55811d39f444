"""Stable-Baselines3 over Shoal: step for step what its own DummyVecEnv gives, and its algorithms learn."""

import sys
from functools import partial
from inspect import signature
from itertools import pairwise
from types import ModuleType

import gymnasium
import numpy as np
import pytest

import shoal
from tests.adapters import needs, run_snippet
from tests.adapters.worlds import Fragile, Target, Telling
from tests.vector.test_process_envs import logged

needs("stable_baselines3")
needs("torch").set_num_threads(1)  # or its threads wait for each other where cores are busy

from stable_baselines3 import DQN, PPO  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402
from stable_baselines3.common.monitor import Monitor  # noqa: E402
from stable_baselines3.common.vec_env import (  # noqa: E402
    DummyVecEnv,
    VecMonitor,
    VecNormalize,
    VecVideoRecorder,
)

from shoal.adapters import sb3  # noqa: E402


def both(fn, env=None, num_envs=3, **options):
    """Shoal's and SB3's own vector of the same environments."""
    return sb3.make(env or fn, num_envs, **options), DummyVecEnv([fn] * num_envs)


def assert_steps_agree(ours, theirs, steps, exact, seed=3):
    ours.seed(seed)
    theirs.seed(seed)
    rng = np.random.default_rng(0)
    assert_same(ours.reset(), theirs.reset(), exact)
    assert_same(ours.reset_infos, theirs.reset_infos)
    ends = cut_off = 0
    for _ in range(steps):
        actions = np.array([rng.integers(theirs.action_space.n) for _ in range(theirs.num_envs)])
        found, expected = ours.step(actions), theirs.step(actions)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, exact)
        assert found[1].dtype == expected[1].dtype and found[2].dtype == expected[2].dtype
        assert_same(ours.reset_infos, theirs.reset_infos)
        ends += sum("terminal_observation" in info for info in found[3])
        cut_off += sum(info["TimeLimit.truncated"] for info in found[3])
    return ends, cut_off


def assert_same(one, other, exact=True):
    assert isinstance(one, dict) == isinstance(other, dict)
    if isinstance(other, dict):
        assert set(one) == set(other)
        for key in other:
            assert_same(one[key], other[key], exact)
    elif isinstance(other, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_same(*pair, exact)
    else:
        np.testing.assert_allclose(one, other, rtol=0, atol=0 if exact else 1e-6)


@pytest.mark.parametrize("options", [{}, {"backend": "process", "num_workers": 2}], ids=["native", "workers"])
def test_c_environments_step_as_sb3s_own(options):
    ours, theirs = both(
        lambda: gymnasium.make("CartPole-v1", max_episode_steps=15),
        "CartPole-v1",
        max_episode_steps=15,
        **options,
    )
    ends, cut_off = assert_steps_agree(ours, theirs, 200, exact=False)
    assert ends > 20 and 0 < cut_off < ends
    ours.close()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_python_environments_step_as_sb3s_own_with_all_they_tell(num_workers):
    ours, theirs = both(Telling, num_workers=num_workers)
    ends, cut_off = assert_steps_agree(ours, theirs, 40, exact=True)
    assert (ends, cut_off) == (18, 9)
    ours.set_options({"hard": True})
    theirs.set_options({"hard": True})
    assert assert_steps_agree(ours, theirs, 3, exact=True) == (0, 0)
    ours.set_options([{"hard": True}, {}, {}])
    with pytest.raises(ValueError, match="the same for all"):
        ours.reset()
    ours.close()


def test_sb3s_wrappers_give_the_same_over_both():
    seen = []
    for env in both(
        lambda: gymnasium.make("MountainCar-v0", max_episode_steps=9),
        "MountainCar-v0",
        4,
        max_episode_steps=9,
    ):
        env.seed(1)
        env = VecNormalize(VecMonitor(env), gamma=0.9)
        log = [env.reset()]
        for step in range(30):
            observations, rewards, dones, infos = env.step(np.full(4, step % 3))
            ended = [(info["episode"]["r"], info["episode"]["l"]) for info in infos if "episode" in info]
            final = [info["terminal_observation"] for info in infos if "terminal_observation" in info]
            log += [observations, rewards, dones, *final, ended]
        seen.append(log)
        env.close()
    assert len(seen[0]) == len(seen[1])
    for one, other in zip(*seen, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_each_agent_is_an_environment():
    env = sb3.make("Snake-v0", 2, max_episode_steps=20)
    env.seed(4)
    seen = env.reset()
    with shoal.make_vec("Snake-v0", 2, max_episode_steps=20, autoreset_mode="DISABLED") as envs:
        np.testing.assert_array_equal(seen, envs.reset(seed=4)[0])
        for step in range(20):
            actions = np.arange(8) % 4 if step % 2 else np.zeros(8, np.int64)
            _, rewards, dones, infos = env.step(actions)
            last, *expected, _ = envs.step(actions)
            np.testing.assert_array_equal(rewards, expected[0])
            np.testing.assert_array_equal(dones, expected[1] | expected[2])
    assert env.num_envs == 8 and dones.all()
    for row, info in enumerate(infos):
        np.testing.assert_array_equal(info["terminal_observation"], last[row])
        assert info["TimeLimit.truncated"] == (not expected[1][row])
    env.close()


def test_a_step_under_way_is_dropped_by_a_reset():
    env = sb3.make(Telling, 2, num_workers=1)
    env.reset()
    env.step_async(np.zeros(2, np.int64))
    assert env.reset()["count"][:, 0].tolist() == [0, 0]
    env.step(np.zeros(2, np.int64))
    env.close()


def test_single_environments_can_be_asked_and_told():
    env = sb3.make(lambda **options: Monitor(Telling(**options)), 3, num_workers=2, offset=4)
    env.reset()
    assert env.get_attr("offset") == [4, 4, 4] and env.get_attr("offset", 1) == [4]
    assert env.env_method("add", 2, indices=1) == [2]
    assert env.env_method("add", amount=1, indices=[2, 1]) == [1, 3]
    assert env.env_method("add", 0) == [0, 3, 1]
    env.set_attr("offset", 9, indices=[0, 2])
    assert env.get_attr("offset") == [9, 4, 9]
    env.set_attr("offset", 1)
    assert env.get_attr("offset") == [1, 1, 1]
    assert env.has_attr("episode") and not env.has_attr("nothing_like_it")
    assert env.env_is_wrapped(Monitor) == [True] * 3 and env.env_is_wrapped(Monitor, [0]) == [True]
    assert env.env_is_wrapped(gymnasium.wrappers.TimeLimit) == [False] * 3
    with logged(), pytest.raises(AttributeError, match="nothing_like_it"):
        env.env_method("nothing_like_it", indices=0)
    env.close()


def test_environments_in_c_have_nothing_to_be_asked():
    env = sb3.make("CartPole-v1", 2)
    assert env.get_attr("render_mode") == [None, None] and env.env_is_wrapped(Monitor) == [False, False]
    assert not env.has_attr("nothing_like_it")
    with pytest.raises(AttributeError, match="in C have no attributes and methods, asked for 'render'"):
        env.env_method("render")
    with pytest.raises(AttributeError, match="asked for 'gravity'; .*sb3.make: precision, sutton"):
        env.set_attr("gravity", 1)
    env.close()
    with sb3.make("Snake-v0", 2).envs as envs, pytest.raises(AttributeError) as caught:
        sb3.VecEnv(envs).set_attr("agents", 2)
    assert "agents" in envs.options and str(caught.value).endswith(": " + ", ".join(envs.options))
    sb3.make("Snake-v0", 2, **envs.options).close()


def test_a_list_of_functions_makes_an_environment_each():
    env = sb3.make([Telling, lambda **options: Telling(offset=7), partial(Telling, offset=8)], num_workers=2)
    assert env.num_envs == 3 and env.get_attr("offset") == [0, 7, 8]
    env.reset()
    assert env.env_method("add", 2, indices=1) == [2]
    env.close()
    theirs = DummyVecEnv([Telling, Telling])
    assert_steps_agree(ours := sb3.make((Telling, Telling), 2, backend="process"), theirs, 20, exact=True)
    ours.close()


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "message"),
    [
        (([Telling] * 3, 2), {}, ValueError, "num_envs is 2, but the list has 3 functions"),
        (([Telling, "CartPole-v1"],), {}, TypeError, r"env\[1\] must be a function .*, got 'CartPole-v1'"),
        (([],), {}, ValueError, "^env is an empty list; it must have at least one function"),
        (
            (["CartPole-v1"],),
            {},
            TypeError,
            r"^env\[0\] .* pass an id alone: make\('CartPole-v1', num_envs\)",
        ),
        (([Telling],), {"backend": "native"}, TypeError, "leave out backend: a list of functions"),
        (([Telling],), {"num_threads": 2}, TypeError, "leave out num_threads: a list of functions"),
        (([lambda: Telling()],), {"offset": 2}, TypeError, r"^env\[0\] cannot be called .* offset: .* set"),
        ((lambda: Telling(), 2), {"render_mode": "rgb_array"}, TypeError, "^env cannot be called with the"),
    ],
)
def test_bad_arguments_of_make_are_named(arguments, options, kind, message):
    with pytest.raises(kind, match=message):
        sb3.make(*arguments, **options)


@pytest.mark.parametrize(
    "env", ["CartPole-v1", "Blackjack-v1", Telling, [Telling], lambda **options: Telling()]
)
@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("n_envs", "use num_envs="),
        ("seed", r"call seed\(\.\.\.\) on what make returns"),
        ("env_kwargs", r"make\(env, num_envs, \*\*env_kwargs\)"),
        ("wrapper_class", r"use wrappers=\[wrapper_class\]"),
        ("vec_env_cls", "leave it out"),
    ],
)
def test_arguments_of_make_vec_env_say_what_to_use_instead(env, name, instead):
    with pytest.raises(TypeError, match=f"make has no argument '{name}', which SB3's .*: {instead}"):
        sb3.make(env, **{name: 3})


def test_every_other_argument_of_make_vec_env_is_known():
    theirs = set(signature(make_vec_env).parameters) - {"env_id"}
    assert theirs == set(sb3._INSTEAD)


def test_an_environment_with_a_parameter_of_that_name_gets_it():
    env = sb3.make([lambda seed: Telling(offset=seed)], seed=7)
    assert env.get_attr("offset") == [7]
    env.close()


def test_the_advised_wrappers_are_applied():
    env = sb3.make(Telling, 2, wrappers=[Monitor])
    assert env.env_is_wrapped(Monitor) == [True, True]
    env.close()


@pytest.mark.parametrize("env", ["CartPole-v1", Telling])
def test_it_is_printed_with_the_environments_it_holds(env):
    made = sb3.make(env, 2)
    assert repr(made) == str(made) == f"<shoal.adapters.sb3.VecEnv of {made.envs!r}>"
    made.close()


def test_environments_in_c_and_in_python_give_pictures():
    env = sb3.make("CartPole-v1", 2)
    with pytest.raises(ValueError, match='render needs render_mode="rgb_array"'):
        env.get_images()
    env.close()
    for more in ({}, {"backend": "process", "num_workers": 2}):
        env = sb3.make("CartPole-v1", 2, render_mode="rgb_array", **more)
        env.reset()
        assert [image.shape for image in env.get_images()] == [(400, 600, 3)] * 2
        env.close()
    env = sb3.make(lambda: Telling(render_mode="rgb_array"), 2, num_workers=1)  # which needs no pygame
    env.reset()
    assert len(env.get_images()) == 2
    env.close()


def test_the_video_recorder_of_sb3_gets_every_picture(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "moviepy", ModuleType("moviepy"))  # it would only write the file
    env = sb3.make("CartPole-v1", 2, render_mode="rgb_array")
    recorder = VecVideoRecorder(env, str(tmp_path), lambda step: step == 0, video_length=100)
    recorder.reset()
    for _ in range(5):
        recorder.step(np.ones(2, np.int64))
    frames = recorder.recorded_frames.copy()
    recorder.recorded_frames.clear()
    assert recorder.frames_per_sec == 50  # the video runs at the speed of the environment
    assert [frame.shape for frame in frames] == [(800, 600, 3)] * 6
    assert all((one != other).any() for one, other in pairwise(frames))
    env.close()


def test_workers_do_not_import_torch():
    for env in (sb3.make(Telling, 2, num_workers=1), sb3.make([Telling, Telling], num_workers=1)):
        assert env.env_method("find_modules", "torch", "stable_baselines3", "numpy") == [["numpy"]] * 2
        env.close()


def test_pictures_are_tiled():
    env = sb3.make(Telling, 4, num_workers=1, render_mode="rgb_array")
    env.reset()
    assert [image.shape for image in env.get_images()] == [(4, 6, 3)] * 4
    assert env.render().shape == (8, 12, 3)
    env.close()
    env = sb3.make("Snake-v0", 1, render_mode="rgb_array")
    env.reset()
    assert env.render().ndim == 3
    env.close()


def test_an_episode_that_a_fault_ended_is_never_bootstrapped_from():
    env = sb3.make(Fragile, 2, num_workers=2, on_fault="restart")
    env.reset()
    env.step(np.array([0, 0]))
    observations, rewards, dones, infos = env.step(np.array([0, 1]))
    assert dones.tolist() == [False, True] and rewards.tolist() == [1, 0]
    assert observations.tolist() == [[2], [0]]
    assert "told to" in infos[1]["fault"] and "terminal_observation" not in infos[1]
    assert not infos[1]["TimeLimit.truncated"]
    env.close()


def test_environments_that_reset_otherwise_are_refused():
    for mode in ("NEXT_STEP", "DISABLED"):
        with shoal.make_vec("CartPole-v1", 2, autoreset_mode=mode) as envs:
            with pytest.raises(ValueError, match=f'autoreset_mode="SAME_STEP", not {mode}'):
                sb3.VecEnv(envs)
    with shoal.make_vec("CartPole-v1", 2, autoreset_mode="SAME_STEP", buffers="live") as envs:
        with pytest.raises(ValueError, match='use buffers="leased"'):
            sb3.VecEnv(envs)
    with pytest.raises(TypeError, match=r"what shoal.make_vec.* returns, got SyncVectorEnv; .*sb3.make\("):
        sb3.VecEnv(gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync"))
    with pytest.raises(TypeError, match=r"got list; .* make\(\[function, \.\.\.\]\) from a list"):
        sb3.VecEnv([Telling, Telling])
    with pytest.raises(ValueError, match='needs autoreset_mode="SAME_STEP", got DISABLED; leave'):
        sb3.make(Telling, 2, autoreset_mode="DISABLED")
    sb3.make("CartPole-v1", 2, autoreset_mode="SAME_STEP").close()
    with shoal.make_vec(Telling, 2, num_workers=1, autoreset_mode="SAME_STEP") as envs:
        env = sb3.VecEnv(envs)
        env.reset()
        assert env.env_method("add", 1) == [1, 1]
        with pytest.raises(ValueError, match="leave indices out, or make them by shoal.adapters.sb3.make"):
            env.env_method("add", 1, indices=0)


@pytest.mark.parametrize("of", ["native", "workers"])
def test_ppo_learns(of):
    env = (
        sb3.make("CartPole-v1", 8, episode_stats=True)
        if of == "native"
        else sb3.make(Target, 8, num_workers=1)
    )
    model = PPO(
        "MlpPolicy",
        VecMonitor(env),
        n_steps=64,
        batch_size=128,
        n_epochs=4,
        learning_rate=1e-3,
        gamma=0.98 if of == "native" else 0.0,
        seed=0,
        device="cpu",
    )
    before, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=12, deterministic=False, warn=False)
    model.learn(6144 if of == "native" else 3072)
    after, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=12, deterministic=False, warn=False)
    assert after > 2 * before, (before, after)
    env.close()


def test_dqn_stores_the_transitions_that_happened():
    env = sb3.make("CartPole-v1", 4, max_episode_steps=12, episode_stats=True)
    model = DQN("MlpPolicy", env, learning_starts=100, train_freq=4, buffer_size=2000, seed=0, device="cpu")
    model.learn(1000)
    assert len(model.ep_info_buffer) > 20 and {info["l"] for info in model.ep_info_buffer} <= set(
        range(8, 13)
    )
    buffer = model.replay_buffer
    size = buffer.size()
    observations, following = buffer.observations[:size], buffer.next_observations[:size]
    # A step moves the cart by its speed times 0.02, into the last observation of an episode too.
    moved = observations[..., 0] + 0.02 * observations[..., 1]
    np.testing.assert_allclose(following[..., 0], moved, atol=1e-5)
    assert buffer.timeouts[:size].any() and (buffer.dones[:size] > buffer.timeouts[:size]).any()
    env.close()


def test_the_page_tells_the_truth(tmp_path):
    run_snippet("shoal.adapters.sb3", tmp_path)
