"""Measures the cost of a session for a run: without watchers, where it keeps the history; with `envs.log`
every 50 steps; with ten processes that watch and read the history; with a process that records one episode
after the other; and with a viewer, ten pages and fifty malicious clients. The viewer records as well.
The first ratio of a world is that of a session nobody watches to no session; the others are relative to it.

    python lab/benchmarks/state.py [--seconds S] [--pairs P] [--cpu] [--smoke]

The two sides of a pair are stepped in turns of a tenth of a second, so that other load affects both. A run
that is watched limits the share of its time that it spends on publishing; the turns of the other side are not
its time, so the limit does not count them (a run outside of this benchmark has no such pauses). A case
has two numbers: the median of the turns' ratios, and the share of the run's time that it spent on publishing,
which also counts what happens in few turns, such as recordings. Watchers are separate processes; on a machine
without a spare core they use the run's core, and the result does not show the cost for the run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

import shoal
from shoal.state.publish import Publisher

WATCHER = """
import sys, time, shoal
session = shoal.attach(sys.argv[1])
session.watch([int(sys.argv[2])], rate_hz=20)
print("there", flush=True)
seen = 0
while session.alive:
    found = session.latest(int(sys.argv[2]), seen)
    if found is not None:
        seen = found[0]
    session.history()
    time.sleep(0.05)
"""

RECORDER = """
import sys, shoal
session = shoal.attach(sys.argv[1])
print("there", flush=True)
while session.alive:
    session.ask_for_recording(0)
    try:
        while session.take_recording() is None and session.alive:
            session._receive_notes(0.1)
    except shoal.errors.SessionError:
        pass
"""

# Pages that read everything, and clients that repeatedly send half a request, random bytes, or a method or a
# host that is not allowed.
PAGES = """
import base64, os, random, socket, sys, threading, time
from urllib.parse import urlsplit
link, pages, hostile = urlsplit(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
token = link.query.removeprefix("token=")
def upgraded():
    channel = socket.create_connection((link.hostname, link.port), 5)
    key = base64.b64encode(os.urandom(16)).decode()
    head = (f"GET /socket HTTP/1.1\\r\\nHost: {link.netloc}\\r\\nOrigin: http://{link.netloc}\\r\\n"
            f"Authorization: Bearer {token}\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
            f"Sec-WebSocket-Key: {key}\\r\\nSec-WebSocket-Version: 13\\r\\n\\r\\n")
    channel.sendall(head.encode())
    assert channel.recv(4096).startswith(b"HTTP/1.1 101")
    return channel
def page(number):
    channel = upgraded()
    text = b'{"type": "watch", "envs": [0], "rate": 20}'
    channel.sendall(bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text)
    while channel.recv(1 << 20):
        pass
HARM = [
    b"GET / HTTP/1.1\\r\\nHost: x",
    os.urandom(20000),
    b"POST / HTTP/1.1\\r\\n\\r\\n",
    b"GET /socket HTTP/1.1\\r\\nHost: evil\\r\\n\\r\\n",
]
def harm(number):
    while True:
        try:
            channel = socket.create_connection((link.hostname, link.port), 5)
            channel.sendall(HARM[number % 4])
            channel.settimeout(1)
            channel.recv(1000)
        except OSError:
            pass
        time.sleep(0.05)
for count, work in ((pages, page), (hostile, harm)):
    for number in range(count):
        threading.Thread(target=work, args=(number,), daemon=True).start()
time.sleep(1)
print("there", flush=True)
time.sleep(1000)
"""


CLOCK = time.perf_counter_ns
TURN_S = 0.1

Turn: TypeAlias = Callable[[], tuple[int, int]]


class Publishing:
    """Adds up the time that this process spends on publishing, and stops its clock between turns."""

    def __init__(self) -> None:
        self.spent_ns = 0
        self._publishers: dict[Publisher, int] = {}
        """Those that were called, with the time at which their last turn ended."""
        publish = Publisher.__call__

        def timed(publisher: Publisher, *arguments: Any) -> None:
            began = CLOCK()
            self._publishers.setdefault(publisher, 0)
            publish(publisher, *arguments)
            self.spent_ns += CLOCK() - began

        Publisher.__call__ = timed  # type: ignore[assignment, method-assign]

    def run(self, turn: Turn) -> tuple[int, int]:
        """Runs a turn of the watched side, as if it followed directly on the last one."""
        for publisher, ended in self._publishers.items():
            paused = time.monotonic_ns() - ended if ended else 0
            publisher._pause_until_ns += paused
            publisher._paid_at_ns += paused
            publisher._live_at_ns += paused
            if publisher._recorder is not None:
                publisher._recorder.began_ns += paused
        result = turn()
        self._publishers = dict.fromkeys(self._publishers, time.monotonic_ns())
        return result

    def forget(self) -> None:
        self._publishers.clear()


PUBLISHING = Publishing()

WORLDS: list[tuple[str, int, dict[str, int]]] = [
    ("CartPole-v1", 8, {}),
    ("CartPole-v1", 1024, {}),
    ("Reef-v0", 1, {}),
    ("Reef-v0", 1, {"height": 512, "width": 512, "num_agents": 1024, "num_enemies": 1976}),
]


def step_for(envs: shoal.VectorEnv, seconds: float, is_logging: bool = False) -> tuple[int, int]:
    """Steps for a while. Returns the nanoseconds and the number of steps."""
    actions = envs.action_space.sample() * 0
    begin = CLOCK()
    end = begin + int(seconds * 1e9)
    steps = 0
    while CLOCK() < end:
        for _ in range(50):
            envs.step(actions)
        if is_logging:
            envs.log(loss=0.5, entropy=0.25, kl=0.01)
        steps += 50
    return CLOCK() - begin, steps


@dataclass
class Arguments:
    """How long to measure each case on each side of a pair, and with how many clients."""

    seconds: float
    clients: int
    hostile: int
    is_swapped: bool = False


class Ratios:
    """The ratios of each case, over all pairs of vector environments, and the shares of publishing."""

    def __init__(self) -> None:
        self._ratios: dict[str, list[float]] = {}
        self._shares: dict[str, list[float]] = {}
        self._base = 1.0

    def compare(self, what: str, one: Turn, other: Turn, seconds: float) -> None:
        """Adds the ratios of `other` to `one`, which take turns; later cases are relative to the first.

        Two vector environments that do the same differ by some percent, because their memory is at other
        addresses. So the first case of a pair is its base, and what watchers cost is relative to that.
        """
        ratios, spent, published = [], 0, PUBLISHING.spent_ns
        for number in range(max(1, round(seconds / TURN_S))):
            costs = {}
            for turn in (one, other) if number % 2 else (other, one):
                took, steps = PUBLISHING.run(turn) if turn is other else turn()
                costs[turn] = took / steps
                spent += took if turn is other else 0
            ratios.append(costs[other] / costs[one])
        self._ratios.setdefault(what, []).extend(ratio / self._base for ratio in ratios)
        self._shares.setdefault(what, []).append((PUBLISHING.spent_ns - published) / spent)
        if what == next(iter(self._ratios)):
            self._base = statistics.median(ratios)

    def begin_pair(self) -> None:
        self._base = 1.0
        PUBLISHING.forget()

    def report(self) -> None:
        for what, ratios in self._ratios.items():
            low, high = np.percentile(ratios, [25, 75])
            share = statistics.mean(self._shares[what])
            print(
                f"{what:42} {statistics.median(ratios):6.3f}  (quartiles {low:.3f} {high:.3f})"
                f"  publishing {share:6.2%}",
                flush=True,
            )


def measure_pair(ratios: Ratios, name: str, num_envs: int, options: dict[str, Any], args: Arguments) -> None:
    """Measures all cases with one pair: environments without a session, and with one."""
    ratios.begin_pair()
    sessions = [None, "benchmark"]
    if args.is_swapped:
        sessions.reverse()
    both = {
        name_: shoal.make_vec(name, num_envs, session=name_, num_threads=1, **options) for name_ in sessions
    }
    for envs in both.values():
        envs.reset(seed=0)
        step_for(envs, 2 * TURN_S)
    pair = partial(step_for, both[None], TURN_S), partial(step_for, both["benchmark"], TURN_S)
    ratios.compare("a session with its history, against none", *pair, args.seconds)
    logging = pair[0], partial(step_for, both["benchmark"], TURN_S, True)
    ratios.compare("three values logged every 50 steps", *logging, args.seconds)
    watcher = [sys.executable, "-c", WATCHER, "benchmark", "0"]
    with start_processes(*[watcher] * args.clients):
        ratios.compare(f"{args.clients} processes that watch", *pair, args.seconds)
    with start_processes([sys.executable, "-c", RECORDER, "benchmark"]):
        ratios.compare("one process that records", *pair, args.seconds)
    viewer = [sys.executable, "-m", "shoal", "watch", "--no-browser", "benchmark"]
    for hostile in (0, args.hostile):
        with start_processes(viewer) as (serving,):
            pages = [sys.executable, "-c", PAGES, second_line(serving), str(args.clients), str(hostile)]
            with start_processes(pages):
                ratios.compare(f"viewer, {args.clients} pages, {hostile} hostile", *pair, args.seconds)
    for envs in both.values():
        envs.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6, help="of each case, on each side of a pair")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--hostile", type=int, default=50)
    parser.add_argument(
        "--smoke", action="store_true", help="only check that it runs: one world, one round, few clients"
    )
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="measure the processor time of the stepping thread, for a machine that others use as well",
    )
    given = parser.parse_args()
    if given.cpu:
        global CLOCK
        CLOCK = time.thread_time_ns
    worlds, pairs = WORLDS, given.pairs
    args = Arguments(given.seconds, given.clients, given.hostile)
    if given.smoke:
        worlds, pairs, args = [WORLDS[2]], 1, Arguments(TURN_S, 1, 4)
    print(f"{os.cpu_count()} cores, {pairs} pairs of vector environments; ratios of the time of a step")
    for name, num_envs, options in worlds:
        print(f"{num_envs} {name} {options.get('height', '')}".strip())
        ratios = Ratios()
        for number in range(pairs):
            measure_pair(ratios, name, num_envs, options, replace(args, is_swapped=number % 2 == 1))
        ratios.report()


@contextmanager
def start_processes(*commands: list[str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Starts processes and waits for the first line of output of each."""
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def second_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


if __name__ == "__main__":
    main()
