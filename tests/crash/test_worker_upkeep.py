"""Resources of workers: the launcher, descriptors, processor time, streams, old systems."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from shoal.process import launcher
from tests.crash.fragile import (
    FORK,
    GO_ON,
    PRELUDE,
    actions,
    is_running,
    read_words,
    wait_gone,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*(ERROR|Calling `close`)")


# -- the launcher -----------------------------------------------------------------------------------------


def kill_launcher():
    pid = launcher._current._process.pid
    os.kill(pid, signal.SIGKILL)
    return pid


def test_workers_continue_without_the_launcher(make):
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
    pids = [pid for path in (f"/proc/{os.getpid()}/task", f"/proc/{process}/task")
            for task in os.listdir(path) for pid in Path(path, task, "children").read_text().split()]
    children = [name_of(pid) for pid in pids]
    maps = sum("memfd:shoal" in line for line in open("/proc/self/maps"))
    launchers = len(os.listdir(f"/proc/{process}/fd"))
    return sorted(os.listdir("/proc/self/fd")), children, threading.active_count(), maps, launchers

def name_of(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "gone"

def use(**arguments):
    with make_fragile(**arguments) as envs:
        envs.reset(seed=0)
        envs.step(actions())
        rollout = envs.rollout(4)
        envs.step(actions(1, BIG))

use()
wait_until(lambda: launcher.SPARE in held()[1], 5)  # the one in reserve is there at last, each time
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


def test_output_of_workers_reaches_stderr_and_stdout(run_script):
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


def test_trainer_with_blocked_signals_gets_exit_statuses(run_script):
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


WITHOUT_PIDFD = """
import sitecustomize
assert sitecustomize.pidfd_open is not None
envs = make_fragile(on_fault="restart", step_timeout_s=0.5)
envs.reset(seed=0)
for how in (KILL, C_LOOP, STOP, EXIT):
    truncated = envs.step(actions(0, how))[3].tolist()
    assert truncated == [True, True, False, False], (how, truncated)
    envs.step(actions())
pids = envs.worker_pids
with at_most(3.0):
    envs.close()
assert not any(map(is_running, pids))
envs = make_fragile(2, 2)
envs.reset(seed=0)
envs.step_async(actions(1, C_LOOP, count=2))
say(launcher._current._process.pid, *envs.worker_pids)
signal.pause()
"""


@pytest.mark.parametrize(
    "how", ["os.pidfd_open = pidfd_open", "del os.pidfd_open"], ids=["refused", "absent"]
)
def test_workers_work_without_pidfds(run_script, tmp_path, how):
    (tmp_path / "sitecustomize.py").write_text(
        f"import os\ndef pidfd_open(*a):\n    raise OSError(38, 'Function not implemented')\n{how}\n"
    )
    parent = run_script(WITHOUT_PIDFD, path=tmp_path)
    pids = [*map(int, read_words(parent))]
    parent.kill()
    parent.wait()
    wait_gone(pids, 1.0 + 1.0)


def test_workers_work_without_assertions(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        PRELUDE
        + "with make_fragile() as envs:\n    envs.reset(seed=0)\n    say(envs.step(actions())[1].sum())\n"
    )
    done = subprocess.run(
        [sys.executable, "-O", script],
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
