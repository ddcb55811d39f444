"""ProcessVectorEnv as a replacement of AsyncVectorEnv: arguments, attributes, calls and errors."""

import functools
import multiprocessing
import os
import threading

import gymnasium
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import shoal
from shoal.process.start import Running
from shoal.vector import ProcessVectorEnv
from tests.vector.test_process_envs import RAISE, SLOW, Broken, Counter, assert_same, counters, logged


@pytest.fixture
def envs():
    """Three Counters in two workers."""
    with ProcessVectorEnv(counters(3), num_workers=2) as made:
        made.reset(seed=0)
        yield made


def gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_arguments_have_the_order_of_async_vector_env():
    import inspect

    theirs = list(inspect.signature(AsyncVectorEnv).parameters.values())
    ours = list(inspect.signature(ProcessVectorEnv).parameters.values())
    assert [one.name for one in ours[: len(theirs)]] == [one.name for one in theirs]
    assert [one.default for one in ours[: len(theirs)]] == [one.default for one in theirs]
    assert all(one.kind is one.KEYWORD_ONLY for one in ours[len(theirs) :])
    args = (counters(2), True, False, None, True, None, "same", "SameStep", 1)
    with ProcessVectorEnv(*args) as envs:
        for name, value in zip([one.name for one in theirs], args, strict=True):
            expected = AutoresetMode.SAME_STEP if name == "autoreset_mode" else value
            assert getattr(envs, name) == expected, name
        assert envs.num_workers == 1 and envs.buffers == "live"


def test_attributes_are_those_of_a_vector_environment(envs):
    theirs = SyncVectorEnv(counters(3))
    assert isinstance(envs, gymnasium.vector.VectorEnv) and envs.unwrapped is envs
    for name in ("single_observation_space", "single_action_space", "observation_space", "action_space"):
        assert getattr(envs, name) == getattr(theirs, name), name
    assert (envs.num_envs, envs.spec, envs.closed, envs.render_mode) == (3, None, False, None)
    assert envs.metadata == theirs.metadata
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP is envs.autoreset_mode
    assert "autoreset_mode" not in Counter.metadata
    assert repr(envs) == "ProcessVectorEnv(num_envs=3)"


def test_seeds_and_generators_are_those_of_the_environments(envs):
    envs.reset(seed=40)
    assert envs.np_random_seed == (40, 41, 42)
    envs.reset(seed=[5, None, 7])
    assert envs.np_random_seed == (5, 41, 7)
    expected = gymnasium.utils.seeding.np_random(5)[0].random()
    assert envs.np_random[0].random() == envs.np_random[0].random() == expected  # copies
    with pytest.raises(ValueError, match="length must match num_envs=3 but got length=2"):
        envs.reset(seed=[1, 2])


def test_calls_reach_every_environment_and_give_a_tuple(envs):
    assert envs.call("add", 10, two=5) == (15, 16, 17)
    assert envs.call("who") == envs.get_attr("who") == (0, 1, 2)
    envs.call_async("add", 1)
    assert envs.call_wait(timeout=60) == (1, 2, 3)
    envs.set_attr("episode", [7, 8, 9])
    assert envs.get_attr("episode") == (7, 8, 9)
    envs.set_attr("episode", 4)
    assert envs.get_attr("episode") == (4, 4, 4)
    with pytest.raises(ValueError, match="Got `2` values for 3 environments"):
        envs.set_attr("episode", [1, 2])
    assert envs.get_attr("episode") == (4, 4, 4)


@pytest.mark.parametrize("name", ["reset", "step", "close", "_setattr"])
def test_call_of_reset_step_or_close_raises(envs, name):
    with logged(), pytest.raises(ValueError, match=f"use `{name}` directly instead"):
        envs.call(name)
    assert envs.get_attr("who") == (0, 1, 2)


def test_a_call_that_raises_is_raised_and_the_environments_go_on(envs):
    with logged() as lines, pytest.raises(AttributeError) as caught:
        envs.get_attr("nonsense")
    assert "nonsense" in str(caught.value) and caught.value.env_id == 2
    assert ["environment 0 raised, too" in lines[0], "environment 1 raised, too" in lines[1]] == [True, True]
    assert len(lines) == 2
    assert envs.step([0, 0, 0])[1].tolist() == [1, 1, 1]


def test_render_gives_every_environments_picture(envs):
    frames = envs.render()
    assert len(frames) == 3
    for who, frame in enumerate(frames):
        assert_same(frame, np.full((2, 2, 3), who, np.uint8))
    with shoal.make_vec(lambda: Counter(render_mode="rgb_array"), 1) as drawn:
        assert drawn.render_mode == "rgb_array"


def test_reset_and_step_can_be_split_into_async_and_wait(envs):
    envs.reset_async(seed=3)
    assert envs.reset_wait(timeout=60)[0][:, 2].tolist() == [0, 0, 0]
    envs.step_async(np.array([1, 2, 3]))
    observations, rewards, terminated, truncated, info = envs.step_wait(timeout=60)
    assert observations[:, 2].tolist() == [1, 1, 1]
    assert rewards.dtype == np.float64 and terminated.dtype == truncated.dtype == np.bool_
    assert info["_count"].all()


@pytest.mark.parametrize("pending", ["reset", "step", "call"])
def test_a_second_call_while_one_is_pending_is_refused_in_gymnasiums_words(envs, pending):
    first = {"reset": (), "step": ([0] * 3,), "call": ("who",)}
    getattr(envs, f"{pending}_async")(*first[pending])
    message = f"pending call to `{pending}` to complete"
    for name, arguments in first.items():
        with pytest.raises(AlreadyPendingCallError, match=message) as caught:
            getattr(envs, f"{name}_async")(*arguments)
        assert caught.value.name == pending
    with pytest.raises(AlreadyPendingCallError, match=f"`set_attr` while .* {message}"):
        envs.set_attr("who", 1)
    for name in set(first) - {pending}:
        with pytest.raises(NoAsyncCallError, match=f"without any prior call to `{name}_async`"):
            getattr(envs, f"{name}_wait")()
    getattr(envs, f"{pending}_wait")()


@pytest.mark.parametrize("name", ["reset_wait", "step_wait", "call_wait"])
def test_wait_without_async_call_raises(envs, name):
    with pytest.raises(NoAsyncCallError, match="without any prior call") as caught:
        getattr(envs, name)()
    assert caught.value.name == name.removesuffix("_wait")


def test_every_use_after_close_is_gymnasiums_error():
    envs = ProcessVectorEnv(counters(2), num_workers=2)
    pids = envs.worker_pids
    envs.reset()
    envs.close()
    envs.close()
    assert envs.closed and all(map(gone, pids))
    uses = {
        "reset": (), "step": ([0, 0],), "reset_wait": (), "step_wait": (), "call": ("who",), "call_wait": (),
        "get_attr": ("who",), "set_attr": ("who", [1]), "render": (), "rollout": (3,), "recv": (),
    }  # fmt: skip
    for name, arguments in uses.items():
        with pytest.raises(ClosedEnvironmentError, match="after a call to `close"):
            getattr(envs, name)(*arguments)
    with pytest.raises(ClosedEnvironmentError):
        _ = envs.actions
    assert envs.worker_pids == [None, None]


@pytest.mark.parametrize("arguments", [{}, {"timeout": 0}, {"timeout": 30}, {"terminate": True}], ids=str)
def test_close_ends_the_workers_whatever_is_pending(arguments, tmp_path):
    if arguments.get("timeout") == 30:
        (tmp_path / "gate").touch()  # the others are never let through
    envs = ProcessVectorEnv(counters(2, gate=tmp_path / "gate"), num_workers=2)
    pids = envs.worker_pids
    envs.reset()
    envs.step_async([0, SLOW])
    with pytest.warns(UserWarning, match="`close` while waiting for a pending call to `step`"):
        envs.close(**arguments)
    assert envs.closed and all(map(gone, pids))


def test_garbage_collected_environments_leave_no_process():
    envs = ProcessVectorEnv(counters(2), num_workers=2)
    pids = envs.worker_pids
    envs.reset()
    del envs
    assert all(map(gone, pids))


def test_environments_are_closed_in_their_workers(tmp_path):
    class Closing(Counter):
        def close(self):
            (tmp_path / str(self.who)).touch()

    with ProcessVectorEnv([lambda who=who: Closing(who) for who in range(3)], num_workers=2):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


def test_observation_mode_different_takes_spaces_of_one_shape():
    def maker(high):
        class Own(Counter):
            observation_space = Box(-1e6, high, (3,))

        return Own

    makers = [maker(1e6), maker(2e6)]
    with ProcessVectorEnv(makers, observation_mode="different") as envs:
        theirs = SyncVectorEnv(makers, observation_mode="different")
        assert envs.observation_space == theirs.observation_space
        assert envs.single_observation_space == theirs.single_observation_space
        assert_same(envs.reset(seed=0), theirs.reset(seed=0))
    with pytest.raises(RuntimeError, match="environment 1 differ.*use `observation_mode='different'`"):
        ProcessVectorEnv(makers)


def test_observation_mode_can_be_the_batched_and_the_single_space():
    single = Box(-1e6, 1e6, (3,))
    batched = Box(-1e6, 1e6, (2, 3))
    with ProcessVectorEnv(counters(2), observation_mode=(batched, single)) as envs:
        assert envs.observation_space is batched and envs.single_observation_space is single
        assert envs.reset()[0] in batched
    with pytest.raises(TypeError, match="Expected both elements of observation_mode to be Spaces"):
        ProcessVectorEnv(counters(2), observation_mode=(batched, 3))
    with pytest.raises(RuntimeError, match="do not share a common shape and dtype: environments 0, 1"):
        ProcessVectorEnv(counters(2), observation_mode=(batched, Box(0, 1, (4,))))
    with pytest.raises(ValueError, match="Invalid `observation_mode`"):
        ProcessVectorEnv(counters(2), observation_mode="similar")


def test_environments_with_another_action_space_are_named():
    class Own(Counter):
        action_space = Discrete(3)

    with pytest.raises(RuntimeError, match="action space different from `Discrete.10.`: environment 1"):
        ProcessVectorEnv([Counter, Own, Counter])


@pytest.mark.parametrize(("value", "found"), [(0, "0"), (-1, "-1"), (1.5, "float"), ("2", "str")])
def test_a_bad_max_concurrency_is_refused_as_gymnasium_refuses_it(value, found):
    for kind in (AsyncVectorEnv, ProcessVectorEnv):
        with pytest.raises(ValueError, match=f"`max_concurrency` must be .*{found}"):
            kind(counters(2), max_concurrency=value)


def test_max_concurrency_is_the_number_of_environments_that_step_at_once(tmp_path):
    class Crowded(Counter):
        def step(self, action):
            (tmp_path / str(os.getpid())).touch()
            return super().step(action)

    with ProcessVectorEnv([Crowded] * 4, max_concurrency=2, num_workers=3) as envs:
        envs.reset()
        envs.step([0] * 4)
        assert envs.num_workers == len(list(tmp_path.iterdir())) == 2


def test_custom_worker_raises_with_advice():
    with pytest.raises(ValueError, match="a custom `worker` is not supported.*wrap the environment"):
        ProcessVectorEnv(counters(2), worker=lambda *arguments: None)


def test_daemon_false_lets_environments_start_processes():
    class Parent(Counter):
        def step(self, action):
            child = multiprocessing.get_context("fork").Process(target=int)
            child.start()
            child.join()
            return super().step(action)

    with ProcessVectorEnv([Parent], daemon=False) as envs:
        envs.reset()
        assert envs.step([0])[1].tolist() == [1]
    with ProcessVectorEnv([Parent]) as envs:
        envs.reset()
        with logged(), pytest.raises(AssertionError, match="daemonic processes"):
            envs.step([0])


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_other_start_methods_give_the_same_results(context):
    with ProcessVectorEnv(counters(2), context=context, num_workers=1) as envs:
        assert envs.reset(seed=1)[0].tolist() == [[0, 1, 0], [1, 1, 0]]
        with logged(), pytest.raises(Broken):
            envs.step([0, RAISE])


@pytest.mark.parametrize("context", [None, "fork", "forkserver", "spawn"])
def test_closed_workers_exit_with_status_0(context, monkeypatch):
    statuses = []
    reap = Running.reap
    monkeypatch.setattr(Running, "reap", lambda running: statuses.append(reap(running)))
    with ProcessVectorEnv(counters(2), context=context) as envs:
        envs.reset()
    assert statuses == [0, 0]


def test_a_masked_reset_is_gymnasiums_and_options_reach_the_environments():
    theirs = SyncVectorEnv(counters(3))
    with ProcessVectorEnv(counters(3), num_workers=2) as envs:
        for worlds in (envs, theirs):
            worlds.reset(seed=0)
            worlds.step([0, 0, 0])
        mask = np.array([True, False, True])
        given = {"reset_mask": mask, "level": 3}
        found = envs.reset(seed=[7, 8, 9], options=given)
        assert set(given) == {"reset_mask", "level"}  # the caller's dict is left alone
        assert_same(found, theirs.reset(seed=[7, 8, 9], options=given))
        assert envs.get_attr("seen_options") == ({"level": 3}, None, {"level": 3})
        assert envs.np_random_seed == (7, 1, 9)
        assert_same(envs.step([0, 0, 0]), theirs.step([0, 0, 0]))
        for bad in ([True] * 3, np.ones(2, bool), np.ones(3), np.zeros(3, bool)):
            with pytest.raises((TypeError, ValueError)) as expected:
                theirs.reset(options={"reset_mask": bad})
            with pytest.raises(expected.type) as caught:
                envs.reset(options={"reset_mask": bad})
            assert str(caught.value) == str(expected.value)


def test_gymnasiums_vector_wrappers_work_over_it():
    wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(ProcessVectorEnv(counters(2)))
    wrapped.reset(seed=0)
    for _ in range(4):
        wrapped.step(np.zeros(2, np.int64))
    info = wrapped.step(np.array([6, 0]))[4]
    assert info["episode"]["r"].tolist() == [15, 0] and info["episode"]["l"].tolist() == [5, 0]
    wrapped.close()


def test_a_second_thread_that_steps_at_once_is_refused(envs):
    refused = []

    def step():
        try:
            envs.step([0] * 3)
        except AlreadyPendingCallError as error:
            refused.append(error)

    envs.step_async([0, 0, 0])
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    assert envs.step_wait()[1].tolist() == [1, 1, 1] and len(refused) == 1


def test_time_inside_environments_is_measured_in_python_and_in_c():
    python = ProcessVectorEnv([functools.partial(gymnasium.make, "FrozenLake-v1")] * 4, num_workers=2)
    native = shoal.make_vec("CartPole-v1", 256, backend="process", num_workers=2)
    with python, native:
        for envs in (python, native):
            envs.reset(seed=0)
            actions = envs.action_space.sample()
            for _ in range(300):
                envs.step(actions)
            parts = envs.stats["time_us"]
            assert set(parts) == {"environments", "copy", "handoff", "infos"}
            assert parts["environments"] > 0
        assert parts["copy"] == 0  # C environments write their rows themselves
