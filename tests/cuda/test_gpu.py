"""What only a GPU has: streams, CUDA graphs, memory that returns, other array libraries."""

import gc

import numpy as np
import pytest

from shoal.errors import ShoalError
from tests.cuda.device import DEVICE, host, make, needs_gpu, put

pytestmark = needs_gpu


def graph_of(steps):
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        steps()
    return graph


def test_a_captured_loop_of_steps_does_what_the_steps_do():
    actions = [put(np.random.default_rng(k).integers(0, 2, 300)) for k in range(8)]
    with make("CartPole-v1", 300, buffers="live") as envs, make("CartPole-v1", 300) as other:
        observations = envs.reset(seed=0)[0]
        other.reset(seed=0)
        graph = graph_of(lambda: [envs.step(one) for one in actions])
        for _ in range(5):
            graph.replay()
            for one in actions:
                expected = other.step(one)[0]
            assert np.array_equal(host(observations), host(expected))
        assert envs.stats == {**other.stats, "slots": envs.stats["slots"]}


def test_a_captured_rollout_fills_its_block():
    with make("Squared-v0", 64) as envs, make("Squared-v0", 64) as other:
        rollout, plain = envs.rollout(6), other.rollout(6)
        actions = [put(np.random.default_rng(k).integers(0, 5, 64)) for k in range(6)]
        rollout.start(envs.reset(seed=0)[0])
        graph = graph_of(lambda: [rollout.step(one) for one in actions])
        for again in range(2):
            graph.replay()
            plain.start(other.reset(seed=0)[0] if again == 0 else plain.observations[6].clone())
            for one in actions:
                plain.step(one)
            assert np.array_equal(host(rollout.observations)[1:], host(plain.observations)[1:])
            assert np.array_equal(host(rollout.rewards), host(plain.rewards))


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_results_with_new_addresses_cannot_be_captured():
    with make("CartPole-v1", 64) as envs:
        envs.reset(seed=0)
        with pytest.raises(ShoalError, match="a CUDA graph repeats the addresses that it captured"):
            graph_of(lambda: envs.step(envs.actions))


def test_steps_run_on_the_current_stream():
    import torch

    with make("CartPole-v1", 128) as envs, make("CartPole-v1", 128) as other:
        envs.reset(seed=0)
        other.reset(seed=0)
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(20):
                found = envs.step(put(np.ones(128, np.int64)))[0]
        stream.synchronize()
        for _ in range(20):
            expected = other.step(put(np.ones(128, np.int64)))[0]
        assert np.array_equal(host(found), host(expected))


def test_memory_returns_with_the_environments_and_the_last_tensor():
    import torch

    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    envs = make("Squared-v0", 4096)
    held = envs.reset(seed=0)[0]
    for _ in range(3):
        envs.step(put(np.zeros(4096, np.int64)))
    with pytest.raises(TypeError):
        envs.step(put(np.zeros(4096)))
    envs.close()
    del envs
    gc.collect()
    assert torch.cuda.memory_allocated() - before < 2 * held.nbytes
    del held
    gc.collect()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("array", ["cupy", "jax"])
def test_results_are_arrays_of_other_libraries(array):
    library = pytest.importorskip(array, reason=f"machine: {array} is not there")
    with make("CartPole-v1", 32, array=array) as envs, make("CartPole-v1", 32) as other:
        assert np.array_equal(np.asarray(to_host(envs.reset(seed=0)[0])), host(other.reset(seed=0)[0]))
        numbers = np.ones(32, np.int64)
        if array == "jax":
            library.config.update("jax_enable_x64", True)
            actions = library.numpy.asarray(numbers)
        else:
            actions = library.asarray(numbers)
        for _ in range(30):
            found = envs.step(actions)
            expected = other.step(put(numbers))
        for one, two in zip(found[:4], expected[:4], strict=True):
            assert np.array_equal(to_host(one), host(two))


def to_host(value):
    return value.get() if hasattr(value, "get") else np.asarray(value)


def test_another_gpu_that_is_not_there_is_named():
    with pytest.raises(ShoalError, match=r'device="cuda:77": there are \d+ GPUs'):
        make("CartPole-v1", 2, device="cuda:77")
    assert DEVICE.startswith("cuda")
