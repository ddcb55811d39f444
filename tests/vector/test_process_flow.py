"""send and recv over worker processes, the chunk that the caller steps, and the action buffer."""

import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.spaces import Box, Dict, Discrete, Sequence, Text
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import shoal
from shoal.errors import ShoalError
from shoal.vector import ProcessVectorEnv
from tests.vector.test_process_envs import (
    END,
    RAISE,
    SLOW,
    Broken,
    Counter,
    Sampler,
    Talkative,
    Words,
    assert_same,
    assert_same_history,
    counters,
    logged,
)


def histories(makers, mode, table, seed):
    """What SyncVectorEnv gives each environment, action by action, infos too."""
    sync = SyncVectorEnv(makers, autoreset_mode=mode)
    observations, info = sync.reset(seed=seed)
    nothing = np.float64(0), np.False_, np.False_
    found = [[(one, *nothing, of(info, i))] for i, one in enumerate(observations)]
    for actions in table:
        *parts, info = sync.step(actions)
        for i in range(len(makers)):
            found[i].append((*(part[i] for part in parts), of(info, i)))
    return found


def of(info, i):
    """The info of one environment, out of a batch. The keys are sorted: their order depends on the batch."""
    return {
        key: of(value, i) if isinstance(value, dict) else value[i]
        for key, value in sorted(info.items())
        if not key.startswith("_") and info[f"_{key}"][i]
    }


@pytest.mark.parametrize(
    "mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name
)
@pytest.mark.parametrize(("num_envs", "workers", "batch"), [(6, 2, 2), (5, 3, 1), (4, 2, 4), (7, 1, 3)])
def test_every_environments_results_arrive_once_and_in_order(num_envs, workers, batch, mode):
    makers = [Talkative] * num_envs
    table = np.random.default_rng(0).uniform(-1, 1, (80, num_envs, 2))
    expected = histories(makers, mode, table, seed=5)
    with ProcessVectorEnv(makers, num_workers=workers, batch_size=batch, autoreset_mode=mode) as envs:
        envs.async_reset(seed=5)
        done = np.zeros(num_envs, int)
        while done.max() < 80:
            *parts, info = envs.recv()
            ids = info["env_id"]
            assert ids.dtype == np.int64 and len(set(ids.tolist())) == batch == len(parts[0])
            for position, env in enumerate(ids):
                found = (*(part[position] for part in parts), of({**info, "_env_id": ids * 0}, position))
                assert_same(found, expected[env][done[env]])
            actions = table[np.minimum(done[ids], 79), ids]
            done[ids] += 1
            envs.send(actions, ids)
        assert done.min() > 0


def test_infos_are_by_position_in_the_batch():
    with ProcessVectorEnv(counters(4), num_workers=2, batch_size=2) as envs:
        envs.async_reset(seed=0)
        for _ in range(10):
            observations, rewards, *_, info = envs.recv([3, 1])
            assert info["env_id"].tolist() == observations[:, 0].tolist() == [3, 1]
            key = "count" if "count" in info else "begun"
            assert info[key].shape == (2,) and info[f"_{key}"].tolist() == [True, True]
            assert key == "begun" or info["count"].tolist() == rewards.tolist()
            envs.send([0, 0], [3, 1])


def test_two_halves_in_turn_give_whole_steps():
    halves = np.arange(3), np.arange(3, 6)
    with ProcessVectorEnv(counters(6), num_workers=2, batch_size=3) as envs:
        envs.async_reset(seed=0)
        kept = []
        for turn in range(20):
            half = halves[turn % 2]
            observations, rewards, *_, info = envs.recv(env_ids=half)
            assert observations[:, 0].tolist() == half.tolist() == info["env_id"].tolist()
            assert observations[:, 2].tolist() == rewards.tolist() == [turn // 2] * 3
            kept.append((turn, observations))
            envs.send(np.zeros(3, np.int64), half)
        for turn, observations in kept:  # what recv returned never changes
            assert observations[:, 2].tolist() == [turn // 2] * 3


def test_slow_environment_does_not_delay_others(tmp_path):
    makers = counters(4, gate=tmp_path / "gate")
    with ProcessVectorEnv(makers, num_workers=4, batch_size=2) as envs:
        envs.async_reset(seed=0)
        first = envs.recv([0, 1]), envs.recv([2, 3])
        envs.send([SLOW, 0, 0, 0], [0, 1, 2, 3])
        for _ in range(30):
            ids = envs.recv()[4]["env_id"]
            assert 0 not in ids
            envs.send([0, 0], ids)
        (tmp_path / "gate").touch()
        seen = 0
        for _ in range(1000):
            ids = envs.recv()[4]["env_id"]
            seen += 0 in ids
            if seen:
                break
            envs.send([0, 0], ids)
        assert seen == 1 and len(first) == 2


@pytest.mark.parametrize(
    ("observation", "action", "kwargs"),
    [
        (Dict(a=Box(0, 1, (2,)), t=Text(4)), Dict(a=Discrete(3), b=Box(0, 1, (2,))), {}),
        (Words(), Discrete(3), {"shared_memory": False}),
        (Sequence(Discrete(4)), Discrete(3), {}),
    ],
    ids=["nested", "custom", "unbounded"],
)
def test_send_and_recv_work_with_every_space(observation, action, kwargs):
    makers = [lambda: Sampler(observation, action)] * 4
    sync = SyncVectorEnv(makers)
    expected = [sync.reset(seed=1)[0]]
    sync.action_space.seed(0)
    batched = sync.action_space.sample()
    expected += [sync.step(batched)[0] for _ in range(6)]
    with ProcessVectorEnv(makers, num_workers=2, batch_size=2, **kwargs) as envs:
        envs.async_reset(seed=1)
        for turn in range(12):
            half = [0, 1] if turn % 2 else [3, 2]
            found, *_, info = envs.recv(half)
            for position, env in enumerate(half):
                assert_same(part(found, position), part(expected[turn // 2], env))
            envs.send(chosen(batched, half), half)


def part(batch, i):
    return {key: value[i] for key, value in batch.items()} if isinstance(batch, dict) else batch[i]


def chosen(batch, ids):
    return {key: value[ids] for key, value in batch.items()} if isinstance(batch, dict) else batch[ids]


def test_an_exception_comes_with_its_batch_and_the_others_go_on():
    with ProcessVectorEnv(counters(4), num_workers=2, batch_size=4) as envs:
        envs.async_reset(seed=0)
        envs.recv()
        envs.send([0, RAISE, 0, 0], [0, 1, 2, 3])
        with logged() as lines, pytest.raises(Broken) as caught:
            envs.recv(env_ids=[3, 2, 1, 0])
        assert caught.value.env_id == 1 and lines == []
        _, rewards, _, truncated, info = caught.value.results
        assert info["env_id"].tolist() == [3, 2, 1, 0]
        assert rewards.tolist() == [1, 1, 0, 1] and truncated.tolist() == [False, False, True, False]
        envs.send([0] * 4, range(4))
        assert envs.recv([0, 1, 2, 3])[1].tolist() == [2, 0, 2, 2]


def test_large_infos_and_observations_by_message_do_not_hang():
    class Wordy(Counter):
        observation_space = Words()

        def _seen(self):
            return [f"{self.who}:{self.count}" * 60000]

        def step(self, action):
            *rest, _ = super().step(action)
            return *rest, {"text": "x" * 500_000}

    makers = [lambda who=who: Wordy(who) for who in range(4)]
    with ProcessVectorEnv(makers, num_workers=2, batch_size=2, shared_memory=False) as envs:
        envs.async_reset(seed=0)
        for turn in range(6):
            half = [0, 1] if turn % 2 else [2, 3]
            observations, *_, info = envs.recv(half)
            assert [one[0][:3] for one in observations] == [f"{who}:{turn // 2}" for who in half]
            assert turn < 2 or [len(text) for text in info["text"]] == [500_000] * 2
            envs.send([0, 0], half)


def test_wrong_use_raises_and_never_hangs():
    with ProcessVectorEnv(counters(6), num_workers=2, batch_size=3) as envs:
        with pytest.raises(
            ShoalError, match="recv would wait for ever: it returns 3 .* only 0 are under way"
        ):
            envs.recv()
        with pytest.raises(ResetNeeded, match="call async_reset"):
            envs.send([0, 0, 0], [0, 1, 2])
        envs.async_reset(seed=0)
        with pytest.raises(ShoalError, match="under way already"):
            envs.send([0, 0, 0], [0, 1, 2])
        with pytest.raises(ShoalError, match="recv.. them before"):
            envs.async_reset()
        assert envs.recv([0, 2, 4])[4]["env_id"].tolist() == [0, 2, 4]
        bad_ids = {
            "from 0 to 5": ([0, 2, 6], IndexError),
            "got .-1": ([-1, 2, 4], IndexError),
            "at most once": ([0, 0, 2], ValueError),
            "list of ints": ([0.0, 2.0, 4.0], TypeError),
            "of shape": ([[0, 2, 4]], TypeError),
        }
        for message, (ids, kind) in bad_ids.items():
            with pytest.raises(kind, match=message):
                envs.send([0, 0, 0], ids)
            with pytest.raises(kind, match=message):
                envs.recv(ids)
        with pytest.raises(ShoalError, match="not under way; send"):
            envs.recv([0, 2, 4])
        with pytest.raises(ValueError, match=r"recv returns 3 environments \(batch_size\), got 2"):
            envs.recv([1, 3])
        with pytest.raises(
            ValueError, match=r"expected actions of shape \(3,\), found \(2,\); nothing was sent"
        ):
            envs.send([0, 0], [0, 2, 4])
        with pytest.raises(TypeError, match="expected actions of dtype int64, found float64"):
            envs.send([0.5, 0, 0], [0, 2, 4])
        with pytest.raises(ShoalError, match="under way already"):
            envs.send([0, 0], [0, 1])
        for name, arguments in {"step": ([0] * 6,), "reset": (), "call": ("who",), "rollout": (3,)}.items():
            with pytest.raises(
                ShoalError, match=f"{name} is not available for environments made with batch_size"
            ):
                getattr(envs, name)(*arguments)
        envs.send([0, 0, 0], [4, 2, 0])  # nothing of the above was sent
        counts = [envs.recv()[1].tolist() for _ in range(2)]
        assert sorted(sum(counts, [])) == [0, 0, 0, 1, 1, 1]
        with pytest.raises(ShoalError, match="only 0 are under way"):
            envs.recv()
        envs.async_reset(seed=0)  # all are home: it may begin again
        assert envs.recv()[1].tolist() == [0, 0, 0]
    with pytest.raises(ClosedEnvironmentError):
        envs.recv()


@pytest.mark.parametrize(
    ("kwargs", "kind", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be from 1 to 4"),
        ({"batch_size": 5}, ValueError, "batch_size must be from 1 to 4"),
        ({"batch_size": 2.0}, TypeError, "batch_size must be an int"),
        ({"batch_size": 2, "copy": False}, ValueError, "buffers='leased'"),
        ({"batch_size": 2, "caller_steps": True}, ValueError, "caller_steps=False"),
    ],
    ids=str,
)
def test_a_bad_batch_size_is_refused(kwargs, kind, message):
    with pytest.raises(kind, match=message):
        ProcessVectorEnv(counters(4), num_workers=2, **kwargs)


def test_without_batch_size_send_says_what_to_use():
    with ProcessVectorEnv(counters(2)) as envs:
        for call in (envs.async_reset, envs.recv, lambda: envs.send([0], [0])):
            with pytest.raises(ShoalError, match="made with batch_size=; use reset and step"):
                call()
    with pytest.raises(ValueError, match="stepped asynchronously by backend='native'"):
        shoal.make_vec("CartPole-v1", 4, backend="process", batch_size=2)


# -- the caller's own share, and actions in place -----------------------------------------------------


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
@pytest.mark.parametrize("num_envs", [1, 5])
def test_results_are_the_same_if_the_caller_steps_a_chunk(mode, num_envs):
    makers = [Talkative] * num_envs
    assert_same_history(makers, mode, steps=120, seed=2, num_workers=1, caller_steps=True)


def test_the_statistics_count_the_callers_share_too():
    for caller_steps in (False, True):
        with ProcessVectorEnv(counters(4), num_workers=2, caller_steps=caller_steps) as envs:
            envs.reset(seed=0)
            for t in range(10):
                envs.step([END if t % 3 == who else 0 for who in range(4)])
            stats = envs.stats
            assert (stats["episodes"], stats["steps"]) == (10, 31)
            assert stats["mean_length"] == 2.0 and stats["restarts"] == 0


def test_step_uses_actions_in_the_buffer():
    class Pushed(Counter):
        action_space = Box(-1, 1, (2,))

        def step(self, action):
            *rest, _ = super().step(0)
            return *rest, {"seen": action}

    rng = np.random.default_rng(0)
    with ProcessVectorEnv([Pushed] * 3, num_workers=1, caller_steps=True) as envs:
        envs.reset()
        assert envs.actions.shape == (3, 2) and envs.actions.dtype == np.float32
        for _ in range(5):
            envs.actions[:] = rng.uniform(-1, 1, (3, 2))
            assert_same(envs.step()[4]["seen"], envs.actions)
            envs.step_async()
            assert_same(envs.step_wait()[4]["seen"], envs.actions)
    with ProcessVectorEnv([lambda: Sampler(Discrete(2), Text(3))]) as envs:
        envs.reset()
        with pytest.raises(ShoalError, match="has no single action buffer; pass actions to step"):
            envs.step()
