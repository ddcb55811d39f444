"""Schemas on their way to pages: a page is sent one with the first frame that needs it, and not again."""

from types import SimpleNamespace

import numpy as np
import pytest

from shoal.state.snapshot import Field, Snapshot
from shoal.viewer import protocol
from shoal.viewer.client import Client
from shoal.viewer.protocol import World
from tests.viewer.fakes import FakeSession, small
from tests.viewer.raw import decode


def growing(env_id, episode, tick):
    """The array "things" has another length in every step; "ground" is always the same."""
    world = {
        "ground": Field("ground", np.zeros((4, 4), np.int8), "grid", stable=True),
        "things": Field("things", np.full((tick + 1, 2), tick, np.float32), columns=("x", "y")),
    }
    return Snapshot(env_id, episode, tick, tick + 1, world, {"reward": Field("reward", np.array(1.0))})


def renamed(env_id, episode, tick):
    """The name of its only field is another in every step; the data has the same length."""
    name = f"field {tick}"
    return Snapshot(env_id, episode, tick, tick + 1, {name: Field(name, np.array([tick]))})


class Reader:
    """A client without a connection, and what it has sent, read as a page reads it."""

    def __init__(self):
        self.feed = SimpleNamespace(
            run=(1, {}), worlds={}, counters=None, history=None, recorded=None, error=(0, "")
        )
        self.client = Client(None, self.feed, list, 1.0)
        self.client.watch([0], 60)
        self.schemas, self.stamp = {}, 0
        assert self.read()["type"] == "hello"

    def show(self, snapshot):
        self.stamp += 1
        self.feed.worlds[0] = World.after(self.feed.worlds.get(0), self.stamp, self.stamp, snapshot)

    def read(self):
        return decode(self.client._next(float(self.stamp))[0], self.schemas)


def test_a_page_is_sent_a_schema_once_while_only_data_changes(serve):
    session = FakeSession()
    with serve(session).page() as page:
        page.watch(3)
        first = page.until("frame")
        assert first["has_schema"]
        for _ in range(5):
            session.step()
            told = page.until("frame")
            assert not told["has_schema"] and told["schema"] == first["schema"]
            fish = next(one["data"] for one in told["fields"] if one["name"] == "fish")
            np.testing.assert_array_equal(fish, small(3, 0, told["tick"]).world["fish"].data)


def test_each_page_and_each_environment_gets_its_schema_with_the_first_frame(serve):
    session = FakeSession()
    running = serve(session)
    with running.page() as page, running.page() as late:
        page.watch(3)
        page.until("frame")
        session.step()
        page.until("frame")
        late.watch(3, 4)
        for env in (3, 4):
            assert late.until("frame", lambda told, env=env: told["env"] == env)["has_schema"]


def test_an_environment_watched_again_comes_with_its_schema(serve):
    running = serve()
    with running.page() as page, running.page() as other:
        other.watch(3)  # so the server knows it all the time
        page.watch(3)
        page.until("frame")
        page.watch()
        page.watch(3)
        assert page.until("frame")["has_schema"]


def test_a_schema_is_serialised_once_for_all_pages(monkeypatch):
    calls = []
    to_json = protocol.to_json
    monkeypatch.setattr(protocol, "to_json", lambda *given: calls.append(1) or to_json(*given))
    last = None
    for stamp in range(1, 10):
        last = World.after(last, stamp, stamp, small(0, 0, stamp))
        for known in ({}, last.since):
            protocol.frame(last, known, 0)
    assert len(calls) == 1
    World.after(last, 10, 10, growing(0, 0, 10))
    assert len(calls) == 2


@pytest.mark.parametrize("missed", [0, 1, 2, 5])
def test_a_page_that_missed_schemas_gets_the_schema_of_its_next_frame(missed):
    reader, tick = Reader(), 0
    for _ in range(4):
        for _ in range(missed + 1):
            tick += 1
            reader.show(renamed(0, 0, tick))
        (field,) = reader.read()["fields"]
        assert field["name"] == f"field {tick}" and field["data"].tolist() == [tick]


def test_a_page_that_missed_a_temporary_schema_gets_the_changed_fields():
    reader = Reader()
    reader.show(small(0, 0, 1))
    names = [one["name"] for one in reader.read()["fields"]]
    reader.show(renamed(0, 0, 2))
    reader.show(small(0, 0, 3))
    told = reader.read()
    assert [one["name"] for one in told["fields"]] == names and all("data" in one for one in told["fields"])


def test_a_field_whose_shape_changes_comes_with_its_schema_and_unchanged_fields_are_not_sent():
    reader = Reader()
    reader.show(growing(0, 0, 0))
    reader.read()
    for tick in range(1, 6):
        reader.show(growing(0, 0, tick))
        told = reader.read()
        fields = {one["name"]: one for one in told["fields"]}
        assert told["has_schema"] and fields["things"]["shape"] == [tick + 1, 2]
        np.testing.assert_array_equal(fields["things"]["data"], np.full((tick + 1, 2), tick, np.float32))
        assert "data" not in fields["ground"] and "data" not in fields["reward"]


def test_another_order_of_fields_is_another_schema():
    reader = Reader()
    snapshot = growing(0, 0, 1)
    reader.show(snapshot)
    reader.read()
    turned = dict(reversed(snapshot.world.items()))
    reader.show(Snapshot(0, 0, 2, 3, turned, snapshot.step))
    told = reader.read()
    assert told["has_schema"] and [one["name"] for one in told["fields"]] == ["things", "ground", "reward"]
    assert told["changed"] == []
