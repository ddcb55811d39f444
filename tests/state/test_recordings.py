"""Recordings: a whole episode of one environment, on every backend, with an exact return."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

import shoal
from shoal.errors import SessionError
from shoal.memory import Layout, Segment
from shoal.state import publish, recording
from shoal.state.publish import Publisher
from shoal.state.recording import Glance, Recorder, Recording, read_recording, write_recording
from shoal.state.session import watch_fields
from shoal.state.snapshot import Field, Snapshot
from tests.state.worlds import Pond


@contextmanager
def stepping(envs, step=None):
    """Steps in another thread until the block ends."""
    going = True
    zeros = np.zeros(envs.num_envs, np.int64)

    def run():
        while going:
            (step or (lambda: envs.step(zeros)))()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        going = False
        thread.join()


def check_ticks(ticks, last):
    """From tick 0 on, evenly spread, and the last one: a busy machine takes fewer snapshots."""
    stride = ticks[1] - ticks[0]
    assert ticks[0] == 0 and ticks[-1] == last and stride <= 1 + last // 8
    assert ticks[:-1] == list(range(0, last, stride))[: len(ticks) - 1]
    assert last - ticks[-2] <= stride


@pytest.mark.parametrize("options", [{}, {"backend": "process", "num_workers": 2}])
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_a_recording_has_every_step_of_one_episode(options, autoreset):
    with shoal.make_vec("CartPole-v1", 4, autoreset_mode=autoreset, **options) as envs:
        envs.reset(seed=0)
        with stepping(envs), shoal.attach(envs.session) as session:
            found = session.record(3, timeout_s=30)
        assert found.env_id == 3 and found.episode_return == found.length > 5
        # With autoreset in the same step, the environment has begun anew when its last state could be seen.
        ticks = [one.tick for one in found.snapshots]
        check_ticks(ticks, found.length if autoreset == "next_step" else ticks[-1])
        assert ticks[-1] > found.length - 1 - ticks[1]
        assert {one.episode for one in found.snapshots} == {found.episode}
        assert all(one.step["frame"].data.shape == (200, 300, 3) for one in found.snapshots)
        ends = [bool(one.step["terminated"].data) for one in found.snapshots[1:]]
        assert ends == [False] * (len(ends) - 1) + [autoreset == "next_step"]


def test_python_environments_are_recorded():
    with shoal.make_vec(Pond, 4, num_workers=2) as envs:
        envs.reset(seed=0)
        with stepping(envs), shoal.attach(envs.session) as session:
            found = session.record(2, timeout_s=30)
    assert (found.length, found.episode_return) == (50, sum(range(1, 51)))
    check_ticks([int(one.world["tick"].data) for one in found.snapshots], 50)


def test_environments_that_are_sent_and_received_are_recorded():
    with shoal.make_vec("CartPole-v1", 4, batch_size=2) as envs:
        envs.async_reset(seed=0)

        def step():
            ids = envs.recv()[4]["env_id"]
            envs.send(np.zeros(len(ids), np.int64), ids)

        with stepping(envs, step), shoal.attach(envs.session) as session:
            found = session.record(1, timeout_s=30)
    assert found.episode_return == found.length > 5
    check_ticks([one.tick for one in found.snapshots], found.length)


def test_a_long_episode_has_snapshots_that_are_spread_evenly():
    with shoal.make_vec("MountainCar-v0", 2) as envs:
        envs.reset(seed=0)
        with stepping(envs), shoal.attach(envs.session) as session:
            found = session.record(0, timeout_s=30)
    assert (found.length, found.episode_return) == (200, -200)
    ticks = [one.tick for one in found.snapshots]
    assert 10 <= len(ticks) <= recording.MOST_SNAPSHOTS
    check_ticks(ticks, 200)


def test_agents_of_one_environment_have_the_mean_of_their_returns():
    rewards, agents = [], 0
    with shoal.make_vec("Reef-v0", 2) as envs:
        envs.reset(seed=0)
        agents = envs.num_envs // 2
        with shoal.attach(envs.session) as session:
            assert session.ask_for_recording(1)
            while (found := session.take_recording()) is None:
                rewards.append(envs.step(envs.action_space.sample())[1][agents:].mean())
                assert len(rewards) < 10_000
    at = len(rewards) - found.length
    assert any(
        found.episode_return == pytest.approx(sum(rewards[begin : begin + found.length]), abs=1e-9)
        for begin in range(max(0, at - 3), at + 1)  # the note that it is there may come a step later
    )
    assert found.length == found.snapshots[-1].tick > 100 and found.episode_return != 0
    assert found.snapshots[-1].step["reward"].data.shape == (agents,)


# -- one recorder, without a run ----------------------------------------------------------------------


def snapshot_of(tick, episode=4, data=None):
    data = np.arange(3.0) if data is None else data
    return Snapshot(
        7, episode, tick, 1000 + tick, {"w": Field("w", data)}, {"r": Field("r", np.float64(tick))}
    )


def play(recorder, *steps, look=None):
    """Plays (episode, tick, is_over), each with a reward of 1, and returns the recording."""
    for episode, tick, is_over in steps:
        found = recorder.step(
            Glance(episode, tick, 1.0, is_over), look or (lambda env, e=episode, t=tick: snapshot_of(t, e))
        )
        if found is not None:
            return found
    return None


def test_the_end_of_an_episode_that_began_before_is_not_recorded():
    found = play(Recorder(7, 1, 0), (3, 5, False), (3, 6, True), (4, 0, False), (4, 1, False), (4, 2, True))
    assert (found.episode, found.length, found.episode_return) == (4, 2, 2.0)
    assert [one.tick for one in found.snapshots] == [0, 1, 2]


@pytest.mark.parametrize("missed", [[(4, 3, False)], [(5, 0, False), (5, 2, False)]])
def test_an_episode_with_a_missed_step_is_not_recorded(missed):
    recorder = Recorder(7, 1, 0)
    assert play(recorder, (4, 0, False), (4, 1, False), *missed, (5, 9, False)) is None
    found = play(recorder, (6, 0, False), (6, 1, True))
    assert (found.episode, found.length) == (6, 1)


def test_a_reset_by_the_user_begins_the_recording_anew():
    found = play(Recorder(7, 1, 0), (4, 0, False), (4, 1, False), (5, 0, False), (5, 1, False), (5, 2, True))
    assert (found.episode, found.episode_return) == (5, 2.0)


def test_a_step_of_other_environments_counts_nothing():
    found = play(Recorder(7, 1, 0), (4, 0, False), (4, 1, False), (4, 1, False), (4, 2, True))
    assert found.episode_return == 2.0


def test_snapshots_are_bounded_by_number_and_by_bytes():
    steps = [(4, 0, False), *((4, tick, False) for tick in range(1, 5000)), (4, 5000, True)]
    found = play(Recorder(7, 1, 0), *steps)
    ticks = [one.tick for one in found.snapshots]
    assert found.length == 5000 and 30 <= len(ticks) <= recording.MOST_SNAPSHOTS + 1
    assert (ticks[0], ticks[-1]) == (0, 5000)
    large = np.zeros(1 << 20, np.uint8)
    found = play(Recorder(7, 1, 0), *steps[:100], (4, 100, True), look=lambda env: snapshot_of(0, 4, large))
    assert sum(one.world["w"].data.nbytes for one in found.snapshots) <= recording.MOST_BYTES + large.nbytes


def test_later_steps_do_not_change_a_recording():
    live = np.zeros(3)

    def look(env):
        live[:] += 1
        return snapshot_of(0, 4, live)

    found = play(Recorder(7, 1, 0), (4, 0, False), (4, 1, True), look=look)
    assert [one.world["w"].data[0] for one in found.snapshots] == [1, 2]


def test_pictures_are_made_smaller_by_averages():
    picture = np.zeros((401, 1201, 3), np.uint8)
    picture[101] = 200  # a thin line
    picture[300:304, 600:604] = 80

    def look(env):
        return Snapshot(7, 4, 0, 1, {}, {"frame": Field("frame", picture, "image")})

    found = play(Recorder(7, 1, 0), (4, 0, False), (4, 1, True), look=look)
    small = found.snapshots[0].step["frame"].data
    assert small.shape == (100, 300, 3) and (small[25] == 50).all() and (small[75, 150] == 80).all()
    assert small.sum() == 300 * 3 * 50 + 3 * 80


# -- the run's time -----------------------------------------------------------------------------------


class Publishing:
    """A publisher without a host, with a clock that each glance advances."""

    def __init__(self, monkeypatch, glance_ns):
        self.now, self.glance_ns, self.sent = 1_000_000_000, glance_ns, []
        layout = {"session": (np.uint8, (128,)), **watch_fields(1)}
        self.memory = Segment(Layout(layout))
        self.memory["watched"][:, 0] = -1
        self.publisher = Publisher(self.memory, 0, 8)
        clock = type("Clock", (), {"monotonic_ns": staticmethod(lambda: self.now)})
        monkeypatch.setattr(publish, "time", clock)
        monkeypatch.setattr(self.publisher, "_send_recording", lambda _, found: self.sent.append(found))
        self.looked = []

    def ask(self, env, number):
        self.memory["watched"][-1] = env, number

    def step(self, tick, is_over=False):
        self.memory["due"][:] = 0

        def glance(env):
            self.now += self.glance_ns
            return Glance(0, tick, 1.0, is_over)

        def look(env):
            self.looked.append(env)
            return snapshot_of(tick, 0)

        self.publisher(look, glance)
        return bool(self.memory["due"][0, 0])


def test_only_a_recording_makes_every_step_due(monkeypatch):
    run = Publishing(monkeypatch, 1000)
    assert not run.step(0)
    run.ask(99, 1)  # of another process
    assert not run.step(0) and run.looked == []
    run.ask(3, 2)
    assert run.step(0) and run.step(1) and not run.step(2, is_over=True)
    assert [found.length for found in run.sent] == [2]
    run.now += 10_000_000_000
    assert not run.step(0)  # it was answered once


def test_a_request_that_is_taken_back_ends_the_recording(monkeypatch):
    run = Publishing(monkeypatch, 1000)
    run.ask(3, 1)
    assert run.step(0)
    run.ask(-1, 1)
    assert not run.step(1) and run.sent == []


def test_the_next_recording_waits_two_hundred_times_as_long_as_the_last_took(monkeypatch):
    run = Publishing(monkeypatch, 1_000_000)
    run.ask(3, 1)
    run.step(0), run.step(1, is_over=True)
    run.ask(3, 2)
    run.now += 399_000_000
    assert not run.step(0)
    run.now += 2_000_000
    assert run.step(0)


def test_a_recording_that_takes_too_long_is_given_up(monkeypatch):
    run = Publishing(monkeypatch, 1_000_000)
    run.ask(3, 1)
    assert run.step(0)
    ticks = 1
    while run.step(ticks):
        ticks += 1
        assert ticks < 10_000
    assert run.sent == [None] and run.now < 2_000_000_000


def test_a_long_episode_of_a_slow_run_is_not_given_up(monkeypatch):
    """It takes as much of the run's time, but less than a fiftieth of it."""
    run = Publishing(monkeypatch, 1_000_000)
    run.ask(3, 1)
    assert run.step(0)
    for tick in range(1, 1000):
        run.now += 60_000_000
        assert run.step(tick)
    run.step(1000, is_over=True)
    (found,) = run.sent
    assert found.length == 1000 and 4 <= len(found.snapshots) <= recording.MOST_SNAPSHOTS


# -- requests -----------------------------------------------------------------------------------------


def test_one_watcher_at_a_time_records():
    with shoal.make_vec("CartPole-v1", 4) as envs:
        envs.reset(seed=0)
        with shoal.attach(envs.session) as first, shoal.attach(envs.session) as second:
            assert first.ask_for_recording(1)
            assert not second.ask_for_recording(2)
            with pytest.raises(SessionError, match="another watcher records"):
                second.record(2)
            first.cancel_recording()
            with stepping(envs):
                assert second.record(2, timeout_s=30).env_id == 2


def test_a_watcher_that_disconnects_leaves_no_request():
    with shoal.make_vec("CartPole-v1", 4) as envs, shoal.attach(envs.session) as other:
        envs.reset(seed=0)
        session = shoal.attach(envs.session)
        assert session.ask_for_recording(1)
        session.close()
        deadline = time.monotonic() + 10
        while not other.ask_for_recording(2):
            assert time.monotonic() < deadline


def test_a_recording_of_an_environment_that_is_not_stepped_times_out():
    with shoal.make_vec("CartPole-v1", 4) as envs:
        envs.reset(seed=0)
        with shoal.attach(envs.session) as session:
            with pytest.raises(TimeoutError, match="environment 1 .* began and ended within 0.1 s"):
                session.record(1, timeout_s=0.1)
            with pytest.raises(IndexError):
                session.record(4)
            assert session.take_recording() is None


def test_a_run_without_a_request_has_nothing_due():
    with shoal.make_vec("CartPole-v1", 4) as envs:
        envs.reset(seed=0)
        with stepping(envs), shoal.attach(envs.session) as session:
            session.record(0, timeout_s=30)
        for _ in range(5):
            envs.step(np.zeros(4, np.int64))
        assert envs._hosted is not None
        time.sleep(0.4)
        assert not session_memory(envs)["due"][:, 0].any()


def session_memory(envs):
    return envs._backend.session_sources()[0]


# -- damaged memory -----------------------------------------------------------------------------------


def example():
    picture = Field("frame", np.arange(48, dtype=np.uint8).reshape(4, 4, 3), "image")
    snapshots = [replace(snapshot_of(tick), step={"frame": picture}) for tick in range(3)]
    return Recording(7, 4, 2.5, 2, (*snapshots, snapshot_of(3)))  # the last has another schema


def read(data):
    """Reads a recording that has these bytes."""
    with Segment.published(Layout({"recording": (np.uint8, (len(data),))})) as segment:
        segment["recording"][:] = np.frombuffer(data, np.uint8)
        with segment.reader() as reader:
            return read_recording(os.dup(reader.fileno()))


def test_a_recording_is_read_as_it_was_written():
    with write_recording(example()) as segment, segment.reader() as reader:
        found = read_recording(os.dup(reader.fileno()))
    assert replace(found, snapshots=()) == replace(example(), snapshots=())
    for one, other in zip(found.snapshots, example().snapshots, strict=True):
        assert (one.tick, one.episode, one.time_ns, one.error) == (other.tick, 4, other.time_ns, "")
        for name, field in (other.world | other.step).items():
            assert np.array_equal((one.world | one.step)[name].data, field.data)


def test_bytes_that_are_no_recording_are_refused():
    with write_recording(example()) as segment:
        data = segment["recording"].tobytes()
    for damaged in (data[:20], data[:-40], b"no", b"X" + data[1:], data.replace(b'"return"', b'"nuturn"')):
        with pytest.raises(SessionError, match="recording cannot be read"):
            read(damaged)
    rng = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), 4):
            damaged[at] = rng.integers(0, 256)
        try:
            read(bytes(damaged))
        except SessionError:
            pass
