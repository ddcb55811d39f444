"""The messages that a page gets, decoded by an independent client."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from shoal.errors import SessionError
from shoal.viewer.client import Client
from shoal.viewer.protocol import World, frame
from tests.viewer.fakes import FakeSession, plain, reef, small
from tests.viewer.raw import Closed, decode


def wait_for(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def test_hello_comes_first_with_the_facts_and_the_names(serve):
    session = FakeSession(strange=float("nan"), numbers=(np.int64(3), np.float32("inf")))
    with serve(session, sessions=lambda: ["reef-1", "other"]).page() as page:
        hello = page.message()
    assert hello["type"] == "hello" and hello["sessions"] == ["reef-1", "other"]
    assert hello["facts"]["env"] == "Reef-v0" and hello["facts"]["num_worlds"] == 32
    assert hello["facts"]["strange"] is None and hello["facts"]["numbers"] == [3, None]


def test_counters_report_the_change_since_the_last_message(serve):
    session = FakeSession()
    with serve(session).page() as page:
        first = page.until("counters")
        assert set(first) == {
            "type",
            "time",
            "steps",
            "episodes",
            "ended",
            "steps_per_s",
            "mean_return",
            "mean_length",
            "run",
        }
        assert (first["run"], first["steps_per_s"]) == ("idle", 0)
        assert first["mean_return"] is None and first["mean_length"] is None
        session.step(100)
        session.finish(10.0, 5)
        session.finish(20.0, 8)
        second = page.until("counters")
        assert (second["steps"], second["episodes"], second["run"]) == (3200, 2, "stepping")
        assert (second["mean_return"], second["mean_length"]) == (15.0, 6.5)
        took = second["time"] - first["time"]
        assert second["steps_per_s"] == pytest.approx(3200 / took, rel=1e-6)
        session.finish(float("nan"), 1)
        assert page.until("counters")["mean_return"] is None
        start = time.monotonic()
        page.until("counters"), page.until("counters")
        assert 0.7 < time.monotonic() - start < 1.6  # twice a second


def test_a_frame_is_the_whole_snapshot(serve):
    session = FakeSession(reef)
    with serve(session).page() as page:
        page.watch(3)
        told = page.until("frame")
        expected = reef(3, 0, 0)
        assert [told[key] for key in ("env", "episode", "tick", "number", "error")] == [3, 0, 0, 1, ""]
        assert abs(told["time"] - time.monotonic()) < 10
        fields = [("world", field) for field in expected.world.values()]
        fields += [("step", field) for field in expected.step.values()]
        assert [(one["part"], one["name"]) for one in told["fields"]] == [
            (part, f.name) for part, f in fields
        ]
        for one, (_, field) in zip(told["fields"], fields, strict=True):
            assert {key: one[key] for key in field.schema} == field.schema
            assert one["data"].dtype == field.data.dtype
            np.testing.assert_array_equal(one["data"], field.data)


def test_unchanged_fields_are_not_sent_again(serve):
    session = FakeSession(reef)
    with serve(session).page() as page:
        page.watch(3)
        page.until("frame")
        session.step()
        told = page.until("frame")
        same = {one["name"] for one in told["fields"] if "data" not in one}
        assert same == {"tiles", "gaps", "odd"}  # NaN is like NaN
        fish = next(one["data"] for one in told["fields"] if one["name"] == "fish")
        np.testing.assert_array_equal(fish, reef(3, 0, 1).world["fish"].data)


def test_a_second_page_gets_whole_frames(serve):
    session = FakeSession()
    running = serve(session)
    with running.page() as page:
        page.watch(3)
        page.until("frame")
        session.step()
        page.until("frame")
        with running.page() as other:
            other.watch(3)
            assert all("data" in one for one in other.until("frame")["fields"])


def test_an_environment_watched_again_comes_whole(serve):
    running = serve()
    with running.page() as page, running.page() as other:
        other.watch(3)  # so the server knows it all the time
        page.watch(3)
        page.until("frame")
        page.watch()
        page.watch(3)
        assert all("data" in one for one in page.until("frame")["fields"])


def test_a_plain_environment_has_step_fields_and_an_error(serve):
    with serve(FakeSession(plain)).page() as page:
        page.watch(0)
        told = page.until("frame")
        assert told["error"] == "export_state() is not there"
        assert {one["part"] for one in told["fields"]} == {"step"}
        picture = next(one for one in told["fields"] if one["name"] == "frame")
        assert picture["role"] == "image" and picture["data"].shape == (20, 30, 3)


def worlds(*snapshots):
    last = None
    for stamp, snapshot in enumerate(snapshots, 1):
        last = World.after(last, stamp, stamp, snapshot)
        yield last


def test_a_field_whose_description_changed_is_sent_even_with_equal_bytes():
    first, second = small(0, 0, 0), small(0, 0, 0)
    odd = second.world["odd"]
    second.world["odd"] = type(odd)("odd", odd.data.reshape(3, 1))
    second.world["gaps"] = type(odd)("gaps", second.world["gaps"].data, "scalar")
    before, after = worlds(first, second)
    changed = {name for (_, name), stamp in after.since.items() if stamp == 2}
    assert changed == {"odd", "gaps"}
    message = decode(frame(after, before.since, before.schema), {})
    assert {one["name"] for one in message["fields"] if "data" in one} == {"odd", "gaps"}


def test_a_field_that_was_removed_and_added_is_sent_again():
    first, second, third = small(0, 0, 0), small(0, 0, 0), small(0, 0, 0)
    del second.world["tiles"]
    before, without, again = worlds(first, second, third)
    assert b"tiles" not in frame(without, before.since, before.schema)
    assert again.since["world", "tiles"] == 3
    assert again.since["world", "odd"] == 1


def test_arrays_that_are_not_contiguous_are_sent_contiguous():
    snapshot = small(0, 0, 0)
    kind = type(snapshot.world["odd"])
    snapshot.world["turned"] = kind("turned", np.arange(6, dtype=np.int32).reshape(2, 3).T)
    snapshot.world["none"] = kind("none", np.zeros((0, 4), np.float32))
    (world,) = worlds(snapshot)
    assert world.raw["world", "turned"].view(np.int32).tolist() == [0, 3, 1, 4, 2, 5]
    assert world.raw["world", "none"].nbytes == 0
    assert frame(world, {}, 0)


# -- wishes ------------------------------------------------------------------------------------------


def test_an_invalid_watch_request_gets_an_error_and_changes_nothing(serve):
    session = FakeSession()
    with serve(session).page() as page:
        page.watch(1, 2)
        page.until("frame")
        page.watch(32)
        assert page.until("error")["message"] == "no environment 32: this run has 32, counted from 0"
        page.watch(-1)
        assert "no environment -1" in page.until("error")["message"]
        page.watch(*range(17))
        assert "at most 16" in page.until("error")["message"]
        for rate in (0, -1, 1e-300, 61, 1e300):
            page.watch(0, rate=rate)
            assert "from 0.1 to 60" in page.until("error")["message"]
        page.send('{"type": "watch", "envs": [0], "rate": NaN}')
        assert "from 0.1" in page.until("error")["message"]
        assert session.watched == [1, 2]


def test_the_session_watches_for_all_pages_together(serve):
    session = FakeSession()
    running = serve(session)
    with running.page() as one:
        one.watch(5, 3, 3, rate=5)
        with running.page() as two:
            two.watch(3, 9, rate=30)
            wait_for(lambda: (session.watched, session.rate_hz) == ([3, 5, 9], 30))
            assert {one.until("frame")["env"] for _ in range(2)} == {3, 5}
            assert {two.until("frame")["env"] for _ in range(2)} == {3, 9}
        wait_for(lambda: (session.watched, session.rate_hz) == ([3, 5], 5))
    wait_for(lambda: session.watched == [] and running.server._feed.worlds == {})


def test_the_newest_watch_request_has_priority_and_others_get_an_error(serve):
    session = FakeSession()
    running = serve(session)
    with running.page() as one, running.page() as two:
        one.watch(*range(10))
        wait_for(lambda: len(session.watched) == 10)
        two.watch(*range(8, 20))
        lost = one.until("error")["message"]
        assert lost.startswith("not watched: 4, 5, 6, 7; another page watches others")
        wait_for(lambda: session.watched == [0, 1, 2, 3, *range(8, 20)])
        session.step()
        assert {two.until("frame", lambda told: told["tick"] == 1)["env"] for _ in range(12)} == set(
            range(8, 20)
        )


def test_a_page_gets_no_more_frames_than_its_rate(serve):
    session = FakeSession(auto=True)
    running = serve(session)
    with running.page() as slow, running.page() as fast:
        fast.watch(0, rate=60)
        slow.watch(0, rate=4)
        start = time.monotonic()
        ticks = [slow.until("frame")["tick"] for _ in range(4)]
        took = time.monotonic() - start
        assert took > 0.7 and ticks == sorted(ticks)


def test_the_last_step_before_a_pause_is_shown_at_any_rate(serve):
    session = FakeSession()
    with serve(session).page() as page:
        page.watch(0, rate=3)
        page.until("frame")
        session.step()
        assert page.until("frame")["tick"] == 1


def test_environments_take_turns_when_a_page_takes_one_frame_at_a_time():
    feed = SimpleNamespace(run=(1, {}), worlds={}, counters=None, history=None, recorded=None, error=(0, ""))
    client = Client(None, feed, list, 1.0)
    client.watch([0, 1, 2], 60)
    assert decode(client._next(0.0)[0], {})["type"] == "hello"
    sent = []
    for turn in range(6):
        feed.worlds = {
            env: World.after(None, 10 * turn + env + 1, turn, small(env, 0, turn)) for env in range(3)
        }
        sent.append(decode(client._next(float(turn))[0], {})["env"])
    assert sent == [0, 1, 2, 0, 1, 2]


def test_a_watch_request_that_the_run_rejects_is_reported_once_and_retried(serve):
    class Full(FakeSession):
        full, asked = True, 0

        def watch(self, env_ids, rate_hz=20):
            super().watch(env_ids, rate_hz)
            if self.full and env_ids:
                self.asked += 1
                self.watched = []
                raise SessionError("of 1 environments 0 can be watched")

    session = Full()
    with serve(session).page() as page:
        page.watch(4)
        assert page.until("error")["message"] == "of 1 environments 0 can be watched"
        kinds = {page.message()["type"] for _ in range(3)}
        assert kinds <= {"counters", "recordings"} and session.asked > 1
        session.full = False
        assert page.until("frame")["env"] == 4


# -- the end -----------------------------------------------------------------------------------------


def test_the_end_of_the_run_is_reported_and_the_last_frames_stay(serve):
    session = FakeSession()
    running = serve(session)
    with running.page() as page:
        page.watch(0)
        page.until("frame")
        session.step(7)
        session.end()
        assert page.until("frame")["tick"] == 7
        told = page.until("counters", lambda told: told["run"] == "ended")
        assert told["steps_per_s"] == 0 and told["mean_return"] is None
        assert page.until("counters")["run"] == "ended"  # again and again
    with running.page() as late:
        assert late.message()["type"] == "hello"
        assert late.until("counters")["run"] == "ended"
        late.watch(0, 1)
        assert late.until("frame")["tick"] == 7
    assert running.get("/")[0] == 200


def test_after_the_end_frames_watched_by_other_pages_are_available(serve):
    session = FakeSession()
    running = serve(session)
    with running.page() as page:
        page.watch(5)
        page.until("frame")
    wait_for(lambda: session.watched == [])
    session.end()
    with running.page() as late:
        late.until("counters", lambda told: told["run"] == "ended")
        late.watch(4, 5)
        seen = [late.message() for _ in range(4)]
    assert [one["env"] for one in seen if one["type"] == "frame"] == [5]
    assert {one["type"] for one in seen} == {"frame", "counters"}


def test_frames_kept_after_the_end_are_limited(serve):
    session = FakeSession(num_worlds=64)
    running = serve(session)
    with running.page() as page:
        for first in range(0, 64, 16):
            page.watch(*range(first, first + 16))
            for _ in range(16):
                page.until("frame", lambda told, first=first: told["env"] >= first)
    wait_for(lambda: session.watched == [])
    session.end()
    wait_for(lambda: running.server._feed.ended)
    assert sorted(running.server._feed.worlds) == list(range(48, 64))


# -- another run of the same name --------------------------------------------------------------------


def test_another_run_of_the_name_is_shown_after_a_new_hello(serve):
    old, told = FakeSession(num_worlds=32, started=1.0), []
    names = {"reef-1": old}
    running = serve(
        old, reattach=lambda: attach(names), on_change=lambda facts, alive: told.append((facts, alive))
    )
    with running.page() as page:
        page.watch(0, 9)
        page.until("frame")
        old.end()
        page.until("counters", lambda one: one["run"] == "ended")
        del names["reef-1"]
        new = names["reef-1"] = FakeSession(num_worlds=4, started=2.0)
        new.step(3)
        hello = page.until("hello")
        assert (hello["facts"]["started"], hello["facts"]["num_worlds"]) == (2.0, 4)
        frame = page.until("frame")
        assert (frame["env"], frame["tick"]) == (0, 3) and all("data" in one for one in frame["fields"])
        new.step()
        counters = page.until("counters")
        assert counters["run"] == "stepping" and counters["steps"] == 16
        page.watch(9)
        assert page.until("error")["message"].startswith("no environment 9: this run has 4")
    assert told == [(old.facts, False), (new.facts, True)] and old.closed and not new.closed
    with running.page() as late:
        assert late.message()["facts"]["started"] == 2.0


def test_the_ended_run_is_not_taken_for_a_new_one(serve):
    """Its name may answer for a moment after its end."""
    session = FakeSession()
    asked = []

    def again():
        asked.append(FakeSession(started=session.facts["started"]))
        return asked[-1]

    running = serve(session, reattach=again)
    with running.page() as page:
        page.message()
        session.end()
        wait_for(lambda: len(asked) == 2)
        assert page.until("counters", lambda one: one["run"] == "ended") and asked[0].closed
        assert running.server._feed.run[0] == 1


def attach(names):
    if "reef-1" not in names or not names["reef-1"].alive:
        raise SessionError("no session is called 'reef-1'")
    return names["reef-1"]


def test_a_run_that_ends_between_two_requests_is_reported_as_ended(serve):
    class Sudden(FakeSession):
        asked = 0

        def counters(self):
            self.asked += 1
            if self.asked == 2:
                self.end()
            return super().counters()

    with serve(Sudden()).page() as page:
        assert page.until("counters")["run"] == "ended"


def test_a_run_that_is_alive_but_does_not_answer_is_idle(serve):
    class Silent(FakeSession):
        silent = False

        def counters(self):
            if self.silent:
                raise SessionError("did not answer within 2 s")
            return super().counters()

    session = Silent()
    with serve(session).page() as page:
        session.step()
        assert page.until("counters")["run"] == "stepping"
        session.silent = True
        assert page.until("counters", lambda told: told["run"] == "idle")["steps"] == 32
        session.silent = False
        session.step()
        assert page.until("counters")["steps"] == 64


def test_a_run_that_does_not_answer_does_not_block_pages(serve):
    import threading

    let_go = threading.Event()

    class Stopped(FakeSession):
        def counters(self):
            let_go.wait(10)
            return super().counters()

    running = serve(Stopped())
    assert running.get("/")[0] == 200
    with running.page() as page:
        assert page.message()["type"] == "hello"
        running.stop()  # though its thread still waits
        assert page.closed() == 1001
    let_go.set()


def test_a_stopping_server_sends_every_page_a_close_frame(serve):
    running = serve()
    with running.page() as page:
        page.until("counters")
        running.stop()
        with pytest.raises(Closed) as end:
            while True:
                page.frame()
        assert end.value.args == (1001,)
