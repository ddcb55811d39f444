"""The launcher: forks workers on request, reports their exit status, and ends with its trainer."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time

import pytest

from shoal.process import launcher as module
from shoal.process import worker
from shoal.process.launcher import Launcher, LauncherEnded, launcher
from shoal.process.start import start
from tests.crash.fragile import SOON_S, at_most, is_running, wait_gone, wait_until


@pytest.fixture
def own():
    """A launcher of this test alone."""
    made = Launcher()
    yield made
    made.close()


def close_fd(fd):
    if fd >= 0:  # there are systems without pidfds
        os.close(fd)


def start_worker(own):
    """A worker that waits for its plan, and the socket it waits at."""
    ours, theirs = socket.socketpair()
    with theirs:
        pid, pidfd = own.start(theirs)
    return pid, pidfd, ours


def test_the_launcher_is_started_once_and_again_after_its_death():
    first = launcher()
    assert launcher() is first and first.is_alive
    os.kill(first._process.pid, signal.SIGKILL)
    wait_until(lambda: not first.is_alive, SOON_S)
    second = launcher()
    assert second is not first and second.is_alive


def test_a_worker_whose_socket_closes_before_it_has_its_plan_ends(own):
    pid, pidfd, ours = start_worker(own)
    assert is_running(pid)
    ours.close()
    assert own.exit_status(pid, SOON_S) == 0
    assert not is_running(pid)
    close_fd(pidfd)


def test_workers_are_of_the_trainers_session_but_not_of_its_process_group(own):
    """Ctrl-C is for the group; some kernels share cores fairly between sessions."""
    pid, pidfd, ours = start_worker(own)
    assert os.getsid(pid) == os.getsid(0)
    assert os.getpgid(pid) == os.getpgid(own._process.pid) == own._process.pid != os.getpgrp()
    ours.close()
    own.exit_status(pid, SOON_S)
    close_fd(pidfd)


def test_exit_status_of_an_earlier_process_with_the_same_pid_is_dropped(own):
    own._ended = {pid: 0 for pid in range(1, 1 << 17)}  # as if nobody had ever asked
    pid, pidfd, ours = start_worker(own)
    assert pid < 1 << 17 and own.exit_status(pid, 0.01) is None
    os.kill(pid, signal.SIGKILL)
    assert os.WTERMSIG(own.exit_status(pid, SOON_S)) == signal.SIGKILL
    ours.close()
    close_fd(pidfd)


def test_exit_status_that_arrived_in_time_is_read_after_the_timeout(own):
    pid, pidfd, ours = start_worker(own)
    os.kill(pid, signal.SIGKILL)
    wait_gone([pid], SOON_S)
    wait_until(lambda: select.select([own._socket], [], [], 0)[0], SOON_S)
    assert os.WTERMSIG(own.exit_status(pid, -1.0)) == signal.SIGKILL  # this process had been stopped for long
    ours.close()
    close_fd(pidfd)


def spares(own):
    """The children of a launcher that wait to become workers."""
    path = f"/proc/{own._process.pid}/task/{own._process.pid}/children"
    with open(path) as file:
        return [pid for pid in map(int, file.read().split()) if comm(pid) == module.SPARE]


def comm(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as file:
        return file.read().rstrip("\n")


needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/comm"), reason="machine: no /proc")


@needs_proc
def test_spare_worker_is_forked_after_a_start_and_used_next(own):
    assert spares(own) == []
    pid, pidfd, ours = start_worker(own)
    wait_until(lambda: spares(own), SOON_S)
    (spare,) = spares(own)
    second, second_fd, other = start_worker(own)
    assert second == spare
    wait_until(lambda: comm(second) != module.SPARE, SOON_S)  # a leak is called what it is
    wait_until(lambda: spares(own), SOON_S)
    assert len(spares(own)) == 1 and spares(own) != [spare]
    for one in (ours, other):
        one.close()
    assert own.exit_status(pid, SOON_S) == own.exit_status(second, SOON_S) == 0
    close_fd(pidfd)
    close_fd(second_fd)


@needs_proc
@pytest.mark.parametrize("stopped", [False, True])
def test_killed_spare_is_replaced_and_not_reported(own, stopped):
    pid, pidfd, ours = start_worker(own)
    wait_until(lambda: spares(own), SOON_S)
    (spare,) = spares(own)
    if stopped:  # the launcher has not heard of it when it needs it
        os.kill(own._process.pid, signal.SIGSTOP)
    os.kill(spare, signal.SIGKILL)
    wait_gone([spare], SOON_S)
    if stopped:
        os.kill(own._process.pid, signal.SIGCONT)
    second, second_fd, other = start_worker(own)
    assert second != spare and is_running(second)
    assert own.exit_status(spare, 0.05) is None
    for one in (ours, other):
        one.close()
    assert own.exit_status(second, SOON_S) == 0
    close_fd(pidfd)
    close_fd(second_fd)


@needs_proc
def test_spare_ends_with_its_launcher(own):
    pid, pidfd, ours = start_worker(own)
    wait_until(lambda: spares(own), SOON_S)
    (spare,) = spares(own)
    os.kill(own._process.pid, signal.SIGKILL)
    wait_gone([spare], SOON_S)
    ours.close()
    close_fd(pidfd)


def test_a_dead_spare_is_reaped_when_it_is_taken():
    spare = module._Spare.fork([], -1)
    os.kill(spare.pid, signal.SIGKILL)
    os.waitid(os.P_PID, spare.pid, os.WEXITED | os.WNOWAIT)  # dead, and not reaped
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert spare.take(theirs.fileno()) == 0
    with pytest.raises(ChildProcessError):
        os.waitpid(spare.pid, os.WNOHANG)


def test_spare_works_even_if_its_warm_up_failed(monkeypatch):
    monkeypatch.setattr(worker, "warm_up", lambda: 1 / 0)
    spare = module._Spare.fork([], -1)
    ours, theirs = socket.socketpair()
    with theirs:
        assert spare.take(theirs.fileno()) == spare.pid
    ours.close()  # before it has its plan
    assert os.waitpid(spare.pid, 0)[1] == 0


def test_exit_statuses_are_reported_once_in_any_order(own):
    workers = [start_worker(own) for _ in range(3)]
    signals = [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT]
    for (pid, *_), number in zip(workers, signals, strict=True):
        os.kill(pid, number)
    for (pid, pidfd, ours), number in reversed(list(zip(workers, signals, strict=True))):
        status = own.exit_status(pid, SOON_S)
        assert status is not None and os.WTERMSIG(status) == number
        assert own.exit_status(pid, 0.01) is None
        ours.close()
        close_fd(pidfd)


def test_exit_statuses_between_two_starts_are_kept(own):
    one = start_worker(own)
    os.kill(one[0], signal.SIGKILL)
    wait_until(lambda: not is_running(one[0]), SOON_S)
    two = start_worker(own)  # its answer comes behind the news of that end
    status = own.exit_status(one[0], SOON_S)
    assert status is not None and os.WTERMSIG(status) == signal.SIGKILL
    os.kill(two[0], signal.SIGKILL)
    assert own.exit_status(two[0], SOON_S) is not None
    for _, pidfd, ours in (one, two):
        ours.close()
        close_fd(pidfd)


def test_worker_outlives_its_launcher_with_unknown_exit_status(own):
    pid, pidfd, ours = start_worker(own)
    os.kill(own._process.pid, signal.SIGKILL)
    wait_until(lambda: not own.is_alive, SOON_S)
    assert is_running(pid)
    with at_most(SOON_S):
        assert own.exit_status(pid, 0.5) is None
    ours.close()
    wait_gone([pid], SOON_S)
    close_fd(pidfd)


def test_killed_launcher_raises_and_is_not_used_again(own, monkeypatch):
    os.kill(own._process.pid, signal.SIGKILL)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(LauncherEnded, match="has ended"):
        own.start(theirs)
    assert not own.is_alive


def test_a_worker_is_started_although_the_launcher_dies_at_that_moment(own, monkeypatch):
    monkeypatch.setattr(module, "_current", own)
    os.kill(own._process.pid, signal.SIGSTOP)
    os.kill(own._process.pid, signal.SIGKILL)
    running = start(None, True, "name", None)
    assert running.is_alive() and module._current is not own
    running.send_signal(signal.SIGKILL)
    assert running.wait(SOON_S)
    running.reap()
    module._current.close()


def test_a_start_that_was_interrupted_does_not_answer_for_the_next_one(own, monkeypatch):
    read, interrupts = own._read, [KeyboardInterrupt, KeyboardInterrupt]

    def interrupted():
        if interrupts:
            raise interrupts.pop()
        return read()

    monkeypatch.setattr(own, "_read", interrupted)
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(2):
        ours, theirs = socket.socketpair()
        with ours, theirs, pytest.raises(KeyboardInterrupt):
            own.start(theirs)
    pid, pidfd, ours = start_worker(own)
    ours.close()
    assert own.exit_status(pid, SOON_S) == 0  # it is this one that hung up
    close_fd(pidfd)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_the_launcher_ends_when_it_is_closed_even_if_it_is_stopped():
    made = Launcher()
    with at_most(SOON_S):
        made.close()
    assert not is_running(made._process.pid)
    made = Launcher()
    os.kill(made._process.pid, signal.SIGSTOP)
    with at_most(2.0 + SOON_S):
        made.close()
    assert not is_running(made._process.pid)


def test_close_with_unread_reports_prints_nothing(own, capfd):
    workers = [start_worker(own) for _ in range(3)]
    for pid, *_ in workers:
        os.kill(pid, signal.SIGKILL)
    wait_gone([pid for pid, *_ in workers], SOON_S)
    time.sleep(0.05)  # its news are in the socket
    own.close()
    assert own.exit_status(workers[0][0], 0.1) is None
    assert "Traceback" not in capfd.readouterr().err
    for _, pidfd, ours in workers:
        ours.close()
        close_fd(pidfd)


def test_ctrl_c_and_sigchld_do_not_end_the_launcher(own):
    start_worker_and_end(own)
    for number in (signal.SIGINT, signal.SIGCHLD):
        os.kill(own._process.pid, number)
    start_worker_and_end(own)


def start_worker_and_end(own):
    pid, pidfd, ours = start_worker(own)
    ours.close()
    assert own.exit_status(pid, SOON_S) == 0
    close_fd(pidfd)
