"""Results as torch tensors, memory registered with CUDA, and parts of the environments that take turns.

CUDA is a pretended one where there is none: a table of what is registered, and events that pass when told.
"""

import ctypes
import gc
import re
import warnings

import gymnasium
import numpy as np
import pytest

import shoal
from shoal.replay import tensors as replay_tensors

torch = pytest.importorskip("torch", reason="needs torch: make torch")
gpu = pytest.importorskip("shoal.torch")

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="machine: no CUDA device")
REFUSED = 1


def address(array):
    return array.__array_interface__["data"][0]


def mapped(start):
    """Whether there is memory at an address."""
    with open("/proc/self/maps") as maps:
        ranges = (line.split()[0].split("-") for line in maps)
        return any(int(low, 16) <= start < int(high, 16) for low, high in ranges)


class Runtime:
    """A CUDA runtime that registers memory in a table."""

    def __init__(self):
        self.registered, self.calls, self.ended, self.refuses = {}, 0, [], False

    def cudaHostRegister(self, start, size, flags):
        assert start not in self.registered, "registered twice"
        self.calls += 1
        if self.refuses:
            return REFUSED
        self.registered[start] = size
        return 0

    def cudaHostUnregister(self, start):
        del self.registered[start]
        self.ended.append(mapped(start))

    def cudaGetErrorString(self, code):
        assert code == REFUSED
        return "invalid argument"

    def holds(self, array):
        return any(
            start <= address(array) and address(array) + array.nbytes <= start + size
            for start, size in self.registered.items()
        )


@pytest.fixture
def runtime(monkeypatch):
    pretended = Runtime()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: pretended)
    yield pretended
    gc.collect()


# -- tensors and their leases -----------------------------------------------------------------------------


def test_tensors_share_the_arrays_memory_and_nesting():
    arrays = {"a": np.arange(3), "b": (np.zeros(2, np.float32), np.array([True, False]))}
    found = gpu.tensors(arrays)
    arrays["a"][1], arrays["b"][0][1], arrays["b"][1][1] = 7, 8, True
    assert found["a"].tolist() == [0, 7, 2]
    assert found["b"][0].tolist() == [0, 8]
    assert found["b"][1].tolist() == [True, True]


@pytest.mark.parametrize("options", [{}, {"backend": "process", "num_workers": 1}])
def test_tensor_holds_the_lease(options):
    with shoal.make_vec("CartPole-v1", 4, **options) as envs:
        part = gpu.tensors(envs.reset(seed=0)[0])[2]  # of the arrays themselves nothing is kept
        before = part.clone()
        for _ in range(8):
            envs.step(np.ones(4, np.int64))
        assert torch.equal(part, before)


# -- pin --------------------------------------------------------------------------------------------------


def test_without_cuda_everything_works_with_one_warning(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(replay_tensors, "_warned", set())
    with shoal.make_vec("CartPole-v1", 4, batch_size=2) as envs:
        with pytest.warns(RuntimeWarning, match="no CUDA device") as said:
            assert gpu.pin(envs) is False
        assert said[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert gpu.pin(envs) is False
            prefetch = gpu.Prefetcher(envs, seed=0, device="cuda")
            step = next(prefetch)
            assert step.observations.device.type == "cpu"
            prefetch.send(np.zeros(2, np.int64))
            assert gpu.to_device(np.ones(3), "cuda:0").device.type == "cpu"


@pytest.mark.parametrize(
    "options",
    [{}, {"batch_size": 2}, {"backend": "process", "num_workers": 1}, {"autoreset_mode": "SameStep"}],
)
def test_lent_memory_is_registered_once_before_its_first_use(runtime, options):
    with shoal.make_vec("CartPole-v1", 4, **options) as envs:
        assert gpu.pin(envs) is True
        kept = []
        if "batch_size" in options:
            envs.async_reset(seed=0)
            for _ in range(6):
                kept.append(envs.recv())
                envs.send(np.zeros(2, np.int64), kept[-1][-1]["env_id"])
        else:
            envs.reset(seed=0)
            kept = [envs.step(np.zeros(4, np.int64)) for _ in range(6)]
            rollouts = [] if options.get("autoreset_mode") else [envs.rollout(3)]
            kept += [(block.observations, block.rewards) for block in rollouts]
        calls = runtime.calls
        assert len({address(results[0]) for results in kept}) == len(kept)
        for results in kept:
            assert all(runtime.holds(array) for array in results if isinstance(array, np.ndarray))
        assert gpu.pin(envs) is True and runtime.calls == calls


@pytest.mark.parametrize("backend", ["native", "process"])
def test_slots_made_before_pin_are_registered_too(runtime, backend):
    with shoal.make_vec("CartPole-v1", 4, backend=backend) as envs:
        kept = [envs.reset(seed=0)[0], *(envs.step(np.zeros(4, np.int64))[0] for _ in range(3))]
        assert not any(runtime.holds(array) for array in kept)
        gpu.pin(gymnasium.wrappers.vector.RecordEpisodeStatistics(envs))
        assert all(runtime.holds(array) for array in kept)


@pytest.mark.parametrize("backend", ["native", "process"])
def test_memory_is_unregistered_before_it_is_unmapped(runtime, backend):
    envs = shoal.make_vec("CartPole-v1", 4, backend=backend)
    gpu.pin(envs)
    observation = envs.reset(seed=0)[0]
    envs.close()
    del envs
    gc.collect()
    assert runtime.holds(observation), "the array is still there, so its memory is"
    del observation
    gc.collect()
    assert runtime.registered == {}
    assert runtime.ended and all(runtime.ended), "CUDA must forget memory before it is unmapped"


def test_segments_rollouts_and_their_arrays_can_be_pinned(runtime):
    segment = shoal.Segment(shoal.Layout({"a": (np.float32, (5,)), "b": (np.int64, (2, 3))}))
    assert gpu.pin([segment["a"][1:], {"b": segment["b"]}])
    assert list(runtime.registered) == [segment.mapping.address]
    assert gpu.pin(segment) and runtime.calls == 1
    with shoal.make_vec("CartPole-v1", 4) as envs:
        block = envs.rollout(3)
        assert gpu.pin(block)
        assert runtime.holds(block.observations) and runtime.holds(block.rewards)


def test_failed_registration_raises_and_clears_cudas_error(runtime, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "zeros", lambda *args, **named: asked.append(named))
    runtime.refuses = True
    segment = shoal.Segment(shoal.Layout({"a": (np.float32, (5,))}))
    with pytest.raises(
        RuntimeError, match=r"does not register these \d+ bytes: invalid argument.*file segments"
    ):
        gpu.pin(segment)
    assert asked == [{"device": "cuda"}]


def test_slot_that_cuda_does_not_register_still_works(runtime, monkeypatch):
    monkeypatch.setattr(torch, "zeros", lambda *args, **named: None)
    monkeypatch.setattr(replay_tensors, "_warned", set())
    with shoal.make_vec("CartPole-v1", 4) as envs:
        gpu.pin(envs)
        kept = [envs.reset(seed=0)]
        runtime.refuses = True
        with pytest.warns(
            RuntimeWarning, match="did not register memory of results .invalid argument."
        ) as said:
            kept += [envs.step(np.zeros(4, np.int64)) for _ in range(4)]
        assert len(said) == 1
        assert len({address(results[0]) for results in kept}) == 5


@pytest.mark.parametrize(
    ("what", "found"),
    [(np.zeros(3), "an array that is not in a segment"), ("CartPole-v1", "str"), ([1, 2], "int")],
)
def test_pin_of_another_object_is_an_error_that_names_it(what, found):
    with pytest.raises(TypeError, match=f"vector environment, a Rollout, a Segment or arrays.*{found}"):
        gpu.pin(what)


def test_pin_of_a_replay_buffer_points_to_sample():
    buffer = shoal.ReplayBuffer(8, {"a": (np.float32, ())})
    with pytest.raises(TypeError, match=re.escape('sample(n, device="cuda")')):
        gpu.pin(buffer)


# -- copies under way -------------------------------------------------------------------------------------


class LateEvent:
    """An event that passes when it is told to."""

    passed = False

    def record(self, stream):
        pass

    def query(self):
        return type(self).passed


def test_lease_is_held_until_the_copy_has_finished(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", LateEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, place, non_blocking: tensor.clone())
    monkeypatch.setattr(LateEvent, "passed", False)
    with shoal.make_vec("CartPole-v1", 4) as envs:
        observation = envs.reset(seed=0)[0]
        before, start, size = observation.tobytes(), address(observation), observation.nbytes
        gpu.to_device({"seen": observation}, "cuda")
        del observation
        for _ in range(6):
            seen = envs.step(np.ones(4, np.int64))[0]
        assert ctypes.string_at(start, size) == before, "filled again while the copy reads it"
        LateEvent.passed = True
        gpu.to_device(seen, "cuda")
        gpu.to_device(seen, "cuda")
        for _ in range(6):
            seen = envs.step(np.ones(4, np.int64))[0]
        assert ctypes.string_at(start, size) != before, "held for ever"


# -- Prefetcher -------------------------------------------------------------------------------------------


def histories(num_envs, steps, results):
    """What each environment gave, in order: results are (env ids, observations, rewards, flags ...)."""
    seen = {env: [] for env in range(num_envs)}
    for ids, *arrays in results:
        for row, env in enumerate(ids):
            seen[int(env)].append(tuple(np.asarray(array[row]).tobytes() for array in arrays))
    return {env: rows[:steps] for env, rows in seen.items()}


def chosen(observations):
    return (np.asarray(observations)[:, 2] > 0).astype(np.int64)


def in_python():
    return gymnasium.make("CartPole-v1")


@pytest.mark.parametrize("batch", [4, 2])
@pytest.mark.parametrize("env", ["CartPole-v1", in_python])
def test_prefetched_parts_give_the_same_episodes_as_steps(batch, env):
    steps, num_envs = 120, 8
    with shoal.make_vec(env, num_envs) as envs:
        observation, _ = envs.reset(seed=3)
        nothing = np.zeros(num_envs), np.zeros(num_envs, bool), np.zeros(num_envs, bool)
        want = [(range(num_envs), observation.copy(), *nothing)]
        for _ in range(steps):
            observation, *rest, _ = envs.step(chosen(observation))
            want.append((range(num_envs), observation.copy(), *(part.copy() for part in rest)))
    with shoal.make_vec(env, num_envs, batch_size=batch) as envs:
        prefetch = gpu.Prefetcher(envs, "cpu", seed=3)
        found, rows = [], np.zeros(num_envs, int)
        while rows.min() <= steps:  # a worker without a core may fall behind the others
            step = next(prefetch)
            rows[step.info["env_id"]] += 1
            found.append((step.info["env_id"].copy(), *(part.clone().numpy() for part in step[:4])))
            prefetch.send(torch.from_numpy(chosen(step.observations)))
    ours, theirs = histories(num_envs, steps, found), histories(num_envs, steps, want)
    assert all(len(rows) == steps for rows in ours.values())
    assert ours == theirs


def test_next_part_is_received_before_waiting_for_actions():
    with shoal.make_vec("CartPole-v1", 4, batch_size=2) as envs:
        prefetch = gpu.Prefetcher(envs, "cpu", seed=0)
        done = []
        recv, send = envs.recv, envs.send
        envs.recv = lambda: (done.append("recv"), recv())[1]
        envs.send = lambda *args: (done.append("send"), send(*args))[1]
        for _ in range(3):
            prefetch.send(np.zeros(len(next(prefetch).rewards), np.int64))
        assert done == ["recv", "recv", "send", "recv", "send", "recv", "send"]


def test_interrupted_receive_can_be_repeated():
    with shoal.make_vec("CartPole-v1", 6, batch_size=2) as envs:
        prefetch = gpu.Prefetcher(envs, "cpu", seed=0)
        seen = [next(prefetch)]
        send = envs.send
        envs.send = lambda *args: (_ for _ in ()).throw(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            prefetch.send(np.zeros(2, np.int64))
        envs.send = send
        for _ in range(2):
            prefetch.send(np.zeros(2, np.int64))
            seen.append(next(prefetch))
        assert sorted(env for step in seen for env in step.info["env_id"]) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("batch", [None, 3, 4])
def test_prefetcher_needs_at_least_two_parts(batch):
    options = {} if batch is None else {"batch_size": batch}
    with shoal.make_vec("CartPole-v1", 4, **options) as envs:
        with pytest.raises(ValueError, match=rf"batch_size=2 or less, found batch_size={batch}"):
            gpu.Prefetcher(envs, "cpu")


def test_step_and_send_must_alternate():
    with shoal.make_vec("CartPole-v1", 4, batch_size=2) as envs:
        prefetch = gpu.Prefetcher(envs, "cpu")
        with pytest.raises(shoal.ShoalError, match="no step waits for actions"):
            prefetch.send(np.zeros(2, np.int64))
        next(prefetch)
        with pytest.raises(shoal.ShoalError, match=r"call send\(\) before"):
            next(prefetch)
    with pytest.raises(TypeError, match="needs the result of shoal.make_vec, got list"):
        gpu.Prefetcher([])


# -- with a real device -----------------------------------------------------------------------------------


@needs_cuda
def test_lent_memory_is_pinned_and_released():
    with shoal.make_vec("Pixels-v0", 64) as envs:
        gpu.pin(envs)
        assert gpu.tensors(envs.reset(seed=0)[0]).is_pinned()


@needs_cuda
def test_pin_of_a_file_segment_is_an_error_and_cuda_still_works(tmp_path):
    segment = shoal.Segment.file(shoal.Layout({"a": (np.float32, (5,))}), tmp_path / "a.seg")
    with pytest.raises(RuntimeError, match="file segments cannot be registered"):
        gpu.pin(segment)
    assert float((torch.zeros(3, device="cuda") + 1).sum()) == 3


@needs_cuda
def test_copies_are_right_if_arrays_are_deleted_early():
    with shoal.make_vec("Pixels-v0", 2048) as envs:
        gpu.pin(envs)
        kept, actions = [envs.reset(seed=0)[0]], np.zeros(2048, np.int64)
        for _ in range(20):
            before = kept[0].copy()
            torch.cuda._sleep(5_000_000)
            there = gpu.to_device(kept.pop(), "cuda")
            for _ in range(3):
                kept = [envs.step(actions)[0]]
            assert np.array_equal(there.cpu().numpy(), before)


@needs_cuda
def test_prefetched_parts_on_the_device_match_steps():
    steps, num_envs = 60, 512
    policy = torch.nn.Linear(4, 2).cuda()

    def choose(seen):
        torch.cuda._sleep(200_000)
        with torch.no_grad():
            return policy(seen.float()).argmax(1)

    found = []
    with shoal.make_vec("CartPole-v1", num_envs, batch_size=num_envs // 2) as envs:
        prefetch = gpu.Prefetcher(envs, "cuda", seed=3)
        acted = []
        for _ in range(2 * steps):
            step = next(prefetch)
            actions = choose(step.observations)
            prefetch.send(actions)
            acted.append((step.info["env_id"].copy(), actions.cpu().numpy()))
            found.append((step.info["env_id"].copy(), *(part.cpu().numpy() for part in step[:4])))
    ours = histories(num_envs, steps, found)
    actions = histories(num_envs, steps, acted)
    with shoal.make_vec("CartPole-v1", num_envs) as envs:
        observation, _ = envs.reset(seed=3)
        nothing = np.zeros(num_envs), np.zeros(num_envs, bool), np.zeros(num_envs, bool)
        want = [(range(num_envs), observation.copy(), *nothing)]
        for t in range(steps - 1):
            given = np.array([np.frombuffer(actions[env][t][0], np.int64)[0] for env in range(num_envs)])
            observation, *rest, _ = envs.step(given)
            want.append((range(num_envs), observation.copy(), *(part.copy() for part in rest)))
    assert ours == histories(num_envs, steps, want)


@needs_cuda
def test_replay_batches_on_the_device_are_the_rows():
    buffer = shoal.ReplayBuffer(4096, {"number": (np.int64, ()), "body": (np.int64, (1024,))})
    numbers = np.arange(4096)
    buffer.extend({"number": numbers, "body": np.repeat(numbers[:, None], 1024, 1)})
    batches = [buffer.sample(512, device="cuda") for _ in range(20)]
    for batch in batches:
        assert batch["number"].is_cuda
        assert bool((batch["body"] == batch["number"][:, None]).all())
