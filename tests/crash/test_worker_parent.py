"""The process that made the environments is killed, interrupted or forked, or its launcher dies."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from shoal.process import launcher
from tests.crash.fragile import (
    FORK,
    GO_ON,
    SLOW_S,
    SOON_S,
    actions,
    at_most,
    is_running,
    state_of,
    wait_gone,
    wait_until,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*(ERROR|Calling `close`)")

PRELUDE = """
import os, signal, sys, time
from tests.crash.fragile import *
from shoal.errors import ForkedError
from shoal.process import launcher

def say(*words):
    print(*words, flush=True)
"""


@pytest.fixture
def run_script(tmp_path):
    """Starts a script in a session of its own; it is killed with all its processes after the test."""
    started = []

    def run(source, *args):
        script = tmp_path / f"script{len(started)}.py"
        script.write_text(PRELUDE + source)
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(script), *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def read_words(process):
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return line.split()


# -- the parent's death -----------------------------------------------------------------------------------

BUSY = """
if __name__ == "__main__":
    context = None if sys.argv[1] == "None" else sys.argv[1]
    envs = make_fragile(4, 4, context=context)
    envs.reset(seed=0)
    envs.step_async(actions(1, LOOP, 2, C_LOOP, 3, DEAF_LOOP))
    first = launcher._current._process.pid if context is None else 0
    say(first, *envs.worker_pids)
    signal.pause()
"""


@pytest.mark.parametrize("context", [None, "fork", "forkserver", "spawn"])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_parent_idle_or_in_any_loop(run_script, context, how):
    parent = run_script(BUSY, context)
    pids = [pid for pid in map(int, read_words(parent)) if pid]
    assert len(pids) == (5 if context is None else 4) and all(map(is_running, pids))
    parent.send_signal(how)
    parent.wait()
    wait_gone(pids, 1.0 + 1.0)


def test_a_full_stderr_does_not_keep_workers_alive(run_script):
    parent = run_script(
        """
envs = make_fragile(2, 2)
envs.reset(seed=0)
say(*envs.worker_pids)
envs.call_async("write_for_ever")
signal.pause()
"""
    )
    pids = [*map(int, read_words(parent))]
    waiting = [0]

    def is_full():  # nothing comes any more
        waiting.append(struct.unpack("i", fcntl.ioctl(parent.stderr, termios.FIONREAD, bytes(4)))[0])
        return waiting[-1] > 60000 and len(waiting) > 20 and len(set(waiting[-20:])) == 1

    wait_until(is_full, 5 * SOON_S)
    parent.kill()
    parent.wait()
    wait_gone(pids, 1.0 + 1.0)


@pytest.mark.parametrize("way", ["return", "exit", "exception", "delete"])
def test_a_script_that_never_closes_leaves_nobody_and_says_nothing_of_it(run_script, way):
    script = run_script(
        """
envs = make_fragile()
envs.reset(seed=0)
envs.step_async(actions(0, LOOP))
say(launcher._current._process.pid, *envs.worker_pids)
way = sys.argv[1]
if way == "exit":
    sys.exit(0)
elif way == "exception":
    raise SystemExit
elif way == "delete":
    del envs
    say("deleted")
""",
        way,
    )
    pids = [*map(int, read_words(script))]
    if way == "delete":
        assert read_words(script) == ["deleted"]
        assert not any(map(is_running, pids[1:]))
    with at_most(2 * SOON_S):
        assert script.wait() == 0
    wait_gone(pids, SOON_S)
    assert script.stderr.read() == ""


# -- Ctrl-C -----------------------------------------------------------------------------------------------

INTERRUPTED = """
if __name__ == "__main__":
    context = None if sys.argv[1] == "None" else sys.argv[1]
    envs = make_fragile(context=context)
    envs.reset(seed=0)
    pids = envs.worker_pids
    times = 0
    envs.step_async(actions(0, SLOW))
    try:
        say("waiting")
        envs.step_wait()
    except KeyboardInterrupt:
        times += 1
        say(time.monotonic())
    assert all(map(is_running, pids))
    reward = envs.step_wait()[1].tolist()
    assert reward == [1.0] * 4, reward
    assert envs.worker_pids == pids
    envs.step_async(actions(0, LOOP))
    try:
        say("waiting")
        envs.step_wait()
    except KeyboardInterrupt:
        times += 1
        say(time.monotonic())
    with at_most(3.0):
        envs.close()
    assert not any(map(is_running, pids))
    say("interrupted", times)
"""


@pytest.mark.parametrize("context", [None, "fork", "spawn"])
def test_control_c_is_one_keyboard_interrupt_of_the_parent_and_the_workers_live(run_script, context):
    script = run_script(INTERRUPTED, context)
    for _ in range(2):
        assert read_words(script) == ["waiting"]
        wait_until(lambda: state_of(script.pid) == "S", SOON_S)
        sent = time.monotonic()
        os.killpg(script.pid, signal.SIGINT)
        heard = float(read_words(script)[0])
        assert heard - sent < 0.1 + SLOW_S / 2
    assert read_words(script) == ["interrupted", "2"]
    assert script.wait() == 0
    assert script.stderr.read() == ""


# -- fork -------------------------------------------------------------------------------------------------

FORKED = """
batch = int(sys.argv[1])
envs = make_fragile(batch_size=batch or None)
if batch:
    envs.async_reset(seed=0)
    calls = [lambda: envs.async_reset(), lambda: envs.recv(), lambda: envs.send([0], [0])]
else:
    observation, _ = envs.reset(seed=0)
    rollout = envs.rollout(4)
    rollout.start(observation)
    calls = [
        lambda: envs.reset(), lambda: envs.step(actions()), lambda: envs.step_async(actions()),
        lambda: envs.call("echo", 1), lambda: envs.get_attr("tag"), lambda: envs.set_attr("note", 1),
        lambda: envs.render(), lambda: envs.rollout(4), lambda: rollout.step(actions()), lambda: envs.stats,
        lambda: envs.actions,
    ]
child = os.fork()
if child == 0:
    for call in calls:
        with at_most(1.0):
            try:
                call()
            except ForkedError:
                continue
        os._exit(1)
    if sys.argv[2] == "close":
        with at_most(1.0):
            envs.close()
    elif sys.argv[2] == "new":
        with make_fragile() as own:
            own.reset(seed=0)
            assert own.step(actions())[1].tolist() == [1.0] * 4
    sys.exit(0)  # with all that runs at exit
_, status = os.waitpid(child, 0)
assert status == 0, status
if batch:
    assert len(envs.recv()[0]) == batch
else:
    assert envs.step(actions())[1].tolist() == [1.0] * 4
with at_most(3.0):
    envs.close()
say("undisturbed")
"""


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("then", ["exit", "close", "new"])
def test_a_forked_child_gets_ForkedError_at_once_and_its_end_disturbs_nobody(run_script, batch, then):
    script = run_script(FORKED, batch, then)
    out, err = script.communicate(timeout=60)
    assert (out, script.returncode) == ("undisturbed\n", 0), err


# -- the launcher -----------------------------------------------------------------------------------------


def kill_launcher():
    pid = launcher._current._process.pid
    os.kill(pid, signal.SIGKILL)
    return pid


def test_workers_go_on_without_the_launcher_and_a_new_one_is_started_when_needed(make):
    envs = make()
    envs.reset(seed=0)
    killed = kill_launcher()
    assert envs.step(actions())[1].tolist() == [1.0] * 4
    others = make()  # at once: whether or not the kernel has noticed
    others.reset(seed=0)
    assert launcher._current._process.pid != killed
    assert others.step(actions())[1].tolist() == [1.0] * 4
    assert envs.step(actions())[1].tolist() == [2.0] * 4


def test_two_vector_environments_work_side_by_side_and_end_apart(make):
    one, two = make(), make(6, 3)
    one.reset(seed=0)
    two.reset(seed=1)
    one.step_async(actions())
    two.step_async(actions(count=6))
    assert two.step_wait()[1].tolist() == [1.0] * 6 and one.step_wait()[1].tolist() == [1.0] * 4
    one.close()
    assert two.step(actions(count=6))[1].tolist() == [2.0] * 6


# -- what is kept and used --------------------------------------------------------------------------------

LEAKS = """
import threading
from pathlib import Path

def held():
    process = launcher._current._process.pid
    children = [int(pid) for path in (f"/proc/{os.getpid()}/task", f"/proc/{process}/task")
                for task in os.listdir(path) for pid in Path(path, task, "children").read_text().split()]
    maps = sum("memfd:shoal" in line for line in open("/proc/self/maps"))
    launchers = len(os.listdir(f"/proc/{process}/fd"))
    return sorted(os.listdir("/proc/self/fd")), children, threading.active_count(), maps, launchers

def use(**arguments):
    with make_fragile(**arguments) as envs:
        envs.reset(seed=0)
        envs.step(actions())
        rollout = envs.rollout(4)
        envs.step(actions(1, BIG))

use()
before = held()
for turn in range(20):
    use(on_fault=("raise", "restart")[turn % 2])
wait_until(lambda: held() == before, 5)
say("as before")
"""


def test_twenty_vector_environments_later_descriptors_children_and_threads_are_as_before(run_script):
    out, err = run_script(LEAKS).communicate(timeout=60)
    assert out == "as before\n", err


def test_sixteen_workers_on_two_cores_work(make):
    envs = make(32, 16)
    envs.reset(seed=0)
    for step in range(1, 51):
        assert envs.step(actions(count=32))[1].tolist() == [float(step)] * 32


def test_idle_workers_hardly_use_the_processor(make):
    envs = make(4, 4)
    envs.reset(seed=0)
    envs.step(actions())

    def used_s():
        ticks = 0
        for pid in envs.worker_pids:
            words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(words[11]) + int(words[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    before, begin = used_s(), time.monotonic()
    time.sleep(3)
    share = (used_s() - before) / (time.monotonic() - begin) / 4
    assert share < 0.2 / 10


def test_only_workers_that_are_not_daemons_may_start_processes(make):
    envs = make(daemon=False)
    envs.reset(seed=0)
    assert envs.step(actions(0, FORK))[1].tolist() == [1.0] * 4
    envs = make()
    envs.reset(seed=0)
    with pytest.raises(AssertionError, match="daemonic"):
        envs.step(actions(0, FORK))
    assert envs.step(actions(1, GO_ON))[1].tolist()[2:] == [2.0] * 2


def test_what_workers_say_reaches_the_users_stderr_and_stdout(run_script):
    script = run_script(
        """
with make_fragile() as envs:
    envs.reset(seed=0)
    envs.step(np.full(4, SAY))
"""
    )
    out, err = script.communicate(timeout=60)
    for env in range(4):  # in what order, and whether line by line, is Python's and the workers' affair
        assert err.count(f"environment {env} speaks") == 1 and out.count(f"and {env} prints") == 1


def test_a_trainer_that_blocks_all_signals_still_learns_how_its_workers_ended(run_script):
    script = run_script(
        """
from shoal.errors import WorkerDied
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
envs = make_fragile()
envs.reset(seed=0)
say(died(envs, actions(0, KILL)).signal)
"""
    )
    out, err = script.communicate(timeout=60)
    assert out == "9\n" and script.returncode == 0, err


@pytest.mark.parametrize("option", ["-O", "-OO"])
def test_workers_work_without_assertions(tmp_path, option):
    script = tmp_path / "script.py"
    script.write_text(
        PRELUDE
        + "with make_fragile() as envs:\n    envs.reset(seed=0)\n    say(envs.step(actions())[1].sum())\n"
    )
    done = subprocess.run(
        [sys.executable, option, script],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "4.0\n", done.stderr


def test_environments_made_in_a_thread_that_has_ended_still_step(make):
    made = []
    thread = threading.Thread(target=lambda: made.append(make()))
    thread.start()
    thread.join()
    made[0].reset(seed=0)
    assert made[0].step(actions())[1].tolist() == [1.0] * 4
    pids = made[0].worker_pids
    made[0].close()
    assert not any(map(is_running, pids))
