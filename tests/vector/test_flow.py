"""send and recv return the first k ready of n; each environment behaves as if it were stepped alone."""

import gc
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

import shoal
from shoal.errors import ClosedError, ForkedError, ShoalError


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize(
    ("env", "num_envs", "batch_size"),
    [
        ("CartPole-v1", 128, 64),  # whole blocks of lanes
        ("CartPole-v1", 48, 12),  # part of each block
        ("CartPole-v1", 5, 2),
        ("Squared-v0", 12, 4),
        ("Squared-v0", 7, 7),
        ("CartPole-v1", 512, 128),  # threads take several units at once
        ("Squared-v0", 300, 75),
    ],
)
def test_environments_are_independent_of_the_order_of_results(env, num_envs, batch_size, threads):
    count = shoal.make_vec(env, 1).single_action_space.n
    table = np.random.default_rng(0).integers(0, count, (200, num_envs))
    sync = shoal.make_vec(env, num_envs)
    expected = [[(part.tobytes(), 0.0, False, False)] for part in sync.reset(seed=5)[0]]
    for step in range(120):
        result = sync.step(table[step])[:4]
        for i in range(num_envs):
            expected[i].append((result[0][i].tobytes(), *(part[i] for part in result[1:])))
    envs = shoal.make_vec(env, num_envs, batch_size=batch_size, num_threads=threads)
    envs.async_reset(seed=5)
    done = np.zeros(num_envs, int)
    while done.max() < 100:
        observations, rewards, terminated, truncated, info = envs.recv()
        ids = info["env_id"]
        assert len(set(ids.tolist())) == len(ids) == batch_size == len(observations)
        for k, i in enumerate(ids):
            found = (observations[k].tobytes(), rewards[k], terminated[k], truncated[k])
            assert found == expected[i][done[i]]
        actions = table[done[ids], ids]
        done[ids] += 1
        envs.send(actions, ids)
    envs.close()


@pytest.mark.parametrize(("env", "threads"), [("CartPole-v1", 3), ("Squared-v0", 2), ("Squared-v0", 1)])
def test_a_large_send_raises_or_steps_all_of_its_environments(env, threads):
    num_envs, half = 40_960, 20_480
    sync = shoal.make_vec(env, num_envs)
    expected = [sync.reset(seed=5)[0].copy()]
    table = np.random.default_rng(0).integers(0, sync.single_action_space.n, (20, num_envs))
    expected += [sync.step(row)[0].copy() for row in table]
    envs = shoal.make_vec(env, num_envs, batch_size=half, num_threads=threads)
    envs.async_reset(seed=5)
    done = np.zeros(num_envs, int)
    for turn in range(20):
        observations, *_, info = envs.recv()
        ids = info["env_id"]
        for step in np.unique(done[ids]):
            chosen = done[ids] == step
            assert np.array_equal(observations[chosen], expected[step][ids[chosen]])
        actions = table[done[ids], ids]
        bad_actions, bad_ids, twice = actions.copy(), ids.copy(), ids.copy()
        bad_actions[[-1, 9_000, 15_000]] = 99
        bad_ids[-1 - turn] = -1
        twice[-64:] = twice[:64]
        with pytest.raises(ValueError, match="action 99 of row 9000"):
            envs.send(bad_actions, ids)
        with pytest.raises(ValueError, match=rf"from 0 to 40959.* env_ids\[{half - 1 - turn}\] is -1"):
            envs.send(actions, bad_ids)
        with pytest.raises(
            ShoalError, match=r"env_ids\[\d+\] and env_ids\[\d+\] are both .* nothing was sent"
        ):
            envs.send(actions, twice)
        done[ids] += 1
        envs.send(actions, ids)
    envs.close()


def test_results_of_recv_never_change():
    envs = shoal.make_vec("Squared-v0", 12, batch_size=4)
    envs.async_reset(seed=0)
    kept, copies = [], []
    for _ in range(30):
        result = envs.recv()
        kept.append(result)
        copies.append([part.copy() for part in result[:4]] + [result[4]["env_id"].copy()])
        envs.send(np.zeros(4, np.int64), result[4]["env_id"])
    for result, copy in zip(kept, copies, strict=True):
        for one, other in zip((*result[:4], result[4]["env_id"]), copy, strict=True):
            assert np.array_equal(one, other)


def test_released_results_free_their_memory():
    envs = shoal.make_vec("Squared-v0", 12, batch_size=4)
    envs.async_reset(seed=0)
    for _ in range(500):
        *_, info = envs.recv()
        envs.send(np.zeros(4, np.int64), info["env_id"])
    assert envs.stats["slots"] <= 8
    assert envs.stats["steps"] > 1000


SLOW = """
#include <shoal/env.h>
#include <time.h>
/* Environment i takes 20 ms a step if i is 0, else none. */
typedef struct Slow { int64_t count; } Slow;
static const char *describe(const shoal_value *options, shoal_spec *spec) {
    (void)options;
    shoal_field f = {.dtype = SHOAL_INT64, .kind = SHOAL_BOX, .ndim = 1, .low = 0, .high = 1e9};
    f.shape[0] = 1;
    shoal_field a = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = 1};
    spec->instance_bytes = sizeof(Slow);
    spec->add_observation(spec->host, &f);
    spec->add_action(spec->host, &a);
    return 0;
}
static void show(Slow *self, shoal_envs *envs, uint64_t env) {
    *SHOAL_OBSERVATION(int64_t, envs, 0, env) = self->count;
}
static void reset_one(Slow *self, shoal_envs *envs, uint64_t env) { self->count = 0; show(self, envs, env); }
static void step_one(Slow *self, shoal_envs *envs, uint64_t env) {
    struct timespec pause = {0, 20000000};
    if (env == 0)
        nanosleep(&pause, 0);
    self->count++;
    envs->rewards[env] = 0;
    envs->terminated[env] = 0;
    show(self, envs, env);
}
SHOAL_BATCH(Slow, reset_one, step_one)
const shoal_entry_v1 shoal_entry = {.abi_major = SHOAL_ABI_MAJOR, .abi_minor = SHOAL_ABI_MINOR,
    .name = "Slow-v0", .describe = describe, .reset = Slow_reset, .step = Slow_step};
"""


@pytest.fixture
def slow(tmp_path):
    source = tmp_path / "slow.c"
    source.write_text("#define _POSIX_C_SOURCE 199309L\n" + SLOW)
    return source


def test_slow_environment_does_not_delay_others(slow):
    envs = shoal.make_vec(slow, 8, batch_size=2, num_threads=2)
    envs.async_reset(seed=0)
    counts = np.zeros(8, int)
    while counts[0] < 6:  # the first time, a thread may have taken others with it: it does not know the step
        *_, info = envs.recv()
        counts[info["env_id"]] += 1
        envs.send(np.zeros(2, np.int64), info["env_id"])
    assert counts[0] < counts[1:].min() / 2
    envs.close()


def test_ctrl_c_reaches_a_waiting_recv(slow):
    envs = shoal.make_vec(slow, 1, batch_size=1, num_threads=1)
    envs.async_reset(seed=0)
    envs.recv()
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        while True:
            envs.send([0], [0])
            envs.recv()
    timer.join()
    envs.close()


def test_wrong_use_raises_and_never_hangs():
    envs = shoal.make_vec("Squared-v0", 6, batch_size=3)
    with pytest.raises(ShoalError, match="recv would wait for ever: it returns 3 .* only 0"):
        envs.recv()
    with pytest.raises(Exception, match="call async_reset"):
        envs.send([0, 0, 0], [0, 1, 2])
    envs.async_reset(seed=0)
    with pytest.raises(ShoalError, match=r"env_ids\[0\] is 0, which is under way already; recv\(\) it first"):
        envs.send([0, 0, 0], [0, 1, 2])
    with pytest.raises(ShoalError, match="recv.. them before"):
        envs.async_reset()
    ids = envs.recv()[4]["env_id"]
    for bad in ([9, 1, 2], [-1, 0, 1], [2**62, 0, 1]):
        with pytest.raises(ValueError, match="env_ids must name environments"):
            envs.send([0, 0, 0], bad)
    with pytest.raises(ShoalError, match=rf"env_ids\[0\] and env_ids\[1\] are both {ids[0]}; nothing was"):
        envs.send([0, 0, 0], [ids[0]] * 3)
    with pytest.raises(ValueError, match=r"expected shape \(3,\), found \(\)"):
        envs.send(None, ids)
    with pytest.raises(TypeError, match="env_ids must be a list of ints"):
        envs.send([0, 0, 0], [0.0, 1.0, 2.0])
    with pytest.raises(ValueError, match=r"expected shape \(3,\), found \(2,\)"):
        envs.send([0, 0], ids)
    with pytest.raises(ValueError, match="action 9 of row 1"):
        envs.send([0, 9, 0], ids)
    for name in ("step", "reset"):
        with pytest.raises(ShoalError, match="not available for environments made with batch_size"):
            getattr(envs, name)()
    envs.send([0, 0, 0], ids)
    envs.recv(), envs.recv()
    with pytest.raises(ShoalError, match="only 0 are under way"):
        envs.recv()
    envs.close()
    with pytest.raises(ClosedError):
        envs.recv()


@pytest.mark.parametrize("batch_size", [2, 4, 6])
def test_a_refused_send_of_all_environments_changes_no_batch(batch_size):
    with (
        shoal.make_vec("Squared-v0", 12) as sync,
        shoal.make_vec("Squared-v0", 12, batch_size=batch_size, num_threads=2) as envs,
    ):
        expected = sync.reset(seed=1)[0]
        envs.async_reset(seed=1)
        for _ in range(30):
            seen = set()
            with pytest.raises(ShoalError, match="under way already"):
                envs.send(np.zeros(12, np.int64), np.arange(12))
            for _ in range(12 // batch_size):
                observations, *_, info = envs.recv()
                assert np.array_equal(observations, expected[info["env_id"]])
                seen.update(info["env_id"].tolist())
            assert len(seen) == 12
            envs.send(np.ones(12, np.int64), np.arange(12))
            expected = sync.step(np.ones(12, np.int64))[0].copy()


def test_actions_in_the_buffer_itself_can_be_sent_in_any_order():
    with (
        shoal.make_vec("Squared-v0", 4) as sync,
        shoal.make_vec("Squared-v0", 4, batch_size=4, num_threads=1) as envs,
    ):
        sync.reset(seed=1)
        envs.async_reset(seed=1)
        envs.recv()
        envs.actions[:] = [1, 2, 3, 4]
        envs.send(envs.actions, [1, 0, 3, 2])
        observations, *_, info = envs.recv()
        assert np.array_equal(observations, sync.step(np.array([2, 1, 4, 3]))[0][info["env_id"]])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"batch_size": 0}, "batch_size must be from 1 to 32"),
        ({"batch_size": 64}, "batch_size must be from 1 to 32"),
        ({"batch_size": 16, "autoreset_mode": "SameStep"}, "needs autoreset_mode NEXT_STEP"),
        ({"batch_size": 16, "buffers": "live"}, "buffers='leased'"),
    ],
    ids=str,
)
def test_a_bad_batch_size_is_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        shoal.make_vec("CartPole-v1", 32, **kwargs)


def test_without_batch_size_send_says_what_to_use():
    with pytest.raises(ShoalError, match="made with batch_size=; use reset and step"):
        shoal.make_vec("CartPole-v1", 2).recv()


def test_read_only_ids_can_be_sent():
    envs = shoal.make_vec("Squared-v0", 6, batch_size=3)
    envs.async_reset(seed=0)
    ids = envs.recv()[4]["env_id"]
    ids.flags.writeable = False
    envs.send([0, 0, 0], ids)
    assert len(envs.recv()[0]) == 3


def test_ctrl_c_during_async_reset_leaves_nothing_under_way():
    envs = shoal.make_vec("Squared-v0", 64, batch_size=16, num_threads=2)

    def interrupt(frame, event, argument):
        if event == "call" and "lending" in frame.f_code.co_filename:  # the memory of results is being made
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            envs.async_reset(seed=0)
    finally:
        sys.setprofile(None)
    envs.async_reset(seed=0)
    ids = [env for _ in range(4) for env in envs.recv()[4]["env_id"]]
    assert sorted(ids) == list(range(64))
    with pytest.raises(ShoalError, match="only 0 are under way"):
        envs.recv()


def test_close_with_environments_under_way_ends_the_threads():
    def threads():
        gc.collect()
        return len(os.listdir("/proc/self/task"))

    before = threads()
    for _ in range(20):
        envs = shoal.make_vec("Squared-v0", 64, batch_size=8, num_threads=3)
        envs.async_reset(seed=0)
        envs.recv()
        if _ % 2:
            envs.close()
        del envs
    deadline = time.monotonic() + 5
    while threads() != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() == before


def test_a_forked_child_gets_an_error():
    envs = shoal.make_vec("Squared-v0", 4, batch_size=2)
    envs.async_reset(seed=0)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        code = 1
        try:
            envs.recv()
        except ForkedError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    envs.recv()
