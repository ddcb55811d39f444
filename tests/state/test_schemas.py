"""Schemas in windows: serialised when they change, parsed when they differ, never torn from the data."""

import json
import os
import sys
import threading
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

import shoal
from shoal.errors import SessionError
from shoal.state import windows
from shoal.state.schema import Schema
from shoal.state.snapshot import Category, Field, Snapshot
from shoal.state.windows import ReadWindow, WriteWindow, decode
from shoal.vector import ProcessVectorEnv
from tests.crash.fragile import wait_until
from tests.state.test_sessions import Stepping

GRID = Field("grid", np.arange(6, dtype=np.int8).reshape(2, 3), "grid", (), (Category(1, "reed", "#208040"),))
FISH = Field("fish", np.zeros((2, 2), np.float32), "entities", ("r", "c"))
REWARD = Field("reward", np.float64(1.5).reshape(()))


def pond(tick=0, grid=GRID, fish=FISH, error=""):
    return Snapshot(3, 0, tick, tick + 1, {"grid": grid, "fish": fish}, {"reward": REWARD}, error)


@pytest.fixture
def counted(monkeypatch):
    """How often a schema was serialised and parsed."""
    counts = {"serialised": 0, "parsed": 0}
    to_json, parse = windows.to_json, Schema.parse

    def count(what, call, *arguments):
        counts[what] += 1
        return call(*arguments)

    monkeypatch.setattr(windows, "to_json", lambda *arguments: count("serialised", to_json, *arguments))
    monkeypatch.setattr(Schema, "parse", lambda *arguments: count("parsed", parse, *arguments))
    return counts


@pytest.fixture
def window():
    opened = WriteWindow(pond())
    yield opened
    opened.close()


def reader_of(window):
    with window.reader() as reader:
        return ReadWindow(os.dup(reader.fileno()))


CHANGES = {
    "name": {"fish": replace(FISH, name="eel")},
    "dtype": {"grid": replace(GRID, data=GRID.data.view(np.uint8))},
    "shape": {"grid": replace(GRID, data=GRID.data.reshape(3, 2))},
    "role": {"fish": replace(FISH, role="")},
    "columns": {"fish": replace(FISH, columns=("y", "x"))},
    "categories": {"grid": replace(GRID, categories=(Category(1, "reed", "#ff8040"),))},
    "stable": {"grid": replace(GRID, stable=True)},
    "order": {"grid": FISH, "fish": GRID},
}


def test_a_schema_is_serialised_and_parsed_once_while_only_data_changes(counted, window):
    reader = reader_of(window)
    for tick in range(1, 20):
        data = np.full((2, 3), tick, np.int8)
        assert window.write(pond(tick, replace(GRID, data=data), error="late" * (tick % 3)))
        snapshot = reader.read()[1]
        assert snapshot.world["grid"].data.tolist() == data.tolist()
        assert (snapshot.tick, snapshot.error) == (tick, "late" * (tick % 3))
    assert counted == {"serialised": 1, "parsed": 1}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_schema_that_changes_is_serialised_and_parsed_once_more(counted, window, change):
    reader, changed = reader_of(window), pond(1, **change)
    reader.read()
    for wanted, snapshot in enumerate((changed, changed, pond(2)), 2):
        assert window.write(snapshot)
        number, found = reader.read()
        assert number == wanted  # schema and data are one write
        fields = {field.name: field for field in snapshot.world.values()}
        assert list(found.world) == list(fields)
        for name, field in fields.items():
            assert found.world[name].schema == field.schema
            assert found.world[name].data.tolist() == field.data.tolist()
    assert counted == {"serialised": 3, "parsed": 3}


def test_a_reader_that_attaches_late_gets_the_schema_with_its_first_snapshot(window):
    for tick in range(1, 5):
        window.write(pond(tick))
    assert reader_of(window).read()[1].world["grid"].schema == GRID.schema


def test_a_reader_that_misses_generations_never_uses_a_schema_it_holds(window):
    """Each of these snapshots can be decoded with the schema of any other, to wrong values."""
    kinds = [np.float32, np.int32, np.uint32]
    reader, rare_reader = reader_of(window), reader_of(window)
    for turn in range(12):
        for tick in range(turn % 5 + 1):
            kind = kinds[(turn + tick) % 3]
            window.write(pond(tick, fish=Field(f"fish {tick}", np.full((2, 2), turn + 1, kind))))
        for one in (reader, rare_reader) if turn % 4 == 0 else (reader,):
            field = list(one.read()[1].world.values())[1]
            assert field.name == f"fish {tick}" and field.data.dtype == kind
            assert (field.data == turn + 1).all()


def test_a_snapshot_that_does_not_fit_leaves_schema_and_data_as_they_were(window):
    reader = reader_of(window)
    other = replace(FISH, name="eel")
    for snapshot in (pond(1, fish=Field("fish", np.zeros(100_000))), pond(1, fish=other, error="x" * 99_999)):
        assert not window.write(snapshot)
        assert reader.read()[1].world["fish"].schema == FISH.schema
    assert window.write(pond(2, fish=other))
    assert "eel" in reader.read()[1].world


def test_a_read_while_schemas_change_is_never_torn():
    """Name, dtype, shape and every value of a snapshot follow from its tick."""
    kinds = [np.dtype(kind) for kind in ("<f4", "<i4", "<f8", "|i1")]

    def field_of(tick):
        values = np.full((tick % 50, 3), tick % 100, kinds[tick % 4])
        return Field("x" * (1 + tick % 40), values, columns=(str(tick), "b", "c"))

    window = WriteWindow(pond(0, fish=Field("room", np.zeros(4000))))
    window.write(pond(0, fish=field_of(0)))
    reader, reads, torn = reader_of(window), 0, []

    def read():
        nonlocal reads
        while not stop.is_set() and not torn:
            number, snapshot = reader.read()
            found, wanted = list(snapshot.world.values())[1], field_of(snapshot.tick)
            if found.schema != wanted.schema or found.data.tobytes() != wanted.data.tobytes():
                torn.append((number, snapshot))
            reads += 1

    stop, interval = threading.Event(), sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # so that the threads take turns often
    thread = threading.Thread(target=read)
    thread.start()
    tick = 0
    while (tick < 4000 or reads < 200) and not torn:
        tick += 1
        assert window.write(pond(tick, fish=field_of(tick)))
        window.write(pond(tick, fish=field_of(tick)))
    stop.set()
    thread.join()
    sys.setswitchinterval(interval)
    window.close()
    assert not torn and reads >= 200


def test_window_of_a_version_without_generations_is_an_error():
    """Its generation is always 0, so a schema of it must never be held."""
    head = json.dumps({"fields": [], "error": ""}).encode()
    with pytest.raises(SessionError, match="may use another version of Shoal"):
        decode([0] * 5, bytearray(len(head).to_bytes(8, "little") + head + bytes(64)))


class Growing(gymnasium.Env):
    """Its exported array has another length in every step, and outgrows its window again and again."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    tick = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.tick += 1
        return np.zeros(1, np.float32), float(self.tick), False, False, {}

    def export_state(self):
        kind = (np.int32, np.float32)[self.tick % 2]
        return {"things": np.full(self.tick * 20 % 30_000, self.tick, kind), "tick": self.tick}


def test_a_field_whose_shape_changes_in_every_step_is_seen_with_its_own_shape():
    with ProcessVectorEnv([Growing], session="growing") as envs, Stepping(envs):
        with shoal.attach("growing") as session:
            session.watch([0], rate_hz=60)
            seen, opened = set(), set()

            def look():
                found = session.latest(0)
                if found is not None:
                    world = found[1].world
                    tick, things = int(world["tick"].data), world["things"].data
                    assert things.dtype == (np.int32, np.float32)[tick % 2]
                    assert things.shape == (tick * 20 % 30_000,) and (things == tick).all()
                    seen.add(tick)
                    opened.add(id(session._windows[0]))
                return len(seen) > 30 and len(opened) > 1

            wait_until(look, 20)
