"""Messages between parent and worker arrive whole at any size or raise HungUp; exceptions keep their type."""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
import types

import numpy as np
import pytest

from shoal.errors import NoRoomError, WorkerError
from shoal.process.mail import BOX_BYTES, Failure, HungUp, Mail, RemoteTraceback, dumps, receive, transmit


@pytest.fixture
def ends():
    """The parent's and the worker's end of two boxes and a socket."""
    one, two = socket.socketpair()
    boxes = np.zeros((2, BOX_BYTES), np.uint8)
    yield Mail(one, boxes[0], boxes[1]), Mail(two, boxes[1], boxes[0]), one, two
    one.close()
    two.close()


def always():
    return True


@pytest.mark.parametrize("size", [0, 1, BOX_BYTES - 1, BOX_BYTES, BOX_BYTES + 1, 10_000_000])
def test_message_arrives_whole_through_box_or_socket(ends, size):
    parent, worker, *_ = ends
    value = os.urandom(size)
    data = pickle.dumps(value)
    for sender, receiver in ((parent, worker), (worker, parent)):
        count = sender.put(data)
        sending = threading.Thread(target=sender.send_rest, args=(always,))
        sending.start()
        assert receiver.take(count, always) == value
        sending.join()


def test_small_and_large_messages_alternate(ends):
    parent, worker, *_ = ends
    for number in range(20):
        value = [number] * (60000 if number % 3 == 0 else 3)
        count = parent.put(dumps(value))
        sending = threading.Thread(target=parent.send_rest, args=(always,))
        sending.start()
        assert worker.take(count, always) == value
        sending.join()


def test_waiting_for_a_large_message_raises_when_the_sender_dies(ends):
    parent, worker, one, two = ends
    data = pickle.dumps(bytes(1_000_000))
    two.send(data[:5000])  # a part of it
    two.close()
    with pytest.raises(HungUp):
        parent.take(len(data), always)
    parent.put(data)
    with pytest.raises(HungUp):
        parent.send_rest(always)


@pytest.mark.parametrize("sending", [True, False])
def test_waiting_for_a_message_ends_when_the_other_side_is_dead_or_late(ends, sending):
    parent, worker, *_ = ends
    data = pickle.dumps(bytes(10_000_000))
    asked = []

    def alive():
        asked.append(1)
        return len(asked) < 3

    if sending:
        parent.put(data)
        with pytest.raises(HungUp):
            parent.send_rest(alive)
    else:
        with pytest.raises(HungUp):
            parent.take(len(data), alive)
    assert len(asked) == 3


@pytest.mark.parametrize("sending", [True, False])
def test_an_interrupt_in_the_middle_of_a_message_hangs_up(ends, sending):
    parent, worker, one, two = ends
    data = pickle.dumps(bytes(10_000_000))

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        if sending:
            parent.put(data)
            parent.send_rest(interrupted)
        else:
            two.send(data[:5000])
            parent.take(len(data), interrupted)
    with pytest.raises(HungUp):  # or it would take what comes next for the rest
        worker.take(len(data), always)
    with pytest.raises(HungUp):
        parent.take(len(data), always)


def test_descriptors_travel_with_a_message_over_the_socket_alone(ends):
    *_, one, two = ends
    read, write = os.pipe()
    transmit(one, {"value": 7}, [read, write])
    os.close(read)
    value, fds = receive(two)
    assert value == {"value": 7}
    os.write(fds[1], b"through")
    assert os.read(fds[0], 7) == b"through"
    for fd in (write, *fds):
        os.close(fd)


def test_closed_socket_raises_hung_up(ends):
    *_, one, two = ends
    two.close()
    with pytest.raises(HungUp):
        receive(one)
    with pytest.raises(HungUp):
        transmit(one, "value", [])


def test_classes_of_a_script_are_pickled_by_value():
    script = types.ModuleType("__main__")
    exec("class Own:\n    def __eq__(self, other): return type(other).__name__ == 'Own'\n", script.__dict__)
    before, sys.modules["__main__"] = sys.modules["__main__"], script
    try:
        data, function = dumps(script.Own()), dumps(lambda: 41 + 1)
    finally:
        sys.modules["__main__"] = before
    assert type(pickle.loads(data)).__name__ == "Own"
    assert pickle.loads(function)() == 42


# -- exceptions -------------------------------------------------------------------------------------------


class Fussy(Exception):
    """Its constructor does not take its own args."""

    def __init__(self, code, *, why):
        super().__init__(f"{why} ({code})")
        self.code, self.why = code, why


class Heavy(Exception):
    """Carries what cannot be pickled."""

    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


class Hostile(Exception):
    """Cannot be pickled at all."""

    def __reduce__(self):
        raise RuntimeError("not me")


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return pickle.loads(pickle.dumps(Failure.of(caught, 5)))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("plain", 3),
        KeyError("missing"),
        Fussy(7, why="too much"),
        NoRoomError("no room", need_bytes=8, free_bytes=4),
        OSError(2, "no such file", "path"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "reason"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_exception_keeps_its_type_and_remote_traceback(error):
    arrived = raised(error).exception()
    assert type(arrived) is type(error) and arrived.args == error.args and str(arrived) == str(error)
    for name, value in vars(error).items():
        assert getattr(arrived, name) == value
    assert arrived.env_id == 5
    assert isinstance(arrived.__cause__, RemoteTraceback) and "in raised" in str(arrived.__cause__)


def test_exception_arrives_without_attributes_that_cannot_be_pickled():
    arrived = raised(Heavy("too heavy")).exception()
    assert type(arrived) is Heavy and str(arrived) == "too heavy" and not hasattr(arrived, "lock")


def test_exception_that_cannot_be_pickled_becomes_a_WorkerError():
    failure = raised(Hostile("hidden"))
    arrived = failure.exception()
    assert type(arrived) in (Hostile, WorkerError) and "hidden" in str(arrived)
    assert "Hostile" in failure.summary


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_system_exit_in_a_worker_arrives_as_a_WorkerError(error):
    arrived = raised(error).exception()
    assert type(arrived) is WorkerError and type(error).__name__ in str(arrived)


def test_exception_of_an_unknown_class_becomes_a_WorkerError(monkeypatch):
    module = types.ModuleType("gone_by_then")
    exec("class Foreign(Exception):\n    pass\n", module.__dict__)
    module.Foreign.__module__ = "gone_by_then"
    monkeypatch.setitem(sys.modules, "gone_by_then", module)
    failure = raised(module.Foreign("from afar"))
    monkeypatch.delitem(sys.modules, "gone_by_then")
    arrived = failure.exception()
    assert type(arrived) is WorkerError and "from afar" in str(arrived)
