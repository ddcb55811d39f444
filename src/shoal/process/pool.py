"""The worker pool: all worker processes of one vector environment, as the parent sees them.

    board (one segment)   gates [M]  wake-up   request and reply boxes [M]  stderr tails [M]  flags [num_envs]
    slots, actions        segments of their own, whose descriptors go over each worker's socket

The pool starts workers, sends them commands, waits, and reports which of them died and how. Its users decide
what a result is, what a fault means to a learner and whether to replace a worker.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from shoal import _core
from shoal.errors import WorkerDied, WorkerError, WorkerTimeout, explain_os_errors
from shoal.memory import Layout, Segment
from shoal.memory.layout import FieldSpec, array_fields
from shoal.memory.limits import oom_counters, oom_kills
from shoal.process.infos import info_fields
from shoal.process.launcher import open_pidfd
from shoal.process.mail import BOX_BYTES, HungUp, Mail, dumps, receive, transmit
from shoal.process.registry import Registry, pickle_registry
from shoal.process.requests import Request
from shoal.process.start import STILL_RUNNING, Running, start
from shoal.process.worker import (
    MESSAGE,
    SHOW_STACK,
    STEP,
    STOP,
    Surroundings,
)
from shoal.spaces import Bounds
from shoal.state.session import watch_fields

__all__ = ["DIED", "IDLE", "TIMEOUT", "Plan", "WorkerPool", "pickle_makers", "read_surroundings"]

IDLE, TIMEOUT, DIED = _core.GATES_IDLE, _core.GATES_TIMEOUT, _core.GATES_DIED
_EXIT_S = 5.0
"""The longest wait for a killed process: freeing its memory or writing a core file can take long."""
_FOREVER_NS = 2**62
_DESCRIPTORS = 5


@dataclass(slots=True)
class Plan:
    """Everything that one worker must know; it is sent to the worker."""

    worker: int
    first: int
    count: int
    num_envs: int
    autoreset: int
    makers: Any
    """Functions that make the environments: pickled, or the functions themselves for a forked worker."""
    plugin: tuple[str, dict[str, Any], int] | None
    """C environments: library, options, time limit."""
    bounds: Bounds
    all_spaces: bool
    restarts: bool
    daemon: bool
    crowded: bool
    seeds: list[int | None]
    agents: int = 1
    """Rows per environment."""
    lanes: int = 1
    """How many C environments share a block of memory."""
    surroundings: Surroundings | None = None
    registry: Registry | None = None
    """The parent's Gymnasium registry, for environments in Python."""


class WorkerPool:
    """Worker processes with their board."""

    def __init__(
        self,
        plans: Sequence[Plan],
        rows: int,
        context: str | None,
        instance_bytes: int = 0,
        guard: _core.Guard | None = None,
    ) -> None:
        """`instance_bytes` is the size of one C environment, whose memory is then in the board, too.

        A wait raises ClosedError after another thread has called close() (`guard`).
        """
        self.plans = list(plans)
        if any(plan.plugin is None for plan in plans):
            registry = pickle_registry()  # once, so that a replacement gets the same registry
            self.plans = [replace(plan, registry=registry) for plan in plans]
        self._context, self._guard = context, guard
        self.size = len(plans)
        self._pid = os.getpid()
        self.limit_s: float | None = None
        """How long a worker may stop reading while a message too large for its box is sent to it."""
        self._running: list[Running | None] = [None] * self.size
        self._mails: list[Mail | None] = [None] * self.size
        self._exiting: list[Running] = []
        """Workers that were reaped while the kernel was still freeing their memory. Until they have ended
        they may write to shared memory, even claim a wake-up and never send it. Therefore every wait, and
        every start of a replacement, waits for their end first."""
        self.reaped: dict[int, WorkerDied] = {}
        """Workers that were reaped and not replaced, including deaths that Ctrl-C kept from being raised."""
        self.cut_off: set[int] = set()
        """Workers that were killed because Ctrl-C interrupted the reading of their message. A result that
        such a worker had finished may lack its report."""
        self._interrupted: set[int] = set()
        """Workers that were killed because Ctrl-C interrupted a message to or from them."""
        _require_descriptors(self.size)
        self._oom_counters = oom_counters()
        self._kills = oom_kills(self._oom_counters)
        self.board = Segment(_board_layout(self.plans, rows, instance_bytes))
        with explain_os_errors("create the descriptor that workers wake this process with", WorkerError):
            self._wakeup_fd, self._wakeup_write_fd = _core.wakeup_create()
        self._parent_fd = open_pidfd(self._pid)
        self.gates = _core.Gates(
            self.board["gates"], self.board["wakeup"], self.size, self._wakeup_fd, self._crowded, guard
        )
        self.has_started = False
        """Whether all environments have been made once."""

    @property
    def _crowded(self) -> bool:
        return self.size + 1 > _core.cpu_count()

    # -- starting -------------------------------------------------------------------------------------

    def start(self, workers: Sequence[int] | None = None) -> None:
        """Starts workers. Each replies with its facts (`answer`) when its environments are made."""
        self._reap_exiting(_EXIT_S)
        chosen = list(range(self.size) if workers is None else workers)
        if self._context == "fork":
            pickle_registry()  # so that a forked worker sees which specs have changed since the plan was made
        for w in chosen:  # fork all before sending plans: workers start up in parallel
            plan = self.plans[w]
            self.reaped.pop(w, None)
            self.cut_off.discard(w)
            self._interrupted.discard(w)
            self.board["tail"][w] = 0  # before the start, because a forked worker runs at once
            self.gates.watch(w, -1, False)
            running = start(self._context, plan.daemon, f"ShoalWorker-{w}", partial(self._inherited, w))
            self._running[w] = running
            self._mails[w] = Mail(running.channel, self.board["request"][w], self.board["reply"][w])
            self.gates.watch(w, running.death_fd, running.death_is_hangup)
        for w in chosen:
            self._send_plan(w)

    def _send_plan(self, w: int) -> None:
        plan, running = self.plans[w], self._running[w]
        assert running is not None
        if self._context is None:
            plan = replace(plan, surroundings=read_surroundings())
        try:
            if self._context != "fork":
                transmit(running.channel, dumps(plan), self._descriptors(running), running.is_alive)
        except HungUp:  # it has died, or would wait for ever for the rest; `wait` reports the death
            running.send_signal(signal.SIGKILL)
        os.close(running.stderr_write_fd)
        running.stderr_write_fd = -1
        self.gates.post(w, MESSAGE, 0, 0, 0)

    def _inherited(self, w: int, running: Running) -> tuple[Plan, list[int], Segment]:
        """Returns what a worker forked from this process inherits; other workers are sent the same."""
        return self.plans[w], [os.dup(fd) for fd in self._descriptors(running)], self.board

    def _descriptors(self, running: Running) -> list[int]:
        fds = [
            self.board.fileno(),
            self._wakeup_write_fd,
            running.stderr_read_fd,
            running.stderr_write_fd,
            1,
            2,
        ]
        return fds if self._parent_fd < 0 else [*fds, self._parent_fd]

    # -- commands -------------------------------------------------------------------------------------

    def step(self, slot: int, row: int, if_all_live: bool) -> bool:
        """Makes all workers step. With `if_all_live`, returns False and steps none if one is dead."""
        return self.gates.post_all(STEP, slot, row, if_all_live)

    def send(self, out: Any, env_ids: Any, worker_of: Any) -> None:
        """Asynchronous stepping: gives some environments new tickets."""
        self.gates.send(self.board["ticket"], out, env_ids, worker_of)

    def take_finished(self, out: Any, start: int, most: int, timeout_s: float) -> tuple[int, list[int]]:
        """Asynchronous stepping: returns the status, and up to `most` environments that have finished."""
        tickets, finished = self.board["ticket"], self.board["finished"]
        return self.gates.take_finished(tickets, finished, out, start, most, int(timeout_s * 1e9))

    def take_posted(self, keep: Callable[[list[Any]], None], until: float | None) -> None:
        """Passes every message that workers sent without a request to `keep`.

        `until` (of time.monotonic) limits the wait for a worker that stopped within a message.
        """
        present = {
            w: running
            for w, running in enumerate(self._running)
            if running is not None and w not in self.cut_off and running.channel.fileno() >= 0
        }
        if not select.select([running.channel for running in present.values()], [], [], 0)[0]:
            return  # the usual case costs one system call for all workers
        for w, running in present.items():
            try:
                while select.select([running.channel], [], [], 0)[0]:
                    keep(receive(running.channel, partial(_is_responsive, running, until))[0])
            except (HungUp, OSError):
                continue
            except BaseException:  # Ctrl-C: a message may be lost
                self.cut_off.add(w)
                self._kill_interrupted(w, running)
                raise

    def request(self, worker: int, request: Request, fds: Sequence[int] = ()) -> None:
        """Posts a request to an idle worker."""
        self._post_message(worker, dumps(request), fds)

    def _post_message(self, worker: int, data: bytes, fds: Sequence[int] = ()) -> None:
        running, mail = self._running[worker], self._mails[worker]
        if running is None or mail is None:
            return
        count = mail.put(data)
        until = None if self.limit_s is None else time.monotonic() + self.limit_s
        try:
            self.gates.post(worker, MESSAGE, 0, 0, count)
            mail.send_rest(partial(_is_responsive, running, until))
            if fds:
                socket.send_fds(running.channel, [b"f"], list(fds))
        except (HungUp, OSError):  # it is dead, or has half a message and would wait for ever
            running.send_signal(signal.SIGKILL)
        except BaseException:  # Ctrl-C: the same, unless the whole message was in the box
            if fds or count > BOX_BYTES:
                self._kill_interrupted(worker, running)
            raise

    def request_each(self, requests: Sequence[Request]) -> None:
        """Posts each worker its request; if one of them cannot be pickled, none is posted."""
        for w, data in enumerate([dumps(request) for request in requests]):
            self._post_message(w, data)

    def request_all(self, request: Request, fds: Sequence[int] = ()) -> None:
        """Posts the same request to all workers."""
        data = dumps(request)
        for w in range(self.size):
            self._post_message(w, data, fds)

    def wait(self, timeout_s: float | None, only: int | None = None, any_death: bool = False) -> int:
        """Waits until all workers, or `only` one, are idle. Returns IDLE, TIMEOUT or DIED (a busy one died).

        With `any_death`, also returns DIED if an idle worker died while others are busy.
        """
        if self._exiting:
            begin = time.monotonic()
            if not self._reap_exiting(timeout_s):
                return TIMEOUT
            timeout_s = None if timeout_s is None else timeout_s - (time.monotonic() - begin)
        timeout_ns = _FOREVER_NS if timeout_s is None else max(0, int(timeout_s * 1e9))
        return self.gates.wait(timeout_ns, -1 if only is None else only, any_death)

    def answer(self, worker: int, until: float | None, *, forget: bool = True) -> Any:
        """Returns the message with which a worker finished, once; None if it sent none.

        Without `forget`, the caller calls `gates.reply` when it has stored the message: if Ctrl-C comes
        before that, the message can be read again. Raises HungUp if the worker died while sending it, or
        stopped sending and the time is past `until` (of time.monotonic).
        """
        kind, count = self.gates.peek(worker)
        running, mail = self._running[worker], self._mails[worker]
        if kind == 0 or running is None or mail is None:
            self.gates.reply(worker)
            return None
        try:
            message = mail.take(count, partial(_is_responsive, running, until))
            if forget:
                self.gates.reply(worker)
            return message
        except HungUp:
            raise
        except BaseException:  # Ctrl-C: the rest of a long message would be taken for the next one
            if count > BOX_BYTES:
                self._kill_interrupted(worker, running)
            raise

    def _kill_interrupted(self, worker: int, running: Running) -> None:
        self._interrupted.add(worker)
        running.send_signal(signal.SIGKILL)

    # -- state and death of workers -------------------------------------------------------------------

    def is_alive(self, worker: int) -> bool:
        running = self._running[worker]
        return running is not None and running.is_alive()

    def pid(self, worker: int) -> int | None:
        running = self._running[worker]
        return None if running is None else running.pid

    def has_process(self, worker: int) -> bool:
        """Whether there is a process, dead or alive, that was not reaped."""
        return self._running[worker] is not None

    def busy(self, only: int | None = None) -> list[int]:
        return [w for w in range(self.size) if only in (None, w) and not self.gates.idle(w)]

    def channel(self, worker: int) -> socket.socket | None:
        running = self._running[worker]
        return None if running is None else running.channel

    def show_stack(self, worker: int, timeout_s: float = 1.0) -> str:
        """Makes a worker write its Python stack to stderr; returns the end of what it wrote."""
        running = self._running[worker]
        if running is None:
            return ""
        before = _core.count_tail(self.board["tail"][worker])
        running.send_signal(SHOW_STACK)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            time.sleep(0.01)
            if _core.count_tail(self.board["tail"][worker]) > before:
                time.sleep(0.03)
                break
        return _core.read_tail(self.board["tail"][worker]).decode(errors="replace")

    def kill_and_wait(self, worker: int) -> None:
        """Kills a worker, if there is one, and waits for its end."""
        running = self._running[worker]
        if running is not None:
            running.send_signal(signal.SIGKILL)
            running.wait(_EXIT_S)

    def kill(self) -> None:
        """Kills all workers without reaping them: a thread that waits for one of them does that."""
        for running in self._running:
            if running is not None:
                running.send_signal(signal.SIGKILL)

    def reap_worker(self, worker: int, late_s: float | None = None) -> WorkerDied:
        """Kills a worker and returns an error that says how it ended.

        `late_s` is the limit that the worker exceeded; None if it died. A worker that died may still be
        exiting for some milliseconds; `_exiting` keeps it.
        """
        if self._guard is not None:
            self._guard.require_not_closing()  # close() in another thread kills workers that a call waits for
        running = self._running[worker]
        assert running is not None
        if late_s is not None and running.is_alive():
            self.show_stack(worker, 0.2)  # for the stderr in the error; a stopped process shows nothing
        status = running.exit_status() if late_s is None else None
        is_another = status == STILL_RUNNING  # it released its liveness word and runs: it called exec
        running.send_signal(signal.SIGKILL)
        if status is not None and not is_another:
            output = _forward_stderr(running)
            self._exiting.append(running)
        else:
            running.wait(_EXIT_S)
            output = _forward_stderr(running)
            status = running.reap()
            is_another = is_another and status == signal.SIGKILL  # otherwise it was only slow to exit
        tail = (_core.read_tail(self.board["tail"][worker]) + output).decode(errors="replace")
        error = self._describe_death(self.plans[worker], running.pid, status, tail, late_s, is_another)
        self.reaped[worker] = error
        self._running[worker] = self._mails[worker] = None
        self.gates.watch(worker, -1, False)
        return error

    def _reap_exiting(self, timeout_s: float | None) -> bool:
        """Reaps workers that are exiting; returns whether all have ended within the time."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while self._exiting:
            running = self._exiting[-1]
            if not running.wait(min(deadline - time.monotonic(), 3600)):
                return False
            _forward_stderr(running)
            running.reap()
            self._exiting.pop()
        return True

    def _describe_death(
        self, plan: Plan, pid: int, status: int | None, tail: str, late_s: float | None, is_another: bool
    ) -> WorkerDied:
        number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None
        env_ids = list(range(plan.first, plan.first + plan.count))
        which = f"environment {plan.first}" if plan.count == 1 else f"environments {plan.first}-{env_ids[-1]}"
        who = f"worker {plan.worker} (process {pid}) with {which}"
        facts = {"env_ids": env_ids, "pid": pid, "signal": number, "exitcode": code, "stderr": tail}
        advice = ""
        if self.has_started and not plan.restarts:
            advice = (
                "; call reset() to restart it (async_reset() with batch_size=), or make the environments "
                'with on_fault="restart", which replaces dead workers automatically'
            )
        if late_s is not None:
            summary = f"{who} did not answer within {late_s:g} s and was killed"
            return WorkerTimeout(summary + advice + _quote(tail), summary=summary, **facts)
        if is_another:
            how = "became another program (exec) and was killed"
        elif number is not None:
            how = f"was killed by {_signal_name(number)}"
        else:
            how = "ended" if code is None else f"ended with exit code {code}"
        if plan.worker in self._interrupted and number in (None, signal.SIGKILL):  # None: it saw the hang-up
            how += ", since Ctrl-C had interrupted a message to or from it"
        kills = oom_kills(self._oom_counters)
        if number == signal.SIGKILL and kills > self._kills:
            how += " (the memory cgroup's oom_kill counter rose: likely out of memory)"
        self._kills = kills
        summary = f"{who} {how}"
        return WorkerDied(summary + advice + _quote(tail), summary=summary, **facts)

    def stop(self, timeout_s: float) -> None:
        """Ends all workers: stops those that are idle, waits until the time is over, kills the rest."""
        if self.board.closed:
            return
        mine = self._pid == os.getpid()
        if mine:
            deadline = time.monotonic() + timeout_s
            asked = set()
            for w in range(self.size):
                if self.has_process(w) and self.is_alive(w) and self.gates.idle(w) and timeout_s > 0:
                    self.gates.post(w, STOP, 0, 0, 0)
                    asked.add(w)
            for w in range(self.size):
                running = self._running[w]
                left = max(0, deadline - time.monotonic()) if w in asked else 0
                if running is not None and not running.wait(left):
                    running.send_signal(signal.SIGKILL)
            for w in range(self.size):
                running = self._running[w]
                if running is not None:
                    running.wait(1)
                    _forward_stderr(running)
                    running.reap()
                    self._running[w] = None
                self.gates.watch(w, -1, False)
            self._reap_exiting(_EXIT_S)
            while self._exiting:
                self._exiting.pop().reap()
        self.board.close()
        for fd in {self._wakeup_fd, self._wakeup_write_fd, self._parent_fd}:
            if fd >= 0:
                os.close(fd)


def _board_layout(plans: Sequence[Plan], rows: int, instance_bytes: int) -> Layout:
    workers = len(plans)
    fields: dict[str, FieldSpec] = {}
    if instance_bytes:  # one row per worker; each begins on a cache line
        most = max(-(-plan.count // plan.lanes) * plan.lanes for plan in plans)
        fields["instances"] = (np.uint8, (workers, -(-most * instance_bytes // 64) * 64))
    else:
        fields.update(info_fields(workers + 1, rows))
    return Layout(
        {
            **fields,
            "gates": (np.uint8, (workers, _core.GATE_BYTES)),
            "wakeup": (np.uint8, (_core.WAKEUP_BYTES,)),
            "request": (np.uint8, (workers, BOX_BYTES)),
            "reply": (np.uint8, (workers, BOX_BYTES)),
            "tail": (np.uint8, (workers, _core.TAIL_BYTES)),
            **array_fields(_core.CHUNK_ARRAYS, row=rows, environment=rows, worker=workers + 1),
            **watch_fields(workers + 1),
        }
    )


def _require_descriptors(workers: int) -> None:
    """Raises WorkerError if this process may not open enough descriptors for that many workers."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = _DESCRIPTORS * workers + 64
    if limit not in (-1, resource.RLIM_INFINITY) and need > limit:
        raise WorkerError(
            f"{workers} workers need about {need} file descriptors, but this process may open {limit} "
            "(RLIMIT_NOFILE); use fewer workers (each steps many environments), or raise it with `ulimit -n`"
        )


def _is_responsive(running: Running, until: float | None) -> bool:
    return running.is_alive() and (until is None or time.monotonic() < until)


def _forward_stderr(running: Running) -> bytes:
    """Writes what is left in a dead worker's stderr pipe to our stderr, and returns it."""
    output = running.read_stderr()
    if output:
        with contextlib.suppress(OSError):
            os.write(2, output)
    return output


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no name
        return f"signal {number}"


def _quote(tail: str) -> str:
    lines = tail.strip().splitlines()[-15:]
    return "" if not lines else ". Its last output:\n" + "\n".join(f"  | {line[:200]}" for line in lines)


def read_surroundings() -> Surroundings:
    """Returns this process's directory, path and environment, for a worker that the launcher starts."""
    try:
        directory = os.getcwd()
    except OSError:
        directory = "/"
    mpi = ("OMPI_", "PMI_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(mpi)}
    return Surroundings(directory, list(sys.path), list(sys.argv), environment)


def pickle_makers(env_fns: Sequence[Callable[[], Any]], first: int) -> bytes:
    """Pickles the functions; raises WorkerError that names the one which cannot be pickled."""
    try:
        return dumps(list(env_fns))
    except Exception as error:
        for number, function in enumerate(env_fns, first):
            try:
                dumps(function)
            except Exception as why:
                raise WorkerError(
                    f"env_fns[{number}], {function!r}, cannot be sent to a worker process: {why}. Let the "
                    'function create the objects that it uses, or use context="fork"'
                ) from why
        raise WorkerError(f"env_fns cannot be sent to worker processes: {error}") from error
