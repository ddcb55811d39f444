"""One suite for every backend: one environment, in C and in Python, gives the same results in every mode.

A new backend is a new name in `latched.BACKENDS`.
"""

from __future__ import annotations

import inspect
import multiprocessing
import threading
from itertools import product

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import AutoresetMode

import shoal
from shoal.errors import ClosedError, ShoalError
from shoal.vector import ProcessVectorEnv
from tests.native.conftest import REAL
from tests.vector.latched import BACKENDS, make, occasional
from tests.vector.test_process_envs import assert_same

pytestmark = pytest.mark.skipif(REAL is None, reason="no C compiler: install gcc or clang")

NUM_ENVS, LENGTH, STEPS = 5, 4, 11
MODES = [mode.name for mode in AutoresetMode]
BUFFERS = ("leased", "live", "copy")
ASYNCHRONOUS = ("native", "native, 2 threads", "Python in workers")
every = pytest.mark.parametrize("backend", BACKENDS)
asynchronous = pytest.mark.parametrize("backend", ASYNCHRONOUS)


def actions_at(step):
    return (np.arange(NUM_ENVS) * 7 + step * 3) % 90


def copied(value):
    if isinstance(value, (tuple, list)):
        return type(value)(map(copied, value))
    if isinstance(value, dict):
        return {key: copied(item) for key, item in occasional(value).items()}
    return value.copy() if isinstance(value, np.ndarray) else value


def run(envs, mode, step):
    """Copies of all that a reset and some steps return; finished environments of DISABLED are reset."""
    results = [copied(envs.reset(seed=3))]
    for number in range(STEPS):
        results.append(copied(step(envs, actions_at(number))))
        over = results[-1][2] | results[-1][3]
        if mode == "DISABLED" and over.any():
            results.append(copied(envs.reset(options={"reset_mask": over})))
    return results


def step_at_once(envs, actions):
    return envs.step(actions)


def step_in_place(envs, actions):
    envs.actions[...] = actions
    return envs.step()


def step_in_two_calls(envs, actions):
    envs.step_async(actions)
    return envs.step_wait()


def step_with_a_list(envs, actions):
    return envs.step(actions.tolist())


@pytest.fixture(scope="module")
def expected():
    """What one native environment on one thread does, for each mode."""
    found = {}
    for mode in MODES:
        with make("native", NUM_ENVS, length=LENGTH, autoreset_mode=mode, episode_stats=True) as envs:
            found[mode] = run(envs, mode, step_at_once)
    return found


@every
@pytest.mark.parametrize(("mode", "buffers"), list(product(MODES, BUFFERS)))
def test_every_mode_and_buffer_gives_the_same_results(backend, mode, buffers, expected):
    options = {"length": LENGTH, "autoreset_mode": mode, "buffers": buffers, "episode_stats": True}
    with make(backend, NUM_ENVS, **options) as envs:
        assert_same(run(envs, mode, step_at_once), expected[mode])


@every
@pytest.mark.parametrize("step", [step_in_place, step_in_two_calls, step_with_a_list])
def test_every_way_to_step_gives_the_same_results(backend, step, expected):
    with make(backend, NUM_ENVS, length=LENGTH, episode_stats=True) as envs:
        assert_same(run(envs, "NEXT_STEP", step), expected["NEXT_STEP"])


@every
def test_a_rollout_holds_what_steps_return(backend, expected):
    with make(backend, NUM_ENVS, length=LENGTH) as envs:
        rollout = envs.rollout(STEPS)
        rollout.start(envs.reset(seed=3)[0])
        for number in range(STEPS):
            rollout.step(actions_at(number))
        for number, (observation, reward, terminated, truncated, _) in enumerate(expected["NEXT_STEP"][1:]):
            assert_same(rollout.observations[number + 1], observation)
            assert_same(rollout.rewards[number], reward)
            assert_same(rollout.terminated[number], terminated)
            assert_same(rollout.truncated[number], truncated)
            assert np.array_equal(rollout.actions[number], actions_at(number))


@every
def test_every_backend_is_a_vector_env_with_the_same_signatures(backend):
    with make(backend, NUM_ENVS) as envs:
        assert isinstance(envs, shoal.VectorEnv)
        name = "cuda" if backend == "emulated" else backend.partition(",")[0]
        assert envs.backend == (name if name in ("native", "cuda") else "process")
        assert (envs.num_envs, envs.num_worlds, envs.agents_per_env) == (NUM_ENVS, NUM_ENVS, 1)
    for name, method in inspect.getmembers(ProcessVectorEnv, inspect.isfunction):
        if not name.startswith("_"):
            assert method is getattr(shoal.VectorEnv, name), f"{name} is another function there"


@every
def test_held_results_never_change_and_slots_are_reused(backend):
    with make(backend, NUM_ENVS, max_slots=3) as envs:
        held = [(envs.reset(seed=0)[0],)]
        held += [envs.step(actions_at(number)) for number in range(6)]
        before = copied(held)
        for number in range(4):
            envs.step(actions_at(number))
        assert_same(held, before)
        if backend == "emulated":  # its results belong to the array library
            return
        assert envs.stats["slots"] == 3 and envs.stats["copies"] > 0
        del held
        copies = envs.stats["copies"]
        for number in range(8):
            envs.step(actions_at(number))
        assert envs.stats["copies"] == copies


@every
def test_calls_that_are_out_of_order_are_refused_and_change_nothing(backend, expected):
    with make(backend, NUM_ENVS, length=LENGTH, episode_stats=True) as envs:
        for wait in (envs.step_wait, envs.reset_wait, envs.call_wait):
            with pytest.raises(NoAsyncCallError):
                wait()
        envs.reset_async(seed=3)
        for begin in (envs.reset, envs.reset_async, lambda: envs.rollout(3), lambda: envs.state(0)):
            with pytest.raises(AlreadyPendingCallError):
                begin()
        results = [copied(envs.reset_wait())]
        with pytest.raises(NoAsyncCallError):
            envs.reset_wait()
        for refused in (np.full(NUM_ENVS, 3.5), np.zeros(NUM_ENVS + 1, np.int64)):
            if backend.startswith(("native", "C")):  # Python environments judge actions themselves
                with pytest.raises((TypeError, ValueError)):
                    envs.step_async(refused)
        for number in range(STEPS):
            results.append(copied(step_in_two_calls(envs, actions_at(number))))
        assert_same(results, expected["NEXT_STEP"])


@every
def test_a_call_that_is_refused_while_another_is_pending_is_named(backend):
    with make(backend, NUM_ENVS) as envs:
        envs.reset(seed=0)
        envs.step_async(actions_at(0))
        calls = {"call": lambda: envs.call("spec"), "get_attr": lambda: envs.get_attr("spec")}
        calls |= {"set_attr": lambda: envs.set_attr("spec", 1), "call_async": lambda: envs.call_async("spec")}
        if envs.is_in_c:
            calls |= {"save_env": lambda: envs.save_env(0), "restore_env": lambda: envs.restore_env(0, b"")}
            calls |= {"render_env": lambda: envs.render_env(0)}
        else:
            calls |= {"render": envs.render, "np_random_seed": lambda: envs.np_random_seed}
        for name, call in calls.items():
            with pytest.raises(AlreadyPendingCallError, match=f"^Calling `{name}` while waiting"):
                call()
        assert len(envs.step_wait()) == 5


@every
@pytest.mark.parametrize(
    ("timeout", "kind", "message"),
    [
        ("1", TypeError, "timeout must be a number of seconds or None, got str: '1'"),
        ([1], TypeError, "timeout must be a number of seconds or None, got list"),
        (float("nan"), ValueError, "timeout must be a number of seconds or None, got NaN"),
    ],
)
def test_a_timeout_that_is_not_a_number_is_named_and_the_call_stays_pending(backend, timeout, kind, message):
    with make(backend, NUM_ENVS) as envs:
        envs.reset_async(seed=0)
        with pytest.raises(kind, match=message):
            envs.reset_wait(timeout)
        assert len(envs.reset_wait(10**400)[0]) == NUM_ENVS
        envs.step_async(actions_at(0))
        with pytest.raises(kind, match=message):
            envs.step_wait(timeout=timeout)
        assert envs.step_wait(timeout=60)[0][:, 0].tolist() == [1] * NUM_ENVS
        with pytest.raises(kind, match=message):
            envs.close(timeout=timeout)
        assert envs.step(actions_at(1))[0][:, 0].tolist() == [2] * NUM_ENVS


@every
def test_send_and_recv_are_for_batch_size_and_reset_and_step_are_not(backend):
    with make(backend, NUM_ENVS) as envs:
        for call in (envs.recv, envs.async_reset, lambda: envs.send([0], [0])):
            with pytest.raises(ShoalError, match="needs environments made with batch_size="):
                call()


@every
def test_after_close_every_call_is_a_closed_error(backend):
    envs = make(backend, NUM_ENVS)
    observations = envs.reset(seed=0)[0]
    before = observations.copy()
    envs.close()
    envs.close(timeout=1, terminate=True)
    calls = [envs.reset, envs.step_wait, envs.reset_wait, envs.recv, envs.async_reset]
    calls += [lambda: envs.step(actions_at(0)), lambda: envs.step_async(actions_at(0))]
    calls += [lambda: envs.rollout(2), lambda: envs.state(0), lambda: envs.stats, lambda: envs.call("spec")]
    calls += [envs.render, lambda: envs.render_env(0), lambda: envs.save_env(0)]
    for call in calls:
        with pytest.raises(ClosedError):
            call()
    assert np.array_equal(observations, before)


@every
def test_step_that_timed_out_is_not_delivered_later(backend, tmp_path):
    file = tmp_path / "latch"
    with make(backend, NUM_ENVS, file=file) as envs:
        envs.reset(seed=0)
        if backend in ("native", "native, 2 threads", "caller_steps", "emulated"):
            envs.step_async(actions_at(0))
            envs.step_wait(timeout=0.01)  # it is done when posting is
        else:
            file.touch()
            envs.step_async(actions_at(0))
            with pytest.raises(multiprocessing.TimeoutError):
                envs.step_wait(timeout=0.05)
            threading.Timer(0.3, file.unlink).start()  # the next step finds workers that are busy
        observations, *_ = envs.step(actions_at(1))
        assert observations[:, :2].tolist() == [[2, action] for action in actions_at(1)]


@asynchronous
def test_a_call_that_is_not_for_batch_size_is_named(backend):
    with make(backend, 4, batch_size=2) as envs:
        calls = {"call": lambda: envs.call("spec"), "call_async": lambda: envs.call_async("spec")}
        calls |= {"get_attr": lambda: envs.get_attr("spec"), "set_attr": lambda: envs.set_attr("spec", 1)}
        if not envs.is_in_c:
            calls |= {"render": envs.render, "np_random_seed": lambda: envs.np_random_seed}
        for name, call in calls.items():
            with pytest.raises(
                ShoalError, match=f"^{name} is not available for environments made with batch_size="
            ):
                call()


@asynchronous
def test_sending_to_no_environment_sends_nothing(backend):
    with make(backend, 4, batch_size=2) as envs:
        with pytest.raises(ResetNeeded):
            envs.send([], [])
        envs.async_reset(seed=0)
        for _ in range(2):
            envs.recv()
        envs.send([], [])
        envs.send(np.zeros(0, np.int64), np.zeros(0, np.int64))
        for actions, env_ids in (([1], []), ([], [0, 1])):
            with pytest.raises(ValueError, match="shape"):
                envs.send(actions, env_ids)
        with pytest.raises(ShoalError, match="only 0 are under way"):
            envs.recv()
        envs.send([3, 4], [0, 1])
        assert sorted(envs.recv()[0][:, 1].tolist()) == [3, 4]  # as they are ready


@asynchronous
def test_send_and_recv_step_each_environment_as_step_does(backend, expected):
    batch = 5 if backend == "native" else 1
    seen = {env: [] for env in range(NUM_ENVS)}
    with make(backend, NUM_ENVS, length=LENGTH, batch_size=batch) as envs:
        with pytest.raises(ResetNeeded):
            envs.send(np.zeros(batch, np.int64), np.arange(batch))
        for call in (envs.reset, lambda: envs.step(actions_at(0)), lambda: envs.rollout(2)):
            with pytest.raises(ShoalError, match="is not available for environments made with batch_size="):
                call()
        envs.async_reset(seed=3)
        while min(map(len, seen.values())) <= STEPS:
            observations, rewards, terminated, truncated, info = envs.recv()
            ids = info["env_id"]
            for row, env in enumerate(ids):
                seen[int(env)].append((observations[row].copy(), float(rewards[row]), bool(terminated[row])))
            envs.send(np.array([actions_at(len(seen[int(env)]) - 1)[env] for env in ids]), ids)
        envs.recv()
    for env, results in seen.items():
        assert np.array_equal(results[0][0], expected["NEXT_STEP"][0][0][env])
        for (observation, reward, ended), whole in zip(results[1:], expected["NEXT_STEP"][1:], strict=False):
            assert np.array_equal(observation, whole[0][env])
            assert (reward, ended) == (whole[1][env], whole[2][env])
