"""Many at once for one name: exactly one process gets it, and the others learn who."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from shoal.errors import NameInUse
from shoal.memory import Layout, Segment, list_names
from shoal.memory.names import name_directory

LAYOUT = Layout({"numbers": (np.int64, (8,))})

# A process that owns the name it is given until its input ends.
OWNER = """
import sys
import numpy as np
from shoal.memory import Layout, Segment
segment = Segment.named(Layout({"numbers": (np.int64, (8,))}), sys.argv[1])
segment["numbers"][0] = 41
print("ready", flush=True)
sys.stdin.read()
"""

RACE = """
import os, struct, sys, traceback
import numpy as np
from shoal.errors import NameInUse
from shoal.memory import Layout, Segment

name, count = sys.argv[1], int(sys.argv[2])
layout = Layout({"numbers": (np.int64, (8,))})
start_r, start_w = os.pipe()
stop_r, stop_w = os.pipe()
said_r, said_w = os.pipe()
pids = []
for _ in range(count):
    pids.append(os.fork())
    if pids[-1] == 0:
        os.close(start_w), os.close(stop_w)
        os.read(start_r, 1)
        try:
            segment = Segment.named(layout, name)
            os.write(said_w, struct.pack("=qq", 1, os.getpid()))
            os.read(stop_r, 1)
            segment.close()
        except NameInUse as error:
            os.write(said_w, struct.pack("=qq", 0, error.pid or -1))
        except BaseException:
            traceback.print_exc()
            os.write(said_w, struct.pack("=qq", -1, -1))
        os._exit(0)
os.close(start_w)  # all at once
said = [struct.unpack("=qq", os.read(said_r, 16)) for _ in range(count)]
os.close(stop_w)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
winners = [pid for won, pid in said if won == 1]
losers = [pid for won, pid in said if won == 0]
print(len(winners), len(losers), set(losers) == set(winners))
"""


@pytest.mark.parametrize("left", ["fresh", "by a killed owner"])
def test_exactly_one_of_64_processes_gets_a_name(run_python, start_python, name, left):
    for _ in range(3):
        if left != "fresh":
            owner = start_python(OWNER, name)
            assert owner.read() == "ready"
            owner.kill()
            assert [entry.alive for entry in list_names() if entry.name == name] == [False]
        assert run_python(RACE, name, 64) == "1 63 True\n"
        assert not [entry for entry in os.listdir(name_directory()) if name in entry]


def test_threads_that_want_one_name_get_it_once(name):
    made, refused, barrier = [], [], threading.Barrier(8)

    def want():
        barrier.wait()
        try:
            made.append(Segment.named(LAYOUT, name))
        except NameInUse as error:
            refused.append(error.pid)

    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and refused == [os.getpid()] * 7
    made[0].close()
