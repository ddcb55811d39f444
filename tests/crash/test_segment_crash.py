"""kill -9 of processes that hold a segment: nothing is left, nothing is lost, every name becomes free."""

from __future__ import annotations

import os

import numpy as np
import pytest

from shoal.errors import NameInUse
from shoal.memory import Layout, Segment, list_names
from shoal.memory.names import name_directory

LAYOUT = Layout({"numbers": (np.int64, (8,))})

# Each runs until its input ends, unless it is killed before.
PRELUDE = """
import multiprocessing, os, signal, sys
import numpy as np
from shoal.memory import Layout, Segment
LAYOUT = Layout({"numbers": (np.int64, (8,))})

def ready():
    print("ready", flush=True)
    sys.stdin.read()
"""
ANONYMOUS = (
    PRELUDE
    + """
segment = Segment(LAYOUT)
segment["numbers"][:] = 41
ready()
"""
)
OWNER = (
    PRELUDE
    + """
segment = Segment.named(LAYOUT, sys.argv[1])
segment["numbers"][:] = 41
ready()
"""
)
ATTACHED = (
    PRELUDE
    + """
segment = Segment.attach(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    segment["numbers"][1] += 1
    print(*segment["numbers"][:2], flush=True)
"""
)


@pytest.fixture
def start_ready(start_python):
    def start(source, *args):
        child = start_python(source, *args)
        assert child.read() == "ready"
        return child

    return start


def _entries(name):
    return [(entry.owner_pid, entry.alive) for entry in list_names() if entry.name == name]


def _claim(name) -> None:
    """The name can be had at once, and is new memory."""
    with Segment.named(LAYOUT, name) as segment:
        assert not segment["numbers"].any()
        assert _entries(name) == [(os.getpid(), True)]
    assert _entries(name) == []


# -- one death ----------------------------------------------------------------------------------------


def test_a_killed_creator_of_an_anonymous_segment_leaves_nothing(start_ready):
    before = set(os.listdir(name_directory()))
    creator = start_ready(ANONYMOUS)
    creator.kill()
    assert not {entry for entry in set(os.listdir(name_directory())) - before if "shoal" in entry}


def test_the_name_of_a_killed_owner_is_listed_as_dead(start_ready, name):
    owner = start_ready(OWNER, name)
    assert _entries(name) == [(owner.pid, True)]
    owner.kill()
    assert _entries(name) == [(owner.pid, False)]
    Segment.named(LAYOUT, name).close()


def test_name_of_a_killed_owner_is_free_at_once(start_ready, name):
    start_ready(OWNER, name).kill()
    _claim(name)


def test_name_of_a_zombie_owner_is_free(start_ready, name):
    owner = start_ready(OWNER, name)
    os.kill(owner.pid, 9)
    os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    _claim(name)


def test_an_attached_process_keeps_its_memory_when_the_owner_is_killed(start_ready, name):
    owner = start_ready(OWNER, name)
    attached = start_ready(ATTACHED, name)
    with Segment.attach(name) as segment:
        owner.kill()
        attached.write("add")
        assert attached.read() == "41 42"
        assert segment["numbers"][:3].tolist() == [41, 42, 41]
        _claim(name)
        attached.write("add")
        assert attached.read() == "41 43"
        assert segment["numbers"][1] == 43


def test_a_new_owner_of_a_name_never_touches_what_attached_processes_still_hold(start_ready, name):
    owner = start_ready(OWNER, name)
    with Segment.attach(name) as old:
        owner.kill()
        with Segment.named(LAYOUT, name) as new:
            new["numbers"][:] = 7
            assert (old["numbers"] == 41).all()


def test_a_killed_attached_process_changes_nothing_for_the_owner(start_ready, name):
    owner = start_ready(OWNER, name)
    start_ready(ATTACHED, name).kill()
    assert _entries(name) == [(owner.pid, True)]
    with pytest.raises(NameInUse):
        Segment.named(LAYOUT, name)
    with Segment.attach(name) as segment:
        assert (segment["numbers"] == 41).all()
    assert owner.end() == 0
    assert _entries(name) == []


@pytest.mark.parametrize("first", ["owner", "attached"])
def test_name_is_free_when_owner_and_attached_process_are_killed(start_ready, name, first):
    children = {"owner": start_ready(OWNER, name), "attached": start_ready(ATTACHED, name)}
    children.pop(first).kill()
    children.popitem()[1].kill()
    _claim(name)


# -- forked workers that outlive the owner ----------------------------------------------------------------

WORKERS = (
    PRELUDE
    + """
def work(segment):
    print("ready", flush=True)
    for line in sys.stdin:
        segment["numbers"][0] += 1
        print(segment["numbers"][0], flush=True)

segment = Segment.named(LAYOUT, sys.argv[1])
segment["numbers"][:] = 41
if sys.argv[2] == "os.fork":
    if os.fork() == 0:
        work(segment)
        sys.exit()
else:
    inherited = os.dup(0)  # multiprocessing takes the input from its children
    def child():
        sys.stdin = open(inherited)
        work(segment)
    multiprocessing.get_context("fork").Process(target=child).start()
signal.pause()
"""
)


@pytest.mark.parametrize("way", ["os.fork", "multiprocessing"])
def test_name_is_free_while_forked_workers_of_a_dead_owner_live(start_ready, name, way):
    owner = start_ready(WORKERS, name, way)
    owner.write("add")
    assert owner.read() == "42"
    owner.kill()
    assert _entries(name) == [(owner.pid, False)]
    _claim(name)
    owner.write("add")  # to the worker, which has the same pipes
    assert owner.read() == "43", "the worker lost its memory"
    owner.hang_up()
    assert owner.read_rest() == ""


def test_a_forked_worker_that_is_killed_leaves_the_owner_its_name(start_ready, name):
    source = (
        PRELUDE
        + """
segment = Segment.named(LAYOUT, sys.argv[1])
worker = os.fork()
if worker == 0:
    segment["numbers"][:] = 41
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(worker, 0)
ready()
"""
    )
    owner = start_ready(source, name)
    assert _entries(name) == [(owner.pid, True)]
    with Segment.attach(name) as segment:
        assert (segment["numbers"] == 41).all()
    assert owner.end() == 0


# -- death in the middle of it ----------------------------------------------------------------------------

KILLED_WHILE_CREATING = """
import os, signal, sys, time
from shoal.errors import SegmentNotFound
from shoal.memory import Layout, Segment, list_names

name, rounds = sys.argv[1], int(sys.argv[2])
layout = Layout({"a": ("u1", (4 << 20,)), "b": ("f8", (100,))})
begin = time.perf_counter()
Segment.named(layout, name).close()
duration = time.perf_counter() - begin
outcomes = {"nothing": 0, "complete": 0}
for number in range(rounds):
    started_r, started_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(started_w, b"s")
        segment = Segment.named(layout, name)
        signal.pause()
    os.read(started_r, 1)
    os.close(started_r), os.close(started_w)
    moment = time.perf_counter() + 2 * duration * number / rounds
    while time.perf_counter() < moment:
        pass
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    left = [entry for entry in list_names() if entry.name == name or f".shoal-{pid}-" in entry.name]
    if left:
        assert [(entry.name, entry.owner_pid, entry.alive) for entry in left] == [(name, pid, False)], left
        with Segment.attach(name, layout) as segment:
            assert not segment["a"].any() and not segment["b"].any()
            segment["a"][:] = segment["b"][:] = 1
    outcomes["complete" if left else "nothing"] += 1
    with Segment.named(layout, name) as segment:
        assert not segment["a"].any()
    assert not [entry for entry in list_names() if entry.name == name]
print(outcomes["nothing"] + outcomes["complete"], outcomes)
"""


def test_a_kill_at_any_moment_of_creation_leaves_nothing_or_a_whole_segment(run_python, name):
    assert run_python(KILLED_WHILE_CREATING, name, 100).startswith("100 ")
