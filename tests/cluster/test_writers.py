"""Rollouts of several runners in one replay buffer: each transition once, none across runners or faults."""

import dataclasses

import numpy as np
import pytest

import shoal
from shoal.cluster import Fleet, Writers
from shoal.errors import ShoalError
from tests.cluster.policies import Leaning


def rows_of(rollouts):
    """Returns a counter of all transitions, as bytes."""
    found = []
    for rollout in rollouts:
        rows = rollout.transitions()
        for i in range(len(rows["reward"])):
            found.append((rows["obs"][i].tobytes(), rows["action"][i].item(), rows["next_obs"][i].tobytes()))
    return found


@pytest.fixture(scope="module")
def fleet(cluster):
    with Fleet("CartPole-v1", 4, policy=Leaning, seed=0) as made:
        yield made


def test_a_trajectory_buffer_gets_exactly_the_transitions(fleet):
    arriving = fleet.rollouts(16, timeout_s=60)
    rollouts = [next(arriving) for _ in range(20)]
    expected = rows_of(rollouts)
    assert len(set(expected)) == len(expected) and any(rollout.terminated.any() for rollout in rollouts)
    with shoal.ReplayBuffer.for_env(fleet, 10_000) as buffer:
        writers = Writers(buffer)
        for rollout in rollouts:
            writers.add(rollout)
        drawn = buffer.sample(20_000)
        found = {
            (drawn["obs"][i].tobytes(), drawn["action"][i].item(), drawn["next_obs"][i].tobytes())
            for i in range(20_000)
        }
        assert found == set(expected)


def test_a_missing_rollout_does_not_join_the_steps_around_it(fleet):
    arriving = fleet.rollouts(16, timeout_s=60)
    rollouts = [next(arriving) for _ in range(12)]
    runner = rollouts[0].runner
    mine = [rollout for rollout in rollouts if rollout.runner == runner][:3]
    kept = [mine[0], mine[2]]
    with shoal.ReplayBuffer.for_env(fleet, 1_000) as buffer:
        writers = Writers(buffer)
        for rollout in kept:
            writers.add(rollout)
        drawn = buffer.sample(4_000)
        found = {(drawn["obs"][i].tobytes(), drawn["next_obs"][i].tobytes()) for i in range(4_000)}
        assert found == {(before, after) for before, _, after in rows_of(kept)}


def test_a_plain_buffer_is_extended_with_views(fleet):
    rollout = next(fleet.rollouts(16, timeout_s=60))
    fields = {"obs": (np.float32, (4,)), "action": (np.int64, ()), "lean": (np.float32, ())}
    with shoal.ReplayBuffer(1_000, fields) as buffer:
        Writers(buffer).add(rollout)
        rows = buffer.latest(1_000)
        assert (rows["obs"] == rollout.transitions()["obs"]).all()
        assert (rows["lean"] == rows["obs"][:, 2]).all() and len(buffer) == rollout.counts.sum()


def test_a_buffer_for_another_number_of_environments_raises(fleet):
    rollout = next(fleet.rollouts(16, timeout_s=60))
    with shoal.make_vec("CartPole-v1", 3, session=None) as envs:
        with shoal.ReplayBuffer.for_env(envs, 100) as buffer:
            with pytest.raises(ShoalError, match="of 3 environments, but the rollout has 4; .*for_env.fleet"):
                Writers(buffer).add(rollout)
    assert dataclasses.is_dataclass(rollout)
