"""Shoal's classes and functions replace Gymnasium's."""

import gymnasium
import gymnasium.vector
import pytest

import shoal
from shoal.vector import ProcessVectorEnv


@pytest.fixture
def swapped(monkeypatch):
    for place in (gymnasium.vector, gymnasium.vector.async_vector_env):
        monkeypatch.setattr(place, "AsyncVectorEnv", ProcessVectorEnv)
    for place in (gymnasium.vector, gymnasium.vector.vector_env):
        monkeypatch.setattr(place, "VectorEnv", shoal.VectorEnv)


def test_gymnasiums_async_mode_makes_our_workers(swapped):
    with gymnasium.make_vec("FrozenLake-v1", 2, vectorization_mode="async") as envs:
        assert isinstance(envs, ProcessVectorEnv)
        assert envs.reset(seed=0)[0].tolist() == [0, 0]


def test_async_vector_env_steps_with_shoals_vector_env_class(swapped):
    with shoal.make_vec("FrozenLake-v1", 4, batch_size=2, num_workers=2) as envs:
        envs.async_reset(seed=0)
        results = envs.recv()
        envs.send(results[2].astype(int), results[4]["env_id"])
        assert len(envs.recv()[4]["env_id"]) == 2


def test_shoals_make_vec_replaces_gymnasiums(swapped, monkeypatch):
    for place in (gymnasium, gymnasium.envs.registration):
        monkeypatch.setattr(place, "make_vec", shoal.make_vec)
    for name in ("shoal/CartPole-v1", "CartPole-v1", "FrozenLake-v1"):
        with gymnasium.make_vec(name, 2, vectorization_mode="async", vector_kwargs={"daemon": True}) as envs:
            assert isinstance(envs, ProcessVectorEnv) and len(envs.reset(seed=0)[0]) == 2
