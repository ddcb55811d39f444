"""A rollout's transitions are its steps without the resets."""

import numpy as np
import pytest

from shoal.cluster import FleetRollout, Writers
from shoal.errors import ShoalError
from shoal.replay import ReplayBuffer


def rollout(terminated, over, nested=False, **more):
    steps, rows = np.shape(terminated)
    seen = np.arange((steps + 1) * rows, dtype=np.float32).reshape(steps + 1, rows)
    flags = np.asarray(terminated, np.bool_)
    given = {
        "observations": {"a": seen, "b": (seen + 100,)} if nested else seen,
        "actions": np.arange(steps * rows).reshape(steps, rows),
        "rewards": np.ones((steps, rows)),
        "terminated": flags,
        "truncated": np.zeros_like(flags),
        "over": np.asarray(over, np.bool_),
        "extras": {"score": np.arange(steps * rows).reshape(steps, rows) / 2},
    }
    stamps = {"version": 1, "runner": 0, "node": "n", "number": 0, "life": 0}
    return FleetRollout(**{**given, **stamps, **more})


def test_the_step_after_the_end_of_an_episode_is_not_a_transition():
    made = rollout([[0, 1], [0, 0], [1, 0]], over=[True, False])
    assert made.counts.tolist() == [[False, True], [True, False], [True, True]]
    rows = made.transitions()
    assert rows["obs"].tolist() == [1, 2, 4, 5]
    assert rows["next_obs"].tolist() == [3, 4, 6, 7]
    assert rows["action"].tolist() == [1, 2, 4, 5]
    assert rows["terminated"].tolist() == [True, False, True, False]


def test_transitions_are_views_if_every_step_is_a_transition():
    made = rollout(np.zeros((3, 2)), over=[False, False])
    rows = made.transitions()
    for name, array in (
        ("obs", made.observations),
        ("next_obs", made.observations),
        ("reward", made.rewards),
    ):
        assert np.shares_memory(rows[name], array)


def test_nested_observations_stay_nested():
    rows = rollout([[0, 1], [0, 0]], over=[0, 0], nested=True).transitions()
    assert rows["obs"]["a"].tolist() == [0, 1, 2] and rows["next_obs"]["b"][0].tolist() == [102, 103, 104]


def test_a_plain_buffer_gets_only_its_own_fields():
    made = rollout([[0, 1], [0, 0]], over=[0, 0])
    fields = {"obs": (np.float32, ()), "reward": (np.float32, ()), "score": (np.float64, ())}
    with ReplayBuffer(8, fields) as buffer:
        Writers(buffer).add(made)
        assert buffer.latest(8)["obs"].tolist() == [0, 1, 2]
        assert buffer.latest(8)["score"].tolist() == [0, 0.5, 1.0]
    with ReplayBuffer(8, {"obs": (np.float32, ()), "nope": (np.float32, ())}) as buffer:
        with pytest.raises(
            ShoalError, match=r"the buffer has fields \['nope'\].* it has \['obs', .*'score'\]"
        ):
            Writers(buffer).add(made)


def test_nbytes_is_the_size_of_all_arrays():
    assert rollout(np.zeros((3, 2)), over=[0, 0]).nbytes == 8 * 4 + 6 * 8 + 6 * 8 + 6 + 6 + 2 + 6 * 8
