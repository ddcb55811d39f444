"""A fake GPU that copies as late as possible: when the program waits for a later event, or at the end.

So memory that is filled again too early shows up as wrong values. Under the real torch, whose functions are
replaced, or under a torch of NumPy arrays that has just what is needed.
"""

import sys
import types

import numpy as np


class Gpu:
    """The pending copies, and a log of what happened in order."""

    def __init__(self):
        self.waiting, self.log, self.pinned = [], [], []
        self.available, self.current = True, 0

    def copy(self, source, target, device, non_blocking):
        assert non_blocking, "a copy that waits"
        assert any(np.shares_memory(source, memory) for memory in self.pinned) or not source.size
        self.log.append(("copy", str(device)))
        self.waiting.append(lambda: np.copyto(target, source))

    def finish(self, count=None):
        count = len(self.waiting) if count is None else count
        for copy in self.waiting[:count]:
            copy()
        # What is done stays in its place, so that an event's count means the same for ever.
        self.waiting[:count] = [lambda: None] * count

    def event(gpu):
        class Event:
            number = sum(entry[0] == "event" for entry in gpu.log)

            def __init__(self):
                self.after = 0
                gpu.log.append(("event", self.number))

            def record(self, stream):
                assert stream == ("stream", gpu.log[-1][1]), "the stream that the copies are in"
                self.after = len(gpu.waiting)
                gpu.log.append(("record", self.number))

            def synchronize(self):
                gpu.log.append(("wait", self.number))
                gpu.finish(self.after)

        return Event()

    def functions(self, torch):
        """Returns the functions that replace those of `torch.cuda`."""
        return {
            "Event": self.event,
            "current_stream": lambda device: ("stream", str(device)),
            "is_available": lambda: self.available,
            "current_device": lambda: self.current,
        }


class FakeTensor:
    """An array with a tensor's methods."""

    def __init__(self, array, gpu, device="cpu"):
        self.array, self.gpu, self.device, self.dtype = array, gpu, device, array.dtype

    def numpy(self):
        assert self.device == "cpu"
        return self.array

    def __array__(self, dtype=None, copy=None):
        return self.array

    def __len__(self):
        return len(self.array)

    def numel(self):
        return self.array.size

    def __getitem__(self, where):
        return FakeTensor(self.array[where], self.gpu)

    def view(self, *kind):
        if isinstance(kind[0], np.dtype):
            return FakeTensor(self.array.view(kind[0]), self.gpu)
        return FakeTensor(self.array.reshape(kind), self.gpu)

    def to(self, device, non_blocking=False):
        if device.type == "cpu":
            return self
        target = np.full_like(self.array, 99)
        self.gpu.copy(self.array, target, device, non_blocking)
        return FakeTensor(target, self.gpu, device)


class FakeDevice:
    def __init__(self, name, index=None):
        self.type, _, number = str(name).partition(":")
        self.index = int(number) if number else index

    def __str__(self):
        return self.type if self.index is None else f"{self.type}:{self.index}"


def fake_torch(gpu):
    """Returns a module with the parts of torch that Shoal uses."""

    def empty(size, dtype, pin_memory):
        assert pin_memory
        gpu.pinned.append(np.empty(size, dtype))
        return FakeTensor(gpu.pinned[-1], gpu)

    torch = types.ModuleType("torch")
    torch.device, torch.uint8, torch.empty = FakeDevice, np.dtype(np.uint8), empty
    torch.from_numpy = lambda array: FakeTensor(array, gpu)
    torch.cuda = types.SimpleNamespace(**gpu.functions(torch))
    return torch


def install(monkeypatch, real):
    """Puts the late GPU behind torch, the real one or a fake."""
    gpu = Gpu()
    if not real:
        monkeypatch.setitem(sys.modules, "torch", fake_torch(gpu))
        return gpu
    import torch

    plain_empty, plain_to = torch.empty, torch.Tensor.to

    def empty(*size, pin_memory=False, **options):
        tensor = plain_empty(*size, **options)
        if pin_memory:
            gpu.pinned.append(tensor.numpy())
        return tensor

    def to(tensor, device, non_blocking=False):
        if torch.device(device).type == "cpu":
            return plain_to(tensor, device)
        target = torch.zeros_like(tensor)
        gpu.copy(tensor.numpy(), target.numpy(), device, non_blocking)
        return target

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.Tensor, "to", to)
    for name, function in gpu.functions(torch).items():
        monkeypatch.setattr(torch.cuda, name, function)
    return gpu
