"""If stopped writers hold every slot, a push waits without the GIL and reacts to signals."""

import contextlib
import os
import signal
import threading

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from shoal import ReplayBuffer
from shoal.errors import ClosedError, ShoalError
from shoal.replay import TrajectoryBuffer
from tests.crash.fragile import wait_until

ROW = {"x": (np.int64, ()), "y": (np.int64, (3,))}


def row(value):
    return {"x": value, "y": np.full(3, value)}


def rows(values):
    values = np.asarray(values)
    return {"x": values, "y": np.repeat(values[:, None], 3, axis=1)}


def hold_slot(buffer, slot):
    """In a child process: pushes until it has written this slot, and stops as if before the commit."""
    segment = buffer._records.segment
    word = segment["rows"][slot, :8].view(np.uint64)
    while True:
        (ticket,) = buffer.extend(
            {name: np.zeros((1, *spec[1]), spec[0]) for name, spec in buffer.fields.items()}
        )
        if ticket % buffer.capacity == slot:
            break
    owner = int(word[0]) >> 2 & 4095
    word[0] = int(word[0]) & ~3 | 1
    segment["writers"][owner, 1:3] = ticket, 1
    os.kill(os.getpid(), signal.SIGSTOP)


class Holders:
    """Stopped processes that hold all slots of a buffer, until `let_go`."""

    def __init__(self, buffer):
        self._tail, self._writers = (buffer._records.segment[name] for name in ("tail", "writers"))
        self._pids = []
        for slot in range(buffer.capacity):
            pid = os.fork()
            if pid == 0:
                with contextlib.suppress(BaseException):
                    hold_slot(buffer, slot)
                os._exit(0)
            self._pids.append(pid)
            _, status = os.waitpid(pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
        self._tickets = int(self._tail[0])

    def wait_for_tries(self, count=1):
        """Waits until a push has tried this many laps of tickets."""
        wait_until(lambda: int(self._tail[0]) >= self._tickets + 4 * count, 60)

    def let_go(self):
        """Releases all slots at once: no thread of this process pushes during one NumPy call."""
        self._writers[:, 2] = 0

    def kill(self):
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.fixture
def hold_all():
    all_holders = []

    def hold(buffer):
        all_holders.append(Holders(buffer))
        return all_holders[-1]

    yield hold
    for holders in all_holders:
        holders.kill()


class Calls:
    """Runs calls in threads, and records what they returned or raised."""

    def __init__(self):
        self.results = {}
        self._threads = []

    def start(self, name, call):
        def run():
            try:
                self.results[name] = call()
            except Exception as error:
                self.results[name] = error

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def join(self):
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        return self.results


@pytest.mark.parametrize("capacity", [1, 4])
def test_other_threads_run_while_a_push_waits(hold_all, capacity):
    """The other threads continue the writers, which the push needs to succeed."""
    with ReplayBuffer(capacity, ROW) as buffer:
        holders, calls = hold_all(buffer), Calls()
        calls.start("push", lambda: buffer.push(row(7)))
        holders.wait_for_tries()
        holders.let_go()
        number = calls.join()["push"]
        assert isinstance(number, int)
        assert buffer.latest(1)["x"].tolist() == [7]


def test_push_times_out_if_the_writers_stay_stopped(hold_all):
    with ReplayBuffer(1, ROW) as buffer:
        hold_all(buffer)
        with pytest.raises(ShoalError, match="0 of 1 rows stored: living writers hold every slot"):
            buffer.push(row(7))
        with pytest.raises(ShoalError, match="0 of 3 rows stored: living writers hold every slot"):
            buffer.extend(rows([1, 2, 3]))


@pytest.fixture
def signal_when_waiting():
    """Starts a process that sends a signal to this one after a push has failed once."""
    senders = []

    def start(holders, number):
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                holders.wait_for_tries()
                os.kill(parent, number)
            os._exit(0)
        senders.append(pid)

    yield start
    for pid in senders:
        os.waitpid(pid, 0)


def test_a_signal_handler_runs_while_a_push_waits(hold_all, signal_when_waiting):
    """The handler continues the writers, which the push needs to succeed."""
    with ReplayBuffer(1, ROW) as buffer:
        holders = hold_all(buffer)
        before = signal.signal(signal.SIGUSR1, lambda *_: holders.let_go())
        try:
            signal_when_waiting(holders, signal.SIGUSR1)
            assert buffer.push(row(7)) is not None
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert buffer.latest(1)["x"].tolist() == [7]


def test_ctrl_c_interrupts_a_waiting_push(hold_all, signal_when_waiting):
    with ReplayBuffer(1, ROW) as buffer:
        holders = hold_all(buffer)
        signal_when_waiting(holders, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            buffer.push(row(7))
        holders.let_go()
        buffer.extend(rows([1, 2]))
        assert buffer.latest(1)["x"].tolist() == [2]


def test_closing_the_buffer_ends_a_waiting_push(hold_all):
    buffer = ReplayBuffer(1, ROW)
    holders, calls = hold_all(buffer), Calls()
    calls.start("push", lambda: buffer.push(row(7)))
    holders.wait_for_tries()
    buffer.close()
    assert isinstance(calls.join()["push"], ClosedError)


def test_other_threads_store_their_own_rows_while_a_push_waits(hold_all):
    with ReplayBuffer(4, ROW) as buffer:
        holders, calls = hold_all(buffer), Calls()
        calls.start("few", lambda: buffer.extend(rows([1, 2])))
        holders.wait_for_tries()
        calls.start("many", lambda: buffer.extend(rows(range(1000, 3000))))
        calls.start("one", lambda: [buffer.push(row(7))])
        holders.wait_for_tries(10)
        holders.let_go()
        ids = calls.join()
        value = dict(zip(map(int, ids["few"]), [1, 2], strict=True))
        value |= dict(zip(map(int, ids["many"]), range(1000, 3000), strict=True))
        value |= {ids["one"][0]: 7}
        assert len(value) == 2003, "an id was given twice"
        found = buffer.latest(4)
        for number, x, y in zip(found.ids, found["x"], found["y"], strict=True):
            assert x == value[int(number)] and (y == x).all()


def test_waiting_push_stores_its_row_even_if_the_arrays_change(hold_all):
    with ReplayBuffer(4, ROW) as buffer:
        holders, calls = hold_all(buffer), Calls()
        given = rows([1, 2])
        calls.start("extend", lambda: buffer.extend(given))
        holders.wait_for_tries()
        given["x"][:] = given["y"][:] = 9
        holders.let_go()
        calls.join()
        found = buffer.latest(2)
        assert found["x"].tolist() == [1, 2] and found["y"].tolist() == [[1] * 3, [2] * 3]


def test_steps_added_by_two_threads_while_a_push_waits_are_not_mixed(hold_all):
    space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    buffer = TrajectoryBuffer(4, space, gymnasium.spaces.Discrete(100), 2, AutoresetMode.NEXT_STEP)
    with buffer:
        buffer.begin(np.zeros((2, 2), np.float32))
        no = np.zeros(2, np.bool_)

        def add(value):
            actions, seen = np.full(2, value), np.full((2, 2), value, np.float32)
            buffer.add(actions, seen, np.full(2, float(value)), no, no)

        holders, calls = hold_all(buffer), Calls()
        for value in (1, 2):
            calls.start(value, lambda value=value: add(value))
        holders.wait_for_tries(10)
        holders.let_go()
        assert calls.join() == {1: None, 2: None}
        found = buffer.latest(4)
        assert sorted(found["reward"].tolist()) == [1, 1, 2, 2]
        assert (found["reward"] == found["action"]).all()
        assert (found["reward"][:, None] == found["obs"]).all()
