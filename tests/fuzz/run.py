"""Runs targets on mutated inputs in a child that may die; what it died of is kept.

python -m tests.fuzz.run [NAME ...] --cases 100000 --seed 7      every case of a seed is the same each time
python -m tests.fuzz.run NAME --input FILE                       one input again

With SHOAL_MODULE=build/asan/installed/shoal/_core.*.so that build is used (tests/built.py); `make fuzz` does.
"""

from __future__ import annotations

import argparse
import faulthandler
import mmap
import os
import random
import signal
import struct
import sys
import time
import traceback
import warnings
import zlib
from pathlib import Path

from tests.built import ROOT, use

if os.environ.get("SHOAL_MODULE"):
    use(os.environ["SHOAL_MODULE"])

from tests.fuzz.mutate import mutated  # noqa: E402
from tests.fuzz.targets import TARGETS, Target, directory  # noqa: E402

KEPT = ROOT / "build" / "fuzz"
_ROOM = 1 << 22
_HEAD = struct.Struct("=QQ")
_CHUNK = 20_000
_HANG_S = 60  # a space of a hundred million numbers is no hang, on a machine that is busy
_FOUND = 1 << 8  # as os.waitpid says it


class _Now:
    """What the child is doing, in memory that outlives it."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, _ROOM)

    def begin(self, case: int, data: bytes) -> None:
        _HEAD.pack_into(self.memory, 0, case, len(data))
        self.memory[_HEAD.size : _HEAD.size + min(len(data), _ROOM - _HEAD.size)] = data[: _ROOM - _HEAD.size]

    def read(self) -> tuple[int, bytes]:
        case, size = _HEAD.unpack_from(self.memory, 0)
        return case, self.memory[_HEAD.size : _HEAD.size + size]


def run(name: str, target: Target, cases: int, seed: int, seconds: float) -> tuple[int, int]:
    """How many ran, and in how many stretches of them something was wrong."""
    seeds = [*target.seeds(), *_corpus(name)]
    directory()  # here, not in a child: those end without tidying up
    now, done, wrong, deadline = _Now(), 0, 0, time.monotonic() + seconds
    while done < cases and time.monotonic() < deadline and wrong < 8:
        last = min(done + _CHUNK, cases)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                faulthandler.enable()
                warnings.simplefilter("ignore")
                status = _child(name, target, seeds, now, range(done, last), seed, deadline)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        status = _wait(pid, now)
        case, data = now.read()
        done = case + 1
        if status == _FOUND:
            wrong += 1
        elif status != 0:
            how = "hung" if status == -1 else f"ended with status {status:#x}"
            print(
                f"  WRONG {name}: case {case} of seed {seed} {how}: {_keep(name, seed, case, data)}",
                flush=True,
            )
            wrong += 1
    return done, wrong


def _corpus(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((Path(__file__).parent / "corpus").glob(f"{name}-*"))]


def _child(
    name: str, target: Target, seeds: list[bytes], now: _Now, numbers: range, seed: int, deadline: float
) -> int:
    """What Python can go on after is told once for each place, and the child goes on."""
    found: set[object] = set()
    for case in numbers:
        chooser = random.Random(f"{name} {seed} {case}")
        data = mutated(chooser, seeds) if case >= len(seeds) else seeds[case]
        if case >= len(seeds) and chooser.random() < 0.7:
            data = target.repair(data)
        now.begin(case, data)
        try:
            target.run(data)
        except target.allowed:
            pass
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            if (key := (type(error), place.filename, place.lineno)) not in found:
                found.add(key)
                traceback.print_exc()
                print(
                    f"  WRONG {name}: case {case} of seed {seed}: {_keep(name, seed, case, data)}", flush=True
                )
        if case % 16 == 0 and time.monotonic() > deadline:
            break
    return 1 if found else 0


def _keep(name: str, seed: int, case: int, data: bytes) -> Path:
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / f"{name}-{seed}-{case}.bin"
    path.write_bytes(data)
    return path


def _wait(pid: int, now: _Now) -> int:
    """Its status; -1 if it had to be killed because a case took too long."""
    seen, since = b"", time.monotonic()
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.005)
        head = now.memory[: _HEAD.size]
        if head != seen:
            seen, since = head, time.monotonic()
        elif time.monotonic() - since > _HANG_S:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return -1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--cases", type=int, default=1000, help="for each target, times its weight")
    parser.add_argument("--seconds", type=float, default=1e9, help="for each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--input", help="run this file, once")
    arguments = parser.parse_args()
    if arguments.input:
        (name,) = arguments.names
        TARGETS[name].run(Path(arguments.input).read_bytes())
        return 0
    total = wrong = 0
    for name in arguments.names or TARGETS:
        target = TARGETS[name]
        begin = time.monotonic()
        cases = max(1, int(arguments.cases * target.weight))
        count, findings = run(name, target, cases, arguments.seed, arguments.seconds)
        total += count
        print(f"{name}: {count} cases in {time.monotonic() - begin:.1f} s", flush=True)
        wrong += findings > 0
    print(f"{total} cases, {wrong} wrong, seed {arguments.seed} ({zlib.crc32(sys.version.encode()):08x})")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
