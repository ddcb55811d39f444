"""A fleet as a vector environment: it is slow, and otherwise equal to one vector environment of that size."""

import numpy as np
import pytest

import shoal
from shoal.cluster import Fleet


def test_stepping_a_fleet_equals_stepping_a_local_vector_environment(cluster):
    with Fleet("CartPole-v1", 8) as fleet, shoal.make_vec("CartPole-v1", 16, session=None) as here:
        there = fleet.vector_env()
        assert there.num_envs == 16 and there.observation_space.shape == (16, 4)
        assert (there.reset(seed=7)[0] == here.reset(seed=7)[0]).all()
        rng = np.random.default_rng(0)
        for _ in range(60):
            actions = rng.integers(2, size=16)
            for found, expected in zip(there.step(actions)[:4], here.step(actions)[:4], strict=True):
                assert (found == expected).all() and found.dtype == expected.dtype
        last = there.step(actions)[0]
        arriving = fleet.rollouts(4, timeout_s=60)
        # Rollouts of the fleet start with a reset.
        assert next(arriving).observations.shape == (5, 8, 4) and last.shape == (16, 4)
        with pytest.raises(
            ValueError, match=r"16 rows, one for each environment; found an array of shape \(3,\)"
        ):
            there.step(np.zeros(3, np.int64))
        with pytest.raises(ValueError, match="seed"):
            there.reset(seed=-1)
        there.close()  # the fleet stays
        next(arriving)
