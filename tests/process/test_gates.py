"""Gates from Python: both sides of core/binding/gate.hpp, a parent and a forked worker."""

from __future__ import annotations

import contextlib
import os
import random
import time

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from shoal import _core
from shoal.memory import Layout, Segment
from shoal.process.pool import DIED, IDLE, TIMEOUT
from shoal.vector import ProcessVectorEnv

FOREVER_NS = 2**62

PRELUDE = """
import os, random, signal, sys, time
import numpy as np
from shoal import _core
from shoal.memory import Layout, Segment

IDLE, TIMEOUT, DIED = _core.GATES_IDLE, _core.GATES_TIMEOUT, _core.GATES_DIED
FOREVER_NS = 2**62
workers = 2
board = Segment(Layout({"gates": (np.uint8, (workers, _core.GATE_BYTES)),
                        "wakeup": (np.uint8, (_core.WAKEUP_BYTES,)),
                        "finished_at": (np.float64, (workers,))}))
wakeup_fd, write_fd = _core.wakeup_create()
gates = _core.Gates(board["gates"], board["wakeup"], workers, wakeup_fd, False)

def fork_worker(w, work):
    pid = os.fork()
    if pid == 0:
        gate = _core.Gate(board["gates"], board["wakeup"], w, write_fd, False)
        while True:
            command = gate.wait()
            work(w, gate, command)
            board["finished_at"][w] = time.monotonic()
            gate.finish(command, 0)
    gates.watch(w, os.pidfd_open(pid), False)
    return pid

def end(*pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
"""

HAND_OFFS = (
    PRELUDE
    + """
# Mostly so long that the parent expects to sleep and looks but briefly; else about as long as it looks.
spans = [150e-6 if i % 4 else random.uniform(3e-6, 14e-6) for i in range(1000)]
finished = board["finished_at"]
pid = os.fork()
if pid == 0:
    gate = _core.Gate(board["gates"], board["wakeup"], 0, write_fd, False)
    clock, wait, finish = time.monotonic, gate.wait, gate.finish  # as fast as Python can
    while True:
        turn = wait()
        until = clock() + spans[turn % 1000]
        while clock() < until:
            pass
        finished[0] = clock()
        finish(turn, 0)
gates.watch(0, os.pidfd_open(pid), False)
late = 0
for turn in range(1, int(sys.argv[1])):
    gates.post(0, turn, 0, 0, 0)
    assert gates.wait(FOREVER_NS) == IDLE
    late += time.monotonic() - finished[0] > 0.04
    assert gates.reply(0) == (turn, 0)
end(pid)
print(late)
"""
)


def test_a_worker_that_finishes_as_the_parent_goes_to_sleep_wakes_it(run_python):
    assert int(run_python(HAND_OFFS, 15000)) <= 5  # who has finished is not slept through


ONE_OF_TWO = (
    PRELUDE
    + """
def serve(w, gate, command):
    time.sleep(command / 1000)

pids = [fork_worker(w, serve) for w in range(workers)]
gates.post(0, 10000, 0, 0, 0)  # busy for long
late = 0
for turn in range(60):
    gates.post(1, turn % 3, 0, 0, 0)
    begin = time.monotonic()
    assert gates.wait(FOREVER_NS, 1) == IDLE
    late += time.monotonic() - board["finished_at"][1] > 0.04
assert gates.wait(1000000) == TIMEOUT
gates.post(1, 5000, 0, 0, 0)
os.kill(pids[0], signal.SIGKILL)
assert gates.wait(100000000, 1) == TIMEOUT  # the other one's death is no news here
assert gates.wait(FOREVER_NS) == DIED and gates.dead() == [0]
os.kill(pids[1], signal.SIGKILL)
assert gates.wait(FOREVER_NS, 1) == DIED
for pid in pids:
    os.waitpid(pid, 0)
print(late)
"""
)


def test_one_worker_can_be_waited_for_while_another_one_is_busy_or_dead(run_python):
    assert int(run_python(ONE_OF_TWO)) <= 3


INTERRUPTED = (
    PRELUDE
    + """
class Alarm(Exception): pass

def ring(number, frame):
    raise Alarm

def serve(w, gate, command):
    time.sleep(command)

signal.signal(signal.SIGALRM, ring)
pids = [fork_worker(w, serve) for w in range(workers)]
gates.post(0, 100, 0, 0, 0)
signal.setitimer(signal.ITIMER_REAL, 0.02)
begin = time.monotonic()
try:
    gates.wait(FOREVER_NS)
except Alarm:
    print(time.monotonic() - begin < 1.0)
end(*pids)
"""
)


def test_exception_in_signal_handler_ends_the_wait(run_python):
    assert run_python(INTERRUPTED) == "True\n"


@pytest.fixture
def board():
    fields = {"gates": (np.uint8, (2, _core.GATE_BYTES)), "wakeup": (np.uint8, (_core.WAKEUP_BYTES,))}
    with Segment(Layout(fields)) as segment:
        fds = set(_core.wakeup_create())
        yield segment, max(fds)
        for fd in fds:
            os.close(fd)


def test_reply_is_returned_once(board):
    segment, wakeup_fd = board
    gates = _core.Gates(segment["gates"], segment["wakeup"], 2, wakeup_fd, False)
    read, write = os.pipe()
    gates.watch(0, read, False)
    gate = _core.Gate(segment["gates"], segment["wakeup"], 0, wakeup_fd, False)
    for number in range(3):
        gates.post(0, 3, 11, 12 + number, 13)
        assert (gate.wait(), gate.slot, gate.row, gate.mail_bytes) == (3, 11, 12 + number, 13)
        assert not gates.idle(0) and gates.wait(0) == TIMEOUT
        gate.finish(1, 100 + number)
        assert gates.idle(0) and gates.wait(FOREVER_NS) == IDLE
        assert gates.replied
        assert gates.reply(0) == (1, 100 + number)
        assert not gates.replied and gates.reply(0)[0] == 0
    os.close(read), os.close(write)


def test_absent_worker_counts_as_idle_and_gets_no_command(board):
    segment, wakeup_fd = board
    gates = _core.Gates(segment["gates"], segment["wakeup"], 2, wakeup_fd, False)
    gates.post_all(1, 0, 0)
    assert gates.wait(FOREVER_NS) == IDLE and gates.dead() == []
    assert not segment["gates"].any()


def test_busy_worker_with_closed_descriptor_is_dead_and_replacement_continues_numbering(board):
    segment, wakeup_fd = board
    gates = _core.Gates(segment["gates"], segment["wakeup"], 2, wakeup_fd, False)
    read, write = os.pipe()
    gates.watch(1, read, False)
    for _ in range(5):
        gates.post(1, 1, 0, 0, 0)
        os.write(write, b"x")  # as a pidfd is readable at the end
        assert gates.wait(FOREVER_NS) == DIED and gates.dead() == [1]
        os.read(read, 1)
        gates.watch(1, read, False)
        assert gates.idle(1)
        successor = _core.Gate(segment["gates"], segment["wakeup"], 1, wakeup_fd, False)
        gates.post(1, 2, 0, 0, 0)
        assert successor.wait() == 2  # and nothing of what its predecessor was given
        successor.finish(0, 0)
        assert gates.wait(FOREVER_NS) == IDLE
    os.close(read), os.close(write)


@pytest.mark.parametrize(
    "call",
    [
        lambda gates: gates.watch(2, -1, False),
        lambda gates: gates.idle(2),
        lambda gates: gates.post(2, 1, 0, 0, 0),
        lambda gates: gates.reply(2),
        lambda gates: gates.times(2),
        lambda gates: gates.wait(0, 2),
    ],
)
def test_a_worker_beyond_the_last_is_an_index_error(board, call):
    segment, wakeup_fd = board
    with pytest.raises(IndexError):
        call(_core.Gates(segment["gates"], segment["wakeup"], 2, wakeup_fd, False))


def test_gates_that_do_not_fit_the_array_are_refused(board):
    segment, wakeup_fd = board
    with pytest.raises(ValueError, match="too small"):
        _core.Gates(segment["gates"], segment["wakeup"], 3, wakeup_fd, False)
    with pytest.raises(ValueError, match="too small"):
        _core.Gate(segment["gates"], segment["wakeup"], 2, wakeup_fd, False)


# -- asynchronous stepping --------------------------------------------------------------------------------


def spin(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


class Timed(gymnasium.Env):
    """Steps for as many seconds as the action says; the reward says when it was done."""

    observation_space = Box(0, 1, (1,), np.float32)
    action_space = Box(0, np.inf, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        (time.sleep if action[0] > 1 else spin)(action[0])
        return np.zeros(1, np.float32), time.perf_counter(), False, False, {}


def test_an_action_sent_as_the_worker_goes_idle_is_not_lost():
    # The second is sent at about the time at which the first is done, and nothing follows it.
    with ProcessVectorEnv([Timed] * 2, num_workers=1, batch_size=2, step_timeout_s=5.0) as envs:
        envs.async_reset(seed=0)
        envs.recv()
        begin = time.monotonic()
        for _ in range(30000):
            envs.send([[random.uniform(0, 25e-6)]], [0])
            envs.send([[0.0]], [1])
            envs.recv()  # WorkerTimeout if one was lost
            if time.monotonic() - begin > 10:  # a busy machine
                break


def waited_for_a_core(*pids):
    """Seconds for which these processes could have run and did not get a core, since they began."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/schedstat") as file:
            total += int(file.read().split()[1])
    return total / 1e9


def test_an_environment_that_finishes_as_the_parent_goes_to_sleep_wakes_it():
    late, middle = 0, 80e-6
    envs = ProcessVectorEnv([Timed] * 2, num_workers=2, batch_size=1)
    try:
        envs.async_reset(seed=0)
        for _ in range(2):
            envs.recv()
        envs.send([[1e6]], [1])  # a worker at work: the other one is not the last
        both = (os.getpid(), envs.worker_pids[0])
        for turn in range(10000):
            without_core = waited_for_a_core(*both)
            envs.send([[middle + random.uniform(-5e-6, 5e-6)]], [0])
            begin = time.perf_counter()
            finished = envs.recv([0])[1][0]
            now = time.perf_counter()
            if now - finished > 0.04:  # a wake-up was lost, or others had the cores
                late += now - finished - (waited_for_a_core(*both) - without_core) > 0.04
            # recv sleeps once it has looked for 100 us; the environment is to be done at about that time.
            aim = (115 + turn // 350) * 1e-6
            middle = max(0.0, middle + (1e-6 if now - begin < aim else -1e-6))
    finally:
        envs.close(terminate=True)
    assert late <= 4
