"""Segments across processes and libraries: the memory travels, never a copy, and nobody can lose it."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest

from shoal import errors
from shoal.memory import Layout, Segment

LAYOUT = Layout({"numbers": (np.int64, (8,))})

# Runs before each script below, also in processes that are spawned.
PRELUDE = """
import gc, multiprocessing, os, sys
import numpy as np
from shoal.errors import ClosedError
from shoal.memory import Layout, Segment, list_names

LAYOUT = Layout({"numbers": (np.int64, (8,))})

def identity(segment):
    found = os.fstat(segment._handles.fd)
    return found.st_dev, found.st_ino
"""

start_methods = pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])


# -- multiprocessing ----------------------------------------------------------------------------------


@start_methods
@pytest.mark.parametrize("how", ["argument", "queue", "pipe"])
def test_a_segment_crosses_as_a_descriptor_and_both_sides_see_each_other(run_python, method, how):
    source = """
def child(how, given, sync):
    segment = {"argument": lambda: given, "queue": lambda: given.get(), "pipe": lambda: given.recv()}[how]()
    numbers = segment["numbers"]
    numbers[1] = numbers[0] + 1
    sync.send(identity(segment))
    sync.recv()
    sync.send(int(numbers[2]))

if __name__ == "__main__":
    context, how = multiprocessing.get_context(sys.argv[1]), sys.argv[2]
    segment = Segment(LAYOUT)
    segment["numbers"][0] = 41
    queue, (ours, theirs), (near, far) = context.Queue(), context.Pipe(), context.Pipe()
    given = {"argument": segment, "queue": queue, "pipe": far}[how]
    process = context.Process(target=child, args=(how, given, theirs))
    process.start()
    if how == "queue":
        queue.put(segment)
    elif how == "pipe":
        near.send(segment)
    assert ours.recv() == identity(segment), "the child has other memory"
    assert segment["numbers"][1] == 42
    segment["numbers"][2] = 43
    ours.send(None)
    assert ours.recv() == 43
    process.join()
    assert process.exitcode == 0
"""
    run_python(PRELUDE + source, method, how)


@start_methods
def test_many_segments_cross_in_one_message(run_python, method):
    source = """
def child(pipe):
    segments = pipe.recv()
    for segment in segments:
        segment["numbers"][1] = segment["numbers"][0] + 1000
    pipe.send(None)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    segments = [Segment(LAYOUT) for _ in range(60)]
    for number, segment in enumerate(segments):
        segment["numbers"][0] = number
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(theirs,))
    process.start()
    before = len(os.listdir("/proc/self/fd"))
    ours.send(segments)
    ours.recv()
    assert [int(segment["numbers"][1]) for segment in segments] == list(range(1000, 1060))
    process.join()
    assert process.exitcode == 0
    assert len(os.listdir("/proc/self/fd")) < before + 10, "a descriptor stayed for each segment"
"""
    run_python(PRELUDE + source, method)


@start_methods
def test_a_child_keeps_the_memory_after_the_parent_closed_it(run_python, method):
    source = """
def child(segment, sync):
    sync.send("has it")
    sync.recv()
    assert segment["numbers"][0] == 41
    segment["numbers"][0] += 1
    sync.send(int(segment["numbers"][0]))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    segment = Segment(LAYOUT)
    segment["numbers"][0] = 41
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(segment, theirs))
    process.start()
    ours.recv()
    segment.close()
    del segment
    gc.collect()
    ours.send(None)
    assert ours.recv() == 42
    process.join()
    assert process.exitcode == 0
"""
    run_python(PRELUDE + source, method)


@start_methods
def test_a_segment_made_by_a_child_outlives_it(run_python, method):
    source = """
def child(pipe):
    segment = Segment(LAYOUT)
    segment["numbers"][:] = range(8)
    pipe.send(segment)
    pipe.recv()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(theirs,))
    process.start()
    segment = ours.recv()
    ours.send(None)
    process.join()
    assert segment["numbers"].tolist() == list(range(8))
"""
    run_python(PRELUDE + source, method)


@start_methods
def test_a_reader_is_a_reader_in_the_child_too(run_python, method):
    source = """
def child(reader):
    assert reader.readonly and not reader["numbers"].flags.writeable and reader["numbers"][0] == 41

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    segment = Segment(LAYOUT)
    segment["numbers"][0] = 41
    process = context.Process(target=child, args=(segment.reader(),))
    process.start()
    process.join()
    assert process.exitcode == 0
"""
    run_python(PRELUDE + source, method)


@start_methods
@pytest.mark.parametrize("ending", ["close", "exit"])
def test_a_child_that_ends_leaves_the_name_to_its_owner(run_python, name, method, ending):
    source = """
def child(segment, ending):
    segment["numbers"][0] = 1
    if ending == "close":
        segment.close()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with Segment.named(LAYOUT, sys.argv[3]) as segment:
        process = context.Process(target=child, args=(segment, sys.argv[2]))
        process.start()
        process.join()
        assert process.exitcode == 0
        assert segment.path.exists() and segment["numbers"][0] == 1
        assert [entry.alive for entry in list_names() if entry.name == sys.argv[3]] == [True]
    assert not segment.path.exists()
"""
    run_python(PRELUDE + source, method, ending, name)


def test_a_segment_inside_another_picklers_data_crosses_at_process_start(run_python):
    """Gymnasium wraps environment functions in cloudpickle, which knows nothing of descriptors."""
    source = """
from gymnasium.vector.utils import CloudpickleWrapper

def child(wrapped):
    wrapped.fn()

if __name__ == "__main__":
    segment = Segment(LAYOUT)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=child, args=(CloudpickleWrapper(lambda: segment["numbers"].fill(7)),))
    process.start()
    process.join()
    assert process.exitcode == 0 and (segment["numbers"] == 7).all()
"""
    run_python(PRELUDE + source)


def test_a_closed_segment_cannot_be_sent(run_python):
    source = """
ours, theirs = multiprocessing.Pipe()
segment = Segment(LAYOUT)
segment.close()
try:
    ours.send(segment)
except ClosedError as error:
    print(error)
"""
    assert "is closed" in run_python(PRELUDE + source)


# -- fork ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ending", ["segment.close()", "os._exit(0)", "sys.exit()", "del segment; gc.collect()"]
)
def test_forked_child_shares_memory_and_never_removes_the_name(run_python, name, ending):
    source = f"""
segment = Segment.named(LAYOUT, sys.argv[1])
segment["numbers"][0] = 41
pid = os.fork()
if pid == 0:
    segment["numbers"][1] = segment["numbers"][0] + 1
    {ending}
    sys.exit()
assert os.waitpid(pid, 0)[1] == 0
assert segment["numbers"][1] == 42
assert [entry.alive for entry in list_names() if entry.name == sys.argv[1]] == [True]
segment["numbers"][2] = 3
with Segment.attach(sys.argv[1]) as other:
    assert other["numbers"][:3].tolist() == [41, 42, 3]
segment.close()
assert not segment.path.exists()
"""
    run_python(PRELUDE + source, name)


def test_forked_child_that_drops_an_inherited_segment_keeps_its_own_lock(run_python, name):
    """The child's own lock gets the very descriptor number that the inherited lock had."""
    source = """
inherited = Segment.named(LAYOUT, sys.argv[1])
pid = os.fork()
if pid == 0:
    own = Segment.named(LAYOUT, sys.argv[1] + "-child")
    assert own._handles.lock_fd == inherited._handles.lock_fd
    inherited.close()
    alive = {entry.name: entry.alive for entry in list_names()}
    assert alive[sys.argv[1] + "-child"]
    own.close()
    sys.exit()
assert os.waitpid(pid, 0)[1] == 0
inherited.close()
"""
    run_python(PRELUDE + source, name)


# -- copies, pickles, errors ----------------------------------------------------------------------------


def test_pickle_refuses_a_segment_and_says_what_to_do():
    with Segment(LAYOUT) as segment:
        with pytest.raises(
            TypeError, match="pickle cannot store a Segment, .* Pass it as an argument of multiprocessing"
        ):
            pickle.dumps(segment)


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy])
def test_copy_refuses_a_segment_and_says_what_to_do(copier):
    with Segment(LAYOUT) as segment:
        with pytest.raises(TypeError, match=r"copy its arrays instead: segment\[field\].copy\(\)"):
            copier(segment)


ERRORS = [getattr(errors, name) for name in errors.__all__ if name != "ShoalError"]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_crosses_pickle_with_its_message_and_facts(kind):
    again = pickle.loads(pickle.dumps(kind("what happened", need_bytes=7, pid=None)))
    assert type(again) is kind and str(again) == "what happened"
    assert (again.need_bytes, again.pid) == (7, None)
    assert isinstance(again, errors.ShoalError)


# -- other libraries ----------------------------------------------------------------------------------


def test_numpy_takes_an_array_by_dlpack_without_a_copy():
    with Segment(LAYOUT) as segment:
        assert np.shares_memory(np.from_dlpack(segment["numbers"]), segment["numbers"])


def test_an_array_taken_by_dlpack_keeps_the_memory():
    segment = Segment(LAYOUT)
    taken = np.from_dlpack(segment["numbers"])
    segment["numbers"][:] = 5
    segment.close()
    del segment
    gc.collect()
    assert (taken == 5).all()


def test_torch_takes_an_array_without_a_copy_and_keeps_the_memory():
    torch = pytest.importorskip("torch", reason="needs torch: make torch")
    segment = Segment(LAYOUT)
    tensor = torch.from_dlpack(segment["numbers"])
    segment["numbers"][2] = 6
    assert tensor[2] == 6
    tensor[3] = 7
    assert segment["numbers"][3] == 7
    segment.close()
    del segment
    gc.collect()
    assert tensor.tolist() == [0, 0, 6, 7, 0, 0, 0, 0]
