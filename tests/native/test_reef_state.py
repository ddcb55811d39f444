"""Reef-v0 through Shoal: the exported state of each world beside what its fish observe."""

from __future__ import annotations

import numpy as np

import shoal
from tests.native.reef_policy import random, scripted
from tests.native.test_reef import C, R, expected_maps


def test_each_worlds_state_is_what_its_fish_see():
    with shoal.make_vec("Reef-v0", 3) as envs:
        observations, _ = envs.reset(seed=0)
        rng = np.random.default_rng(0)
        for tick in range(1, 101):
            observations, *_ = envs.step(scripted(observations, rng))
            for world in range(3):
                state = envs.state_arrays(world)
                assert int(state["tick"]) == tick
                seen = observations["map"][16 * world : 16 * (world + 1)]
                np.testing.assert_array_equal(seen, expected_maps(state, 16, 11))


def test_state_and_state_arrays_agree():
    with shoal.make_vec("Reef-v0", 2, height=24, width=32, num_agents=5, num_enemies=7) as envs:
        envs.reset(seed=1)
        arrays, described = envs.state_arrays(1), envs.state(1)
        assert set(arrays) == set(described) == {"terrain", "food", "positions", "inner", "tick", "totals"}
        assert arrays["terrain"].shape == (24, 32) and arrays["terrain"].dtype == np.int8
        assert arrays["positions"].shape == (12, 10) and arrays["positions"].dtype == np.int32
        assert arrays["tick"].shape == ()
        for name, array in arrays.items():
            assert tuple(described[name]["shape"]) == array.shape
            assert np.dtype(described[name]["dtype"]) == array.dtype


def test_worlds_differ_and_a_reset_zeroes_the_tick():
    with shoal.make_vec("Reef-v0", 4) as envs:
        envs.reset(seed=0)
        rng = np.random.default_rng(0)
        for _ in range(10):
            envs.step(random({"self": np.zeros(envs.num_envs)}, rng))
        states = [envs.state_arrays(world) for world in range(4)]
        assert {int(state["tick"]) for state in states} == {10}
        assert len({state["terrain"].tobytes() for state in states}) == 4
        for state in states:
            there = state["positions"][state["positions"][:, R] >= 0]
            assert len(np.unique(there[:, R] * 64 + there[:, C])) == len(there)
        envs.reset(seed=0)
        assert {int(envs.state_arrays(world)["tick"]) for world in range(4)} == {0}
