"""Leases of worker processes and rollouts: arrays that are kept never change, released slots are reused."""

import copy
import gc
import os

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, OneOf, Sequence, Text, Tuple

from shoal.errors import ShoalError
from shoal.vector import ProcessVectorEnv
from tests.vector.test_process_envs import RAISE, Broken, Counter, Sampler, assert_same, counters, logged

ZEROS = [0, 0]


def stepped(**kwargs):
    envs = ProcessVectorEnv(counters(2), num_workers=2, **kwargs)
    envs.reset(seed=0)
    return envs


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("kwargs", [{}, {"copy": True}, {"buffers": "copy"}, {"max_slots": 3}], ids=str)
def test_results_kept_in_a_list_never_change(kwargs):
    with stepped(**kwargs) as envs:
        kept = [envs.step(ZEROS)[:4] for _ in range(12)]
        for count, (observations, rewards, terminated, truncated) in enumerate(kept, 1):
            assert observations[:, 2].tolist() == rewards.tolist() == [count, count]
            assert not terminated.any() and not truncated.any()
            assert not any(envs.shares_buffer(part) for part in (observations, rewards, terminated))
        assert len({address(result[0]) for result in kept}) == 12


def test_copy_false_returns_live_buffers():
    with stepped(copy=False) as envs:
        assert envs.buffers == "live"
        first = envs.step(ZEROS)
        second = envs.step(ZEROS)
        assert np.shares_memory(first[0], second[0])
        assert first[0][:, 2].tolist() == second[1].tolist() == [2, 2]
        assert first[1].tolist() == [1, 1]  # as in Gymnasium, rewards and flags are the caller's
        for one, other in zip(first[1:4], second[1:4], strict=True):
            assert not np.shares_memory(one, other) and not envs.shares_buffer(one)
        assert envs.shares_buffer(first[0]) and envs.shares_buffer(first[0][1:, 1])
        assert not envs.shares_buffer(first[0].copy())
        assert envs.stats["slots"] == 0
    with stepped(copy=False, buffers="leased") as envs:  # buffers has the last word
        assert envs.step(ZEROS)[0] is not envs.step(ZEROS)[0] and envs.buffers == "leased"


def test_released_slot_is_used_again():
    with stepped() as envs:
        seen = set()
        for _ in range(200):
            observations, *_ = envs.step(ZEROS)
            seen.add(address(observations))
        assert len(seen) <= 2 and envs.stats["slots"] <= 3 and envs.stats["copies"] == 0


def test_results_beyond_max_slots_are_copied_and_counted():
    with stepped(max_slots=3) as envs:
        kept = [envs.step(ZEROS) for _ in range(10)]
        stats = envs.stats
        assert stats["slots"] == 3 and 6 <= stats["copies"] <= 8  # the reset may hold a slot too
        assert [result[1][0] for result in kept] == list(range(1, 11))
        del kept
        envs.step(ZEROS)
        assert envs.stats["copies"] == stats["copies"]


@pytest.mark.parametrize(
    "hold",
    [lambda a: a[1:], lambda a: a.T, memoryview, lambda a: a.view(np.int32)[::2], lambda a: iter(a)],
    ids=["slice", "transposed", "memoryview", "view", "iterator"],
)
@pytest.mark.parametrize("part", [0, 1])
def test_any_view_of_any_part_holds_the_slot(hold, part):
    with stepped() as envs:
        held = hold(envs.step(ZEROS)[part])
        for _ in range(6):
            envs.step(ZEROS)
        expected = [[0, 1, 1], [1, 1, 1]] if part == 0 else [1.0, 1.0]
        expected = np.array(expected, np.float32 if part == 0 else np.float64)
        if hasattr(held, "__next__"):
            assert_same(np.stack(list(held)), expected)
        else:
            assert np.array(held).tobytes() == np.array(hold(expected)).tobytes()


def test_a_torch_tensor_holds_its_slot():
    torch = pytest.importorskip("torch", reason="needs torch: make torch")
    with stepped() as envs:
        tensor = torch.from_numpy(envs.step(ZEROS)[0])
        for _ in range(6):
            envs.step(ZEROS)
        assert tensor[:, 2].tolist() == [1, 1]


@pytest.mark.parametrize(
    "space",
    [
        Dict(a=Box(0, 1, (2,)), b=Tuple((Discrete(99), Box(0, 1, ())))),
        OneOf((Box(0, 1, (2,)), Dict(c=Box(0, 1, (3,))))),
        Sequence(Box(0, 1, (2,)), stack=True),
        Sequence(Box(0, 1, (2,))),
        Graph(Box(0, 1, (2,)), Discrete(3)),
        Dict(t=Text(4), s=Sequence(Discrete(5))),
    ],
    ids=["Dict", "OneOf", "stacked Sequence", "Sequence", "Graph", "Text"],
)
def test_results_of_every_shape_never_change(space):
    def maker():
        return Sampler(space, Discrete(2))

    bounds = {"max_length": 24, "max_nodes": 12, "max_edges": 128}
    for max_slots in (64, 1):
        with ProcessVectorEnv([maker] * 2, num_workers=2, max_slots=max_slots, **bounds) as envs:
            envs.reset(seed=0)
            kept = [envs.step(ZEROS)[0] for _ in range(8)]
            copies = copy.deepcopy(kept)
            for _ in range(8):
                envs.step(ZEROS)
            assert_same(kept, copies)


def test_results_stay_valid_after_close_and_after_the_environments_are_gone():
    envs = stepped()
    result = envs.step(ZEROS)
    envs.close()
    del envs
    gc.collect()
    assert result[0].tolist() == [[0, 1, 1], [1, 1, 1]] and result[1].tolist() == [1, 1]
    result[0][:] = 3


@pytest.mark.parametrize("copy", [True, False])
def test_results_of_an_error_are_copies(copy):
    with stepped(copy=copy) as envs:
        with logged(), pytest.raises(Broken) as caught:
            envs.step([0, RAISE])
        for _ in range(5):
            envs.step(ZEROS)
        assert caught.value.results[0][0].tolist() == [0, 1, 1]
        assert caught.value.results[1].tolist() == [1, 0]


def test_making_and_dropping_environments_leaks_nothing():
    def count():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    stepped().close()
    before = count()
    for number in range(8):
        envs = stepped()
        kept = [envs.step(ZEROS), envs.rollout(3)]
        if number % 2:
            envs.close()
        del envs, kept
    assert count() == before


# -- rollouts -----------------------------------------------------------------------------------------


class Nested(Counter):
    """Dict observations and Tuple actions."""

    observation_space = Dict(who=Discrete(99), seen=Box(-1e6, 1e6, (3,)))
    action_space = Tuple((Discrete(10), Box(0, 1, (2,))))

    def _seen(self):
        return {"who": self.who, "seen": super()._seen()}

    def step(self, action):
        return super().step(action[0])


@pytest.mark.parametrize("caller_steps", [False, True])
def test_rollout_holds_what_step_would_return(caller_steps):
    with stepped(caller_steps=caller_steps) as envs, stepped() as other:
        rollout = envs.rollout(5)
        assert rollout.observations.shape == (6, 2, 3) and rollout.rewards.shape == (5, 2)
        observation, expected = envs.reset(seed=4)[0], [other.reset(seed=4)[0]]
        place = address(rollout.observations)
        for _ in range(2):  # the block is filled twice: addresses stay
            rollout.start(observation)
            for t in range(5):
                actions = np.array([t, 6 if t == 3 else 1])  # 6 ends the episode
                info, result = rollout.step(actions), other.step(actions)
                expected.append(result[0])
                assert_same(rollout.rewards[t], result[1])
                assert_same(rollout.terminated[t], result[2])
                assert_same(rollout.truncated[t], result[3])
                assert_same(rollout.actions[t], actions)
                assert_same(info, result[4])
            assert_same(rollout.observations, np.stack(expected))
            assert address(rollout.observations) == place
            observation, expected = rollout.observations[5].copy(), expected[-1:]
        with pytest.raises(IndexError, match="full after 5 steps"):
            rollout.step(actions)
        assert_same(envs.step(ZEROS), other.step(ZEROS))


def test_rollout_of_nested_spaces_has_nested_blocks():
    with ProcessVectorEnv([lambda who=who: Nested(who) for who in range(3)], num_workers=2) as envs:
        rollout = envs.rollout(4)
        rollout.start(envs.reset(seed=0)[0])
        envs.action_space.seed(0)
        for t in range(4):
            actions = envs.action_space.sample()
            actions = np.minimum(actions[0], 5), actions[1]
            rollout.step(actions)
            assert_same(rollout.actions[0][t], actions[0])
            assert_same(rollout.actions[1][t], actions[1])
        assert rollout.observations["seen"][:, 1].tolist() == [[1, 1, t] for t in range(5)]
        assert rollout.observations["who"].tolist() == [[0, 1, 2]] * 5


def test_a_masked_reset_after_a_rollout_keeps_the_others_observations():
    with stepped() as envs:
        rollout = envs.rollout(3)
        rollout.start(envs.reset(seed=1)[0])
        for _ in range(2):
            rollout.step(ZEROS)
        observation = envs.reset(options={"reset_mask": np.array([True, False])})[0]
        assert observation.tolist() == [[0, 3, 0], [1, 2, 2]]


def test_rollouts_come_and_go_and_outlive_their_environments():
    with stepped() as envs:
        for _ in range(5):
            rollout = envs.rollout(2)
            rollout.start(envs.reset(seed=0)[0])
            rollout.step(ZEROS)
    with pytest.raises(Exception, match="after a call to `close"):
        rollout.step(ZEROS)
    assert rollout.rewards[0].tolist() == [1, 1]


def test_rollout_raises_if_spaces_do_not_support_it():
    with (
        stepped(autoreset_mode="SAME_STEP") as envs,
        pytest.raises(ShoalError, match="cannot store the final"),
    ):
        envs.rollout(3)
    with ProcessVectorEnv([lambda: Sampler(Text(3), Discrete(2))] * 2) as envs:
        with pytest.raises(ShoalError, match="the space of observation is not an array"):
            envs.rollout(3)
    with ProcessVectorEnv([lambda: Sampler(Sequence(Discrete(2)), Discrete(2))] * 2) as envs:
        with pytest.raises(ShoalError, match="actions in shared memory"):
            envs.rollout(3)
    with stepped() as envs, pytest.raises(ValueError, match="length must be from 1"):
        envs.rollout(0)
