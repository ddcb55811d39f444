"""One worker process with every start method: its end is detected, reported and cleaned up."""

from __future__ import annotations

import os
import signal

import pytest

from shoal.errors import WorkerError
from shoal.process import start as module
from shoal.process.launcher import LauncherEnded, launcher
from shoal.process.start import start
from tests.crash.fragile import SOON_S, at_most, is_running

CONTEXTS = [None, "fork", "forkserver", "spawn"]


def descriptors():
    return sorted(os.listdir("/proc/self/fd"))


@pytest.fixture(params=CONTEXTS)
def context(request):
    start_and_end(request.param)  # what is started once and kept
    return request.param


def start_and_end(context):
    running = start(context, True, "worker", None)
    running.send_signal(signal.SIGKILL)
    assert running.wait(4 * SOON_S)
    return running.reap()


def test_a_worker_is_alive_until_it_is_killed_and_then_its_status_says_so(context):
    before = descriptors()
    running = start(context, True, "worker", None)
    assert running.is_alive() and is_running(running.pid)
    with at_most(SOON_S):
        assert not running.wait(0.05)
    running.send_signal(signal.SIGKILL)
    assert running.wait(SOON_S) and not running.is_alive()
    status = running.reap()
    assert status is not None and os.WTERMSIG(status) == signal.SIGKILL
    assert not is_running(running.pid)
    assert running.reap() == status
    running.send_signal(signal.SIGKILL)  # nobody
    assert descriptors() == before


def test_a_worker_whose_parent_hangs_up_ends_by_itself(context):
    running = start(context, True, "worker", None)
    running.channel.shutdown(2)
    assert running.wait(4 * SOON_S)
    assert running.reap() == 0


def test_what_is_left_in_the_pipe_can_be_read_after_the_end():
    running = start(None, True, "worker", None)
    os.write(running.stderr_write_fd, b"last words")
    running.send_signal(signal.SIGKILL)
    running.wait(SOON_S)
    assert running.read_stderr() == b"last words" and running.read_stderr() == b""
    running.reap()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (BlockingIOError(11, "Resource temporarily unavailable"), "ulimit -u"),
        (LauncherEnded("it has ended"), "it has ended"),
        (OSError(24, "Too many open files"), "open files"),
    ],
)
def test_a_start_that_fails_leaves_no_descriptor(monkeypatch, error, expected):
    launcher()

    def fail(channel):
        raise error

    before = descriptors()
    monkeypatch.setattr(module.launcher(), "start", fail)
    with pytest.raises((WorkerError, OSError), match=expected):
        start(None, True, "worker", None)
    assert descriptors() == before
