"""Sessions: what another process sees of a run, whatever dies."""

import contextlib
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.errors import ClosedError, NameInUse, SessionError, ShoalError
from shoal.state import names, notes
from shoal.state.notes import COUNTERS, FACTS, PUBLISH, WATCH, Note
from shoal.vector import ProcessVectorEnv
from tests.crash.fragile import is_running, wait_until
from tests.state.worlds import STATEFUL, Pond, Silent, is_whole, start_run


class Stepping:
    """Steps environments in a thread for as long as the block lasts."""

    def __init__(self, envs):
        self.envs, self.going = envs, True
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while self.going:
            self.envs.step(self.envs.action_space.sample() * 0)

    def __enter__(self):
        self.envs.reset(seed=0)
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.going = False
        self.thread.join()


@contextlib.contextmanager
def running(code, *arguments):
    """A run in a process of its own, and the name of its session."""
    run = start_run(code, *arguments)
    try:
        yield run, run.stdout.readline().strip()
    finally:
        run.kill()
        run.wait()
        run.stdout.close()


RUNS = {
    "threads": "step_for_ever(shoal.make_vec(STATEFUL, 3))",
    "flow": """
envs = shoal.make_vec(STATEFUL, 4, batch_size=2)
envs.async_reset(seed=0)
say(envs.session)
while True:
    ids = envs.recv()[4]["env_id"]
    envs.send(np.zeros(len(ids), np.int64), ids)
""",
    "C in processes": "step_for_ever(shoal.make_vec(STATEFUL, 3, backend='process', num_workers=2))",
    "Python in processes": "step_for_ever(shoal.make_vec(Pond, 3, num_workers=2))",
    "Python in the caller": "step_for_ever(shoal.make_vec(Pond, 3, num_workers=2, caller_steps=True))",
    "send and recv": """
envs = shoal.make_vec(Pond, 4, num_workers=2, batch_size=2)
envs.async_reset(seed=0)
say(envs.session)
while True:
    ids = envs.recv()[4]["env_id"]
    envs.send(np.zeros(len(ids), np.int64), ids)
""",
}


@pytest.mark.parametrize("code", RUNS.values(), ids=RUNS)
def test_snapshots_of_a_running_process_are_whole_and_of_one_step(code):
    with running(code) as (run, name), shoal.attach(name) as session:
        assert session.facts["pid"] == run.pid and session.facts["name"] == name
        envs = session.facts["num_worlds"]
        session.watch(range(envs), rate_hz=60)
        seen = {env: set() for env in range(envs)}
        last = dict.fromkeys(range(envs), 0)
        deadline = time.monotonic() + 30
        while min(map(len, seen.values())) < 15:
            assert time.monotonic() < deadline
            for env in range(envs):
                found = session.latest(env, last[env])
                if found is None:
                    continue
                last[env], snapshot = found
                assert snapshot.env_id == env and snapshot.error == ""
                arrays = {key: field.data for key, field in snapshot.world.items()}
                assert is_whole(arrays)
                tick = int(arrays["tick"])
                assert snapshot.tick == tick
                if tick:  # of the same step as what went in and out
                    assert float(snapshot.step["reward"].data) == tick
                seen[env].add((snapshot.episode, tick))
            time.sleep(0.002)
        assert all(max(stamps)[0] > 0 for stamps in seen.values())  # episodes are counted


def test_counters_increase():
    with running(RUNS["threads"]) as (_, name), shoal.attach(name) as session:
        first = session.counters()
        wait_until(lambda: session.counters()["episodes"] > first["episodes"] + 3, 10)
        now = session.counters()
        assert now["steps"] > first["steps"] and now["time_ns"] > first["time_ns"]
        assert now["length_sum"] == 1000 * now["episodes"]
        assert now["return_sum"] == 500500.0 * now["episodes"]


def test_an_environment_without_the_hook_shows_its_steps_and_its_frame():
    makers = [Silent, partial(Pond, 1, render_mode="rgb_array", wrong="raises")]
    with ProcessVectorEnv(makers[:1], session="silent") as envs, Stepping(envs):
        with shoal.attach("silent") as session:
            wait_until(lambda: float(session.snapshot(0).step["reward"].data) == 1.5, 5)
            snapshot = session.snapshot(0)
            assert snapshot.world == {} and session.state() == {}
            assert session.observations()["observation"].tolist() == [0.5, -0.5]
            assert snapshot.step["action"].data.shape == (2,) and not snapshot.step["terminated"].data
    with ProcessVectorEnv(makers[1:], session="pond") as envs, Stepping(envs):
        with shoal.attach("pond") as session:
            wait_until(lambda: session.snapshot(0).tick > 3, 5)
            snapshot = session.snapshot(0)
            frame = snapshot.step["frame"]
            assert frame.role == "image" and frame.data.shape == (6, 8, 3)
            assert (frame.data == snapshot.tick % 256).all()
            assert snapshot.step["observation/near"].data.tolist() == [snapshot.tick % 10] * 3
            assert snapshot.error == "export_state: ZeroDivisionError: the pond is dry"


def test_session_names_are_given_or_generated_and_unique():
    with shoal.make_vec("CartPole-v1", 2) as envs, shoal.make_vec("CartPole-v1", 2) as other:
        assert envs.session == f"CartPole-v1-{os.getpid()}"
        assert other.session == f"CartPole-v1-{os.getpid()}-2"
    with shoal.make_vec("CartPole-v1", 2, session="mine") as envs:
        assert envs.session == "mine"
        with pytest.raises(NameInUse, match="a live session is called 'mine'"):
            shoal.make_vec("CartPole-v1", 2, session="mine")
        with pytest.raises(NameInUse):
            ProcessVectorEnv([Silent], session="mine")
        assert [facts["name"] for facts in shoal.state.sessions()] == ["mine"]
    assert shoal.state.sessions() == []
    with shoal.make_vec("CartPole-v1", 2, session="mine"):  # free again
        pass


def test_sessions_can_be_turned_off(monkeypatch):
    with shoal.make_vec("CartPole-v1", 2, session=None) as envs:
        assert envs.session is None and shoal.state.sessions() == []
    monkeypatch.setenv("SHOAL_SESSIONS", "off")
    with shoal.make_vec("CartPole-v1", 2) as envs, ProcessVectorEnv([Silent], session="named") as others:
        assert envs.session is None and others.session is None and shoal.state.sessions() == []


def test_attaching_to_an_unknown_name_lists_live_sessions():
    with pytest.raises(SessionError, match="is called 'nobody'; live sessions: none"):
        shoal.attach("nobody")
    with pytest.raises(SessionError, match="no live sessions in .*; start a run first"):
        shoal.attach()
    with pytest.raises(ValueError, match="a session's name must have"):
        shoal.attach("../../etc/passwd")
    with shoal.make_vec("CartPole-v1", 2, session="one"), shoal.attach() as session:
        assert session.facts["name"] == "one"
        with pytest.raises(IndexError, match="out of range for 2 environments"):
            session.snapshot(2)
        with pytest.raises(TypeError):
            session.state("0")
        with pytest.raises(ValueError, match="rate_hz must be a number from"):
            session.watch([0], rate_hz=1000)
    with pytest.raises(ClosedError):
        session.counters()


def test_snapshot_of_a_run_that_does_not_step_times_out():
    with shoal.make_vec("CartPole-v1", 2, session="idle") as envs, shoal.attach("idle") as session:
        with pytest.raises(TimeoutError, match="was not stepped within 0.1 s"):
            session.snapshot(0, timeout_s=0.1)
        envs.reset(seed=0)  # it had asked: a reset is a boundary, too
        assert session.snapshot(0).episode == 0


@pytest.mark.parametrize("kind", ["threads", "Python in processes"])
def test_killed_run_is_not_listed(kind, own_sessions):
    with running(RUNS[kind]) as (run, name):
        session = shoal.attach(name)
        last = session.snapshot(0)
        run.kill()
        run.wait()
        wait_until(lambda: not session.alive, 2)
        with pytest.raises(SessionError, match="has ended"):
            session.counters()
        assert is_whole({key: field.data for key, field in last.world.items()})
        with pytest.raises(SessionError, match="has ended"):
            session.snapshot(0)
        _, kept = session.latest(0)  # what was seen last stays
        assert is_whole({key: field.data for key, field in kept.world.items()})
        session.close()
        assert (own_sessions / name).exists()
        assert shoal.state.sessions() == []
        assert not (own_sessions / name).exists()
        with pytest.raises(SessionError, match="no session in .* is called"):
            shoal.attach(name)


def test_name_of_a_dead_run_can_be_reused(own_sessions):
    with running("step_for_ever(shoal.make_vec(STATEFUL, 1, session='again'))") as (run, name):
        run.kill()
        run.wait()
        assert (own_sessions / name).exists()
        with shoal.make_vec("CartPole-v1", 1, session=name):
            assert len(shoal.state.sessions()) == 1


def watched_by(envs):
    return sorted(env for env, _ in envs._backend._state["watched"].tolist() if env >= 0)


def test_killed_watcher_stops_watching():
    with shoal.make_vec(STATEFUL, 3, session="watched") as envs, Stepping(envs):
        watcher = start_run("s = shoal.attach('watched'); s.snapshot(2); say('there'); time.sleep(60)")
        assert watcher.stdout.readline() == "there\n"
        assert watched_by(envs) == [2]
        with shoal.attach("watched") as session:
            session.snapshot(1)
            assert watched_by(envs) == [1, 2]
            watcher.kill()
            watcher.wait()
            watcher.stdout.close()
            wait_until(lambda: watched_by(envs) == [1], 2)
        wait_until(lambda: watched_by(envs) == [], 2)
        publisher = envs._backend._watching.publisher
        wait_until(lambda: not publisher._windows, 5)  # and its memory was given back


def test_at_most_sixteen_environments_are_watched():
    with shoal.make_vec(STATEFUL, 40, session="many") as envs, Stepping(envs):
        with shoal.attach("many") as one, shoal.attach("many") as two:
            one.watch(range(10))
            with pytest.raises(SessionError, match="6 of these 10 environments can be watched"):
                two.watch(range(20, 30))
            assert watched_by(envs) == [*range(10), *range(20, 26)]
            one.watch([5])
            two.watch(range(5, 15))
            assert watched_by(envs) == [*range(5, 15)]
            with pytest.raises(ValueError, match="at most 16"):
                one.watch(range(17))
            assert is_whole(two.state_arrays(14))


def test_watching_again_gives_new_snapshots():
    with shoal.make_vec(STATEFUL, 3, session="again") as envs, Stepping(envs):
        with shoal.attach("again") as session:
            for turn in range(30):
                session.watch([turn % 3])
                assert session.snapshot(turn % 3).env_id == turn % 3


def test_a_world_that_grows_is_given_a_larger_window():
    class Growing(Silent):
        def export_state(self):
            return {"all": np.full(min(self.tick, 40) * 5000, self.tick)}

    with ProcessVectorEnv([Growing], session="growing") as envs, Stepping(envs):
        with shoal.attach("growing") as session:
            sizes = set()
            wait_until(lambda: sizes.add(session.state_arrays()["all"].size) or max(sizes) == 200_000, 20)
            latest = session.state_arrays()["all"]
            assert (latest == latest[0]).all()


def test_restarted_worker_publishes_again():
    makers = [partial(Pond, tag) for tag in range(2)]
    with ProcessVectorEnv(makers, num_workers=2, on_fault="restart", session="mended") as envs:
        with Stepping(envs), shoal.attach("mended") as session:
            before = session.snapshot(1)
            os.kill(envs.worker_pids[1], signal.SIGKILL)
            wait_until(lambda: session.latest(1, before.time_ns + 10**9) is not None, 20)
            assert is_whole(session.state_arrays(1))


def test_watching_continues_after_a_fork_and_the_child_does_not_host(own_sessions):
    with shoal.make_vec(STATEFUL, 1, session="forked") as envs, Stepping(envs):
        pid = os.fork()
        if pid == 0:
            time.sleep(0.5)
            os._exit(0)
        with shoal.attach("forked") as session:
            assert is_whole(session.state_arrays(0))
        os.waitpid(pid, 0)
    code = """
import os
envs = shoal.make_vec(STATEFUL, 1, session='parent')
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
say(envs.session, child)
time.sleep(60)
"""
    with running(code) as (run, said):
        name, child = said.split()
        run.kill()
        run.wait()
        try:
            wait_until(lambda: names._is_dead(own_sessions / name), 2)  # although its child lives
            assert shoal.state.sessions() == []
            assert is_running(int(child))
        finally:
            os.kill(int(child), signal.SIGKILL)


# -- a watcher cannot write, and cannot hurt ------------------------------------------------------------


def connected(own_sessions, name):
    return names.connect(own_sessions / name)


def window_fd(channel, env=0):
    notes.send(channel, Note(WATCH, 1, 20000, (env,)))
    while (note := notes.receive(channel)).kind != notes.WINDOW:
        pass
    return note.fd


def test_received_descriptors_cannot_be_mapped_for_writing(own_sessions):
    with shoal.make_vec(STATEFUL, 1, session="sealed") as envs, Stepping(envs):
        with connected(own_sessions, "sealed") as channel:
            notes.send(channel, Note(FACTS))
            facts_fd = notes.receive(channel).fd
            for fd in (window_fd(channel), facts_fd):
                size = os.fstat(fd).st_size
                with pytest.raises(PermissionError):
                    mmap.mmap(fd, size, prot=mmap.PROT_READ | mmap.PROT_WRITE)
                with pytest.raises(OSError):
                    os.write(fd, b"x")
                with pytest.raises(OSError):
                    os.ftruncate(fd, 0)
                again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)  # the same user may, but it is sealed
                with pytest.raises(PermissionError):
                    mmap.mmap(again, size, prot=mmap.PROT_READ | mmap.PROT_WRITE)
                with pytest.raises(PermissionError):
                    os.pwrite(again, b"x", 0)
                os.close(again)
                os.close(fd)


def test_invalid_bytes_on_the_socket_close_only_that_connection(own_sessions):
    rng = np.random.default_rng(0)
    with shoal.make_vec(STATEFUL, 2, session="hostile") as envs, Stepping(envs):
        with shoal.attach("hostile") as session:
            for turn in range(40):
                with connected(own_sessions, "hostile") as channel:
                    if turn % 4 == 0:
                        notes.send(channel, Note(WATCH, 2**32 - 1, -(2**62), tuple([2**62, -1] * 8)))
                    elif turn % 4 == 1:
                        notes.send(channel, Note(PUBLISH, number=0, fd=channel.fileno()))
                    else:
                        channel.sendall(rng.bytes(int(rng.integers(1, 2000))))
            assert is_whole(session.state_arrays(0))
            assert watched_by(envs) == [0]


def test_invalid_window_is_ignored(own_sessions, tmp_path):
    (tmp_path / "junk").write_bytes(b"junk" * 5000)
    with shoal.make_vec(STATEFUL, 1, session="fooled") as envs, Stepping(envs):
        with shoal.attach("fooled") as session, (tmp_path / "junk").open("rb") as junk:
            assert is_whole(session.state_arrays(0))
            with connected(own_sessions, "fooled") as channel:
                notes.send(channel, Note(PUBLISH, number=0, fd=junk.fileno()))
                notes.receive(channel)
            assert is_whole(session.state_arrays(0))


def test_a_client_that_never_reads_is_dropped(own_sessions):
    with shoal.make_vec(STATEFUL, 1, session="deaf") as envs, Stepping(envs):
        with connected(own_sessions, "deaf") as deaf:
            deaf.settimeout(5)
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                for _ in range(100_000):
                    notes.send(deaf, Note(COUNTERS))
        with shoal.attach("deaf") as session:
            assert session.counters()["steps"] > 0


def test_at_most_32_clients_are_served(own_sessions):
    with shoal.make_vec("CartPole-v1", 1, session="crowd"), contextlib.ExitStack() as stack:
        channels = [stack.enter_context(connected(own_sessions, "crowd")) for _ in range(32)]
        for channel in channels:
            notes.send(channel, Note(COUNTERS))
            assert notes.receive(channel).kind == COUNTERS
        with pytest.raises(SessionError):
            shoal.attach("crowd")
        channels[7].close()
        wait_until(lambda: len(shoal.state.sessions()) == 1, 2)


def test_descriptors_that_clients_send_are_not_kept(own_sessions):
    with shoal.make_vec("CartPole-v1", 1, session="given"):
        before = len(os.listdir("/proc/self/fd"))
        for kind in (COUNTERS, FACTS, PUBLISH):
            with connected(own_sessions, "given") as channel:
                for _ in range(20):
                    notes.send(channel, Note(kind, number=5, fd=0))
                    note = notes.receive(channel)
                    if note.fd >= 0:
                        os.close(note.fd)
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before, 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="machine: not root, to be another user")
def test_another_user_is_refused(own_sessions):
    client = """
import os, socket, sys
os.setuid(65534)
channel = socket.socket(socket.AF_UNIX)
channel.settimeout(5)
try:
    channel.connect(sys.argv[1])
    print("connected", channel.recv(10))
except PermissionError:
    print("not even connected")
"""
    with shoal.make_vec("CartPole-v1", 1, session="private"):
        path = own_sessions / "private"

        def asked():
            return subprocess.run(
                [sys.executable, "-c", client, str(path)], capture_output=True, text=True, check=True, cwd="/"
            ).stdout.strip()

        assert asked() == "not even connected"
        own_sessions.chmod(0o755)
        path.chmod(0o666)
        assert asked() == "connected b''"
        with pytest.raises(SessionError, match="must be a directory of user 0 with mode 0700"):
            shoal.attach("private")
        own_sessions.chmod(0o700)


def test_directory_that_others_can_access_is_not_used(tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o777)
    shared.chmod(0o777)
    monkeypatch.setenv("SHOAL_SESSION_DIR", str(shared))
    with pytest.raises(SessionError, match="mode 0700"):
        shoal.make_vec("CartPole-v1", 1, session="named")
    with pytest.warns(UserWarning, match="this run cannot be watched"):
        envs = shoal.make_vec("CartPole-v1", 1)
    assert envs.session is None
    envs.close()


def test_a_script_that_never_closes_leaves_no_name(own_sessions):
    run = start_run("envs = shoal.make_vec(STATEFUL, 1); envs.reset(seed=0); say(envs.session)")
    assert run.stdout.readline().strip().startswith("Stateful-v0-")
    assert run.wait(20) == 0
    run.stdout.close()
    assert [path for path in own_sessions.iterdir() if "Stateful" in path.name] == []


@pytest.mark.parametrize(
    ("directory", "message"),
    [
        ("/tmp/" + "d" * 99, "too long for a socket"),
        ("/nonexistent/dir", "cannot create /nonexistent/dir for sessions: No such file or directory"),
        ("/etc/passwd", "must be a directory of user"),
    ],
)
def test_a_directory_that_cannot_be_used_is_named(directory, message, monkeypatch):
    monkeypatch.setenv("SHOAL_SESSION_DIR", directory)
    with pytest.raises(SessionError, match=message):
        shoal.make_vec("CartPole-v1", 1, session="x")
    assert not Path("/tmp/" + "d" * 99).exists()


def test_wrong_arguments_are_errors(monkeypatch):
    with shoal.make_vec("CartPole-v1", 2, session="asked"), shoal.attach("asked") as session:
        with pytest.raises(TypeError, match="env_ids must be a list of ints, got int: 3"):
            session.watch(3)
        with pytest.raises(ValueError, match="rate_hz must be a number from 0.1 to 60, got 'x'"):
            session.watch([0], rate_hz="x")
    assert not session.alive
    with pytest.raises(TypeError, match="or None for no session; got False"):
        shoal.make_vec("CartPole-v1", 2, session=False)
    monkeypatch.setenv("SHOAL_SESSIONS", "banana")
    with pytest.raises(ValueError, match="SHOAL_SESSIONS must be on or off, found 'banana'"):
        shoal.make_vec("CartPole-v1", 2)


def test_wrong_field_does_not_hide_the_step():
    with shoal.make_vec(STATEFUL, 1, wrong=6, session="wrong") as envs, Stepping(envs):
        with shoal.attach("wrong") as session:
            wait_until(lambda: session.snapshot(0).tick > 2, 5)
            snapshot = session.snapshot(0)
            assert "unknown role 9" in snapshot.error and snapshot.world == {}
            assert float(snapshot.step["reward"].data) == snapshot.tick
            assert 0 <= snapshot.age_s < 60 and "unknown role 9" in repr(snapshot)


@pytest.mark.parametrize("how", [{"num_workers": 2}, {"num_workers": 2, "batch_size": 2}])
def test_reading_state_during_a_step_is_an_error_that_says_attach(how):
    with ProcessVectorEnv([partial(Pond, tag) for tag in range(4)], session="looked", **how) as envs:
        going, told = True, []

        def look():
            while going:
                with pytest.raises(ShoalError, match=r"use shoal.attach\('looked'\)"):
                    envs.state_arrays(len(told) % 4)
                told.append(True)
                time.sleep(0.001)

        begin, once = envs.reset, lambda: envs.step(np.zeros(4, np.int64))
        if envs.batch_size:
            begin = envs.async_reset

            def once():
                ids = envs.recv()[4]["env_id"]
                envs.send(np.zeros(2, np.int64), ids)

        begin(seed=0)
        once()
        looker = threading.Thread(target=look)
        looker.start()
        with shoal.attach("looked") as session:
            while len(told) < 50:
                once()
            session.watch([0])
            while session.latest(0) is None:
                once()
            assert is_whole(session.state_arrays(0)) and is_whole(envs.state_arrays(0))
        going = False
        looker.join()
        stepper = threading.Thread(target=once)
        stepper.start()
        stepper.join()
        assert is_whole(envs.state_arrays(1))  # who stepped is gone
