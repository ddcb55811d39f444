"""The process that made the environments is killed, interrupted or forked."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios
import time

import pytest

from tests.crash.fragile import (
    SLOW_S,
    SOON_S,
    at_most,
    is_running,
    read_words,
    state_of,
    wait_gone,
    wait_until,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*(ERROR|Calling `close`)")


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


@pytest.mark.parametrize(
    ("context", "how"),
    [
        (None, signal.SIGTERM),
        (None, signal.SIGKILL),
        ("fork", signal.SIGKILL),
        ("forkserver", signal.SIGKILL),
        ("spawn", signal.SIGTERM),
    ],
)
def test_idle_and_looping_workers_end_with_their_parent(run_script, context, how):
    parent = run_script(BUSY, context)
    pids = [pid for pid in map(int, read_words(parent)) if pid]
    assert len(pids) == (5 if context is None else 4) and all(map(is_running, pids))
    parent.send_signal(how)
    parent.wait()
    wait_gone(pids, 1.0 + 1.0)


def test_a_launcher_that_is_still_loading_ends_with_its_parent(run_script, tmp_path):
    slow = tmp_path / "slow" / "numpy"
    slow.mkdir(parents=True)
    (slow / "__init__.py").write_text(
        f"import time\nopen({str(tmp_path / 'loading')!r}, 'w')\ntime.sleep(60)\n"
    )
    parent = run_script(
        """
import threading
sys.path.insert(0, sys.argv[1])
threading.Thread(target=make_fragile, daemon=True).start()
while launcher._current is None:
    time.sleep(0.01)
say(launcher._current._process.pid)
signal.pause()
""",
        slow.parent,
    )
    pids = [*map(int, read_words(parent))]
    wait_until((tmp_path / "loading").exists, 5 * SOON_S)
    parent.kill()
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
        return waiting[-1] > 16000 and len(waiting) > 20 and len(set(waiting[-20:])) == 1

    wait_until(is_full, 5 * SOON_S)
    parent.kill()
    parent.wait()
    wait_gone(pids, 1.0 + 1.0)


@pytest.mark.parametrize("way", ["return", "exit", "exception", "delete"])
def test_script_that_never_closes_leaves_no_worker_and_prints_nothing(run_script, way):
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
    reward = envs.step(actions())[1].tolist()  # waits for the other one first
    assert reward == [2.0] * 4, reward
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
def test_ctrl_c_raises_once_in_the_parent_and_workers_survive(run_script, context):
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


@pytest.mark.parametrize(("batch", "then"), [(0, "exit"), (0, "close"), (2, "exit"), (2, "new")])
def test_forked_child_gets_ForkedError_and_its_exit_disturbs_nothing(run_script, batch, then):
    script = run_script(FORKED, batch, then)
    out, err = script.communicate(timeout=60)
    assert (out, script.returncode) == ("undisturbed\n", 0), err
