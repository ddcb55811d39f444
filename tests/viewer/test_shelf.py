"""Which recordings the viewer keeps, when it asks for them, and how they reach a page."""

import json
import math
import struct

import numpy as np
import pytest

from shoal.errors import SessionError
from shoal.state.recording import Recording
from shoal.viewer import shelf
from shoal.viewer.protocol import recording_message
from shoal.viewer.shelf import Recordings, Shelf
from tests.viewer.fakes import FakeSession, small
from tests.viewer.raw import decode


def episode(value, number=0):
    return Recording(0, number, value, 10, ())


def kept(on):
    return {kind: one.recording.episode_return for kind, one in on.kept.items()}


def test_the_best_the_worst_and_the_newest_are_kept():
    on = Shelf()
    for at, value in enumerate((5.0, 9.0, -3.0, 4.0)):
        on.add(episode(value), 1000.0 + at)
    assert kept(on) == {"best": 9.0, "worst": -3.0, "newest": 4.0} and len(on.times) == 4
    assert on.find(on.kept["worst"].number).recording.episode_return == -3.0
    assert on.find(1) is None and on.find(99) is None  # 5.0 is none of them
    on.add(episode(9.0, number=7), 1010.0)  # of equal ones the newer
    assert on.kept["best"].recording.episode == 7


def test_an_old_best_episode_is_replaced_by_a_newer_one_that_is_worse():
    on = Shelf()
    on.add(episode(100.0), 1000.0)
    on.add(episode(50.0), 1000.0 + shelf.RECENT_S - 1)
    assert kept(on) == {"best": 100.0, "worst": 50.0, "newest": 50.0}
    on.add(episode(60.0), 1000.0 + shelf.RECENT_S)
    assert kept(on) == {"best": 60.0, "worst": 50.0, "newest": 60.0} and len(on.times) == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_returns_that_are_not_finite_do_not_hide_others(value):
    on = Shelf()
    for one in (1.0, value, 2.0, value):
        on.add(episode(one), 1000.0)
    if math.isnan(value):
        assert (kept(on)["best"], kept(on)["worst"]) == (2.0, 1.0)
    else:
        assert sorted((kept(on)["best"], kept(on)["worst"])) == sorted((value, 1.0 if value > 0 else 2.0))


class Scripted:
    """A session that answers as it is told."""

    facts = {"num_worlds": 4}

    def __init__(self):
        self.free, self.answer, self.asked, self.cancelled = True, None, [], 0

    def ask_for_recording(self, env):
        self.asked.append(env)
        return self.free

    def take_recording(self):
        found, self.answer = self.answer, None
        if isinstance(found, Exception):
            raise found
        return found

    def cancel_recording(self):
        self.cancelled += 1


def test_recordings_are_asked_for_one_after_the_other_while_a_page_watches():
    session = Scripted()
    recordings = Recordings(session)
    assert not recordings.advance(False, 10.0) and session.asked == []  # nobody watches
    for now in (11.0, 12.0, 13.0):
        assert not recordings.advance(True, now)
    assert len(session.asked) == 1 and session.asked[0] in range(4)
    session.answer = episode(3.0)
    assert recordings.advance(True, 14.0) and kept(recordings.shelf)["newest"] == 3.0
    assert not recordings.advance(True, 15.0) and len(session.asked) == 1  # it pauses
    assert not recordings.advance(True, 16.1) and len(session.asked) == 2
    assert not recordings.advance(False, 17.0) and session.cancelled == 1  # the last page is gone


def test_why_there_is_no_recording_is_told():
    session = Scripted()
    recordings = Recordings(session)
    session.free = False
    assert recordings.advance(True, 10.0) and "another viewer" in recordings.problem
    assert not recordings.advance(True, 11.0) and len(session.asked) == 1  # not at once again
    session.free = True
    recordings.advance(True, 21.0)
    session.answer = SessionError("the episode is too long to be recorded")
    assert recordings.advance(True, 22.0) and "too long" in recordings.problem
    recordings.advance(True, 33.0)
    assert recordings.advance(True, 94.0) and "no episode" in recordings.problem and session.cancelled == 1
    recordings.advance(True, 95.0)
    session.answer = episode(1.0)
    assert recordings.advance(True, 96.0) and recordings.problem == ""


def read_recording(payload):
    """The message "recording", and its frames as a page reads them."""
    (length,) = struct.unpack_from("<I", payload)
    start = -(-(4 + length) // 8) * 8
    message, schemas = json.loads(payload[4 : 4 + length]), {}
    parts = [payload[start + offset : start + offset + size] for offset, size in message["frames"]]
    assert all(offset % 8 == 0 for offset, _ in message["frames"])
    return message, [decode(part, schemas) for part in parts]


def test_a_recording_reaches_the_page_whole():
    given = Recording(3, 5, float("nan"), 4, tuple(small(3, 5, tick) for tick in range(5)))
    message, frames = read_recording(recording_message(9, given))
    assert (message["number"], message["env"], message["return"], message["length"]) == (9, 3, None, 4)
    assert [one["tick"] for one in frames] == [0, 1, 2, 3, 4] and frames[0]["has_schema"]
    assert not any(one["has_schema"] for one in frames[1:])
    for one, snapshot in zip(frames, given.snapshots, strict=True):
        fish = next(field["data"] for field in one["fields"] if field["name"] == "fish")
        np.testing.assert_array_equal(fish, snapshot.world["fish"].data)


def test_a_page_gets_the_list_and_the_recording_that_it_asks_for(serve):
    with serve(FakeSession()).page() as page:
        page.watch(0)
        listed = page.until("recordings")
        assert listed["count"] == 1 and listed["problem"] == ""
        number = listed["kept"]["best"]["number"]
        assert listed["kept"]["worst"]["length"] == 10
        page.send(json.dumps({"type": "recording", "number": number}))
        found = page.until("recording")
        assert found["number"] == number and len(found["frames"]) == 11
        page.send(json.dumps({"type": "recording", "number": 10**9}))
        assert "recording 1000000000 is no longer kept" in page.until("error")["message"]
        assert page.answers()


def test_a_session_that_nobody_watches_is_not_recorded(serve):
    session = FakeSession()
    with serve(session).page() as page:
        for _ in range(3):
            page.until("counters")
        assert not hasattr(session, "recorded")


@pytest.mark.parametrize(
    "asked",
    [
        {"type": "recording"},
        {"type": "recording", "number": "1"},
        {"type": "recording", "number": True},
        {"type": "recording", "number": 1.0},
        {"type": "recording", "number": None},
        {"type": "recording", "number": [1]},
        {"type": "recording", "number": 1, "path": "/etc/passwd"},
        {"type": "recordings"},
    ],
)
def test_a_request_for_a_recording_that_is_not_well_formed_closes_the_connection(serve, asked):
    running = serve(FakeSession())
    with running.page() as page:
        page.until("hello")
        page.send(json.dumps(asked))
        assert page.closed() == 1008
    with running.page() as page:
        assert page.until("hello")
