"""`device=`: no second copy on the CPU, and no reuse of memory that a copy to a GPU still reads."""

import subprocess
import sys
import warnings

import numpy as np
import pytest

from shoal.replay import Batch, PrioritizedBatch, ReplayBuffer, TrajectoryBuffer, tensors
from shoal.replay.sampling import Sampling
from shoal.replay.tensors import _SETS
from tests.replay.late_gpu import install
from tests.replay.samplers import SAMPLERS, check, make_plain_buffer

EVERY = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="needs torch: make torch")


@pytest.fixture(params=["fake", "real"])
def gpu(request, monkeypatch):
    if request.param == "real":
        request.getfixturevalue("torch")
    return install(monkeypatch, real=request.param == "real")


# -- on the CPU ---------------------------------------------------------------------------------------


@EVERY
def test_tensors_have_the_same_values_as_arrays(make, torch):
    (one, sample), (other, arrays) = make(), make()
    batch, expected = sample(30, device="cpu"), arrays(30)
    assert type(batch) is type(expected) and list(batch) == list(expected)
    for name, array in expected.items():
        assert isinstance(batch[name], torch.Tensor)
        assert torch.equal(batch[name], torch.from_numpy(array)), name
    assert isinstance(batch.ids, np.ndarray) and np.array_equal(batch.ids, expected.ids)
    if isinstance(expected, PrioritizedBatch):
        assert torch.equal(batch.weights, torch.from_numpy(expected.weights))
    assert sample(3, device=torch.device("cpu")).ids.shape == (3,)
    one.close(), other.close()


@EVERY
def test_cpu_tensor_shares_the_leased_memory_and_does_not_change(make, torch, monkeypatch):
    gathered = []
    monkeypatch.setattr(
        Sampling, "lease", lambda *what, real=Sampling.lease: gathered.append(real(*what)) or gathered[-1]
    )
    buffer, sample = make()
    batch = sample(30, device="cpu")
    for name, array in gathered[0].items():
        assert not array.size or np.shares_memory(batch[name].numpy(), array)
    if isinstance(batch, PrioritizedBatch):
        assert np.shares_memory(batch.weights.numpy(), gathered[0].weights)
    before = {name: tensor.clone() for name, tensor in batch.items()}
    gathered.clear()
    for _ in range(5):
        sample(30, device="cpu")
        gathered.clear()
    assert all(torch.equal(batch[name], tensor) for name, tensor in before.items())
    check(batch, buffer)
    buffer.close()


# -- on a GPU -----------------------------------------------------------------------------------------


@EVERY
def test_gpu_batch_is_correct_however_late_the_copies_are(make, gpu):
    buffer, sample = make()
    batches = [sample(n, device="cuda:1") for n in (16, 16, 16, 5, 40, 16, 16)]
    gpu.finish()
    for batch in batches:
        check(batch, buffer)
        assert isinstance(batch, Batch) and isinstance(batch.ids, np.ndarray)
        assert len(batch.ids) == len(next(iter(batch.values())))
    buffer.close()


@EVERY
def test_gpu_batches_have_the_same_values_as_arrays(make, gpu):
    (one, sample), (other, arrays) = make(), make()
    pairs = [(sample(12, device="cuda:0"), arrays(12)) for _ in range(5)]
    gpu.finish()
    for batch, expected in pairs:
        assert np.array_equal(batch.ids, expected.ids)
        for name, array in expected.items():
            assert np.array_equal(np.asarray(batch[name]), array), name
        if isinstance(expected, PrioritizedBatch):
            assert np.array_equal(np.asarray(batch.weights), expected.weights)
    one.close(), other.close()


def test_a_pinned_set_is_reused_only_after_its_event(gpu):
    with make_plain_buffer() as buffer:
        for _ in range(_SETS + 1):
            buffer.sample(8, device="cuda:0")
    copies = [("copy", "cuda:0")] * 4
    begin = [
        ("event", 0),
        ("wait", 0),
        *copies,
        ("record", 0),
        ("event", 1),
        ("wait", 1),
        *copies,
        ("record", 1),
    ]
    assert gpu.log == [*begin, ("wait", 0), *copies, ("record", 0)]
    assert len(gpu.pinned) == _SETS, "memory is kept"


def test_rows_are_copied_into_page_locked_memory_after_the_wait(gpu, monkeypatch):
    real = Sampling.fill

    def fill(self, batch, options):
        assert all(np.shares_memory(array, gpu.pinned[-1]) for array in batch.values() if array.size)
        assert gpu.log[-1][0] == "wait"
        gpu.log.append(("gather", ""))
        real(self, batch, options)

    monkeypatch.setattr(Sampling, "fill", fill)
    with make_plain_buffer() as buffer:
        buffer.sample(8, device="cuda:0")
    assert [entry[0] for entry in gpu.log] == ["event", "wait", "gather", *["copy"] * 4, "record"]


def test_memory_grows_with_the_largest_batch_and_not_with_their_number(gpu):
    with make_plain_buffer() as buffer:
        for n in (4, 4, 50, 50, *range(1, 50)):
            buffer.sample(n, device="cuda:0")
        assert len(gpu.pinned) == 2 * _SETS


def test_each_device_has_its_own_sets_and_cuda_means_the_current_device(gpu):
    with make_plain_buffer() as buffer:
        buffer.sample(8, device="cuda:0")
        gpu.current = 2
        buffer.sample(8, device="cuda")
        buffer.sample(8, device="cuda:2")
    assert [entry[1] for entry in gpu.log if entry[0] == "copy"] == ["cuda:0"] * 4 + ["cuda:2"] * 8
    assert [entry[1] for entry in gpu.log if entry[0] == "record"] == [0, 1, 2]


def test_a_failed_sample_does_not_damage_other_batches(gpu, monkeypatch):
    with make_plain_buffer() as buffer:
        batches = [buffer.sample(8, device="cuda:0") for _ in range(2)]
        with monkeypatch.context() as patch:
            fail = lambda self, batch, options: [array.fill(1) for array in batch.values()] + [1 / 0]  # noqa: E731
            patch.setattr(Sampling, "fill", fail)
            with pytest.raises(ZeroDivisionError):
                buffer.sample(8, device="cuda:0")
        batches += [buffer.sample(8, device="cuda:0") for _ in range(3)]
        gpu.finish()
        for batch in batches:
            check(batch, buffer)


def test_without_a_cuda_device_it_warns_once_and_uses_the_cpu(gpu, monkeypatch):
    gpu.available = False
    monkeypatch.setattr(tensors, "_warned", set())
    with make_plain_buffer() as buffer:
        with pytest.warns(RuntimeWarning, match="no CUDA device") as warned:
            batch = buffer.sample(8, device="cuda")
        assert warned[0].filename == __file__
        check(batch, buffer)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            buffer.sample(8, device="cuda")


# -- either way ---------------------------------------------------------------------------------------


@EVERY
def test_out_and_device_cannot_be_combined(make):
    buffer, sample = make()
    with pytest.raises(ValueError, match="out is for arrays, device for tensors; give one"):
        sample(8, out=dict(sample(8)), device="cpu")
    buffer.close()


def test_without_torch_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with make_plain_buffer() as buffer:
        with pytest.raises(ImportError, match=r'pip install "shoal\[torch\]"'):
            buffer.sample(8, device="cpu")
        check(buffer.sample(8), buffer)


def test_empty_buffer_and_bad_count_raise_with_a_device_too(gpu):
    with ReplayBuffer(4, {"x": (np.float32, ())}) as buffer:
        for device in ("cpu", "cuda:0"):
            with pytest.raises(ValueError, match="empty buffer"):
                buffer.sample(1, device=device)
            with pytest.raises(ValueError, match="n must be at least 1"):
                buffer.sample(0, device=device)


def test_torch_is_imported_only_when_a_device_is_given():
    script = (
        "import sys, numpy as np; from shoal.replay import PrioritizedSampler, ReplayBuffer\n"
        "buffer = ReplayBuffer(4, {'x': (np.float32, ())}); buffer.push({'x': 1.0})\n"
        "buffer.sample(2); PrioritizedSampler(buffer).sample(2); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_all_sampling_methods_of_a_trajectory_buffer_take_a_device():
    import inspect

    samplers = [name for name in dir(TrajectoryBuffer) if name.startswith("sample")]
    assert samplers == ["sample", "sample_n_step", "sample_sequences"]
    for name in samplers:
        assert {"device", "out"} <= set(inspect.signature(getattr(TrajectoryBuffer, name)).parameters)
