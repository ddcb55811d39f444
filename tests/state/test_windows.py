"""Snapshots as bytes: any of them arrives as it was, and bytes that are none are refused."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from shoal.errors import SessionError
from shoal.memory import Layout, Segment
from shoal.state.snapshot import ROLES, Category, Field, Snapshot
from shoal.state.windows import ReadWindow, WriteWindow, decode

KINDS = st.one_of(
    npst.boolean_dtypes(), npst.integer_dtypes(), npst.unsigned_integer_dtypes(), npst.floating_dtypes()
)
ARRAYS = npst.arrays(KINDS, npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
WORDS = st.text(max_size=8)
CATEGORIES = st.builds(Category, st.integers(-(2**63), 2**63 - 1), WORDS, st.just("#a0b0c0"))
FIELDS = st.builds(
    Field,
    name=WORDS,
    data=ARRAYS,
    role=st.sampled_from(ROLES),
    columns=st.lists(WORDS, max_size=3).map(tuple),
    categories=st.lists(CATEGORIES, max_size=3).map(tuple),
    stable=st.booleans(),
)
PARTS = st.lists(FIELDS, max_size=4).map(lambda fields: {field.name: field for field in fields})
STAMPS = st.integers(0, 2**62)
SNAPSHOTS = st.builds(Snapshot, STAMPS, STAMPS, STAMPS, STAMPS, PARTS, PARTS, WORDS)


def same(one: dict[str, Field], other: dict[str, Field]) -> bool:
    return list(one) == list(other) and all(
        one[name].schema == other[name].schema and one[name].data.tobytes() == other[name].data.tobytes()
        for name in one
    )


def content_of(snapshot: Snapshot) -> bytearray:
    window = WriteWindow(snapshot)
    content = window._window.read(0)[2]
    window.close()
    return content


@given(SNAPSHOTS)
def test_a_snapshot_crosses_a_window_unchanged(snapshot):
    window = WriteWindow(snapshot)
    with window.reader() as reader:
        number, found = ReadWindow(os.dup(reader.fileno())).read()
    window.close()
    assert number == 1
    assert (found.env_id, found.episode, found.tick, found.time_ns) == (
        snapshot.env_id, snapshot.episode, snapshot.tick, snapshot.time_ns,
    )  # fmt: skip
    assert same(found.world, snapshot.world) and same(found.step, snapshot.step)
    assert found.error == snapshot.error


@given(st.binary(max_size=300))
def test_any_bytes_are_a_snapshot_or_an_error(content):
    try:
        decode([0] * 5, bytearray(content))
    except SessionError:
        pass


@given(SNAPSHOTS, st.data())
def test_damaged_bytes_are_a_snapshot_or_an_error(snapshot, data):
    content = content_of(snapshot)
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode([0] * 5, content)
    except SessionError:
        pass


def test_snapshot_that_does_not_fit_is_not_written():
    small = Snapshot(0, 0, 0, 1, {"a": Field("a", np.zeros(4))})
    large = Snapshot(0, 0, 0, 2, {"a": Field("a", np.zeros(100_000))})
    window = WriteWindow(small)
    assert not window.write(large)
    with window.reader() as reader:
        assert ReadWindow(os.dup(reader.fileno())).read()[1].time_ns == 1
    window.close()


def test_memory_without_a_window_is_refused():
    with Segment(Layout({"other": (np.uint8, (128,))})) as segment, segment.reader() as reader:
        with pytest.raises(SessionError, match="a window must have a field 'window'"):
            ReadWindow(os.dup(reader.fileno()))
    with Segment(Layout({"window": (np.uint8, (8,))})) as segment, segment.reader() as reader:
        with pytest.raises(SessionError, match="at least 64 bytes"):
            ReadWindow(os.dup(reader.fileno()))
