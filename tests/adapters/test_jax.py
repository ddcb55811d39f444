"""Results as JAX arrays: jnp.array copies, DLPack shares the memory and holds the lease."""

import numpy as np
import pytest

import shoal

jax = pytest.importorskip("jax", reason="needs jax: make test-adapters ADAPTERS=jax")

ACTIONS = np.ones(64, np.int64)


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("buffers", ["leased", "live"])
def test_jnp_array_copies(buffers):
    with shoal.make_vec("CartPole-v1", 64, buffers=buffers) as envs:
        observation = envs.reset(seed=0)[0]
        before = observation.copy()
        taken = jax.numpy.array(observation).block_until_ready()
        assert taken.unsafe_buffer_pointer() != address(observation)
        del observation
        for _ in range(4):
            envs.step(ACTIONS)
        assert np.array_equal(taken, before)


@pytest.mark.parametrize("options", [{}, {"backend": "process", "num_workers": 1}])
def test_dlpack_shares_the_memory_and_holds_the_lease(options):
    with shoal.make_vec("CartPole-v1", 64, **options) as envs:
        observation = envs.reset(seed=0)[0]
        before, where = observation.copy(), address(observation)
        shared = jax.dlpack.from_dlpack(observation)
        assert shared.unsafe_buffer_pointer() == where
        del observation
        slots = {address(envs.step(ACTIONS)[0]) for _ in range(6)}
        assert where not in slots and np.array_equal(shared, before)
        del shared
        assert where in {address(envs.step(ACTIONS)[0]) for _ in range(6)}, "the lease came back"
