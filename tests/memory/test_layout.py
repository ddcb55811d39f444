"""Layouts: where fields lie, when two layouts are one, and what is refused with which words."""

from __future__ import annotations

import json
import pickle
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import LayoutError
from shoal.memory import ArrayField, Layout
from shoal.memory.layout import ALIGNMENT

DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]

field_names = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=20)
specs = st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 40), max_size=4).map(tuple))
field_maps = st.dictionaries(field_names, specs, max_size=6)


# -- where fields lie -------------------------------------------------------------------------------


@given(field_maps)
def test_every_field_is_on_its_own_cache_lines_in_the_order_given(fields):
    layout = Layout(fields)
    assert list(layout) == list(fields)
    end = 0
    for field in layout.values():
        assert field.offset % ALIGNMENT == 0
        assert field.offset >= end
        end = -(-(field.offset + field.size_bytes) // ALIGNMENT) * ALIGNMENT
    assert layout.size_bytes == end


@given(field_maps)
def test_a_field_has_the_dtype_and_shape_it_was_given(fields):
    for name, field in Layout(fields).items():
        dtype, shape = fields[name]
        assert field == ArrayField(name, np.dtype(dtype), shape, field.offset)
        assert field.size_bytes == np.zeros(shape, dtype).nbytes


def test_no_padding_beyond_the_cache_line_is_added():
    layout = Layout({"a": ("u1", (64,)), "b": ("u1", (65,)), "c": ("u1", ())})
    assert [field.offset for field in layout.values()] == [0, 64, 192]
    assert layout.size_bytes == 256


def test_a_layout_is_a_mapping_of_its_fields():
    layout = Layout({"a": ("f4", (2,)), "b": ("i8", ())})
    assert len(layout) == 2 and "a" in layout and "c" not in layout
    with pytest.raises(KeyError):
        layout["c"]


def test_numpy_integers_are_sizes_and_become_plain_ints():
    shape = Layout({"a": ("f4", np.array([2, 3]))})["a"].shape
    assert shape == (2, 3) and {type(size) for size in shape} == {int}


# -- when two layouts are one -----------------------------------------------------------------------


def _identity(fields):
    return [(name, np.dtype(dtype).str, tuple(shape)) for name, (dtype, shape) in fields.items()]


@given(field_maps, field_maps)
def test_layouts_are_equal_exactly_if_names_dtypes_shapes_and_order_are(first, second):
    same = _identity(first) == _identity(second)
    assert (Layout(first).digest == Layout(second).digest) == same
    assert (Layout(first) == Layout(second)) == same


@given(field_maps.filter(len), st.data())
def test_any_one_change_gives_another_digest(fields, data):
    name = data.draw(st.sampled_from(list(fields)))
    dtype, shape = fields[name]
    changed = dict(fields)
    kind = data.draw(st.sampled_from(["dtype", "shape", "ndim", "name"]))
    if kind == "dtype":
        changed[name] = (data.draw(st.sampled_from([d for d in DTYPES if d != dtype])), shape)
    elif kind == "ndim":
        changed[name] = (dtype, (*shape, 1))
    elif kind == "shape":
        changed[name] = (dtype, (*shape[:-1], shape[-1] + 1) if shape else (2,))
    else:
        changed = {key + "x" if key == name else key: spec for key, spec in fields.items()}
    if _identity(changed) != _identity(fields):
        assert Layout(changed).digest != Layout(fields).digest


@given(field_maps.filter(lambda fields: len(fields) > 1))
def test_another_order_gives_another_digest(fields):
    assert Layout(dict(reversed(fields.items()))).digest != Layout(fields).digest


@given(field_maps)
def test_equal_layouts_have_equal_hashes(fields):
    assert hash(Layout(fields)) == hash(Layout(dict(fields)))


def test_two_spellings_of_a_dtype_are_one_layout():
    assert Layout({"a": (np.float32, (2,))}).digest == Layout({"a": ("=f4", [2])}).digest


def test_a_layout_is_not_equal_to_a_plain_mapping():
    layout = Layout({"a": ("f4", (2,))})
    assert layout != dict(layout)


# -- the schema -------------------------------------------------------------------------------------


@given(field_maps)
def test_a_schema_reads_back_as_the_same_layout(fields):
    layout = Layout(fields)
    again = Layout.from_schema(layout.schema)
    assert again == layout and again.digest == layout.digest
    assert list(again.values()) == list(layout.values())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(DTYPES),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
dtype_texts = st.sampled_from(
    ["<f4", "f4,f4", "(2,3)f4", "a4", "O", "V8", ">i4", "m8[s]", "|b1", ",,", "<f99"]
)
schema_like = st.builds(
    lambda entries: json.dumps({"fields": entries}, separators=(",", ":")).encode(),
    st.lists(
        st.tuples(st.text(max_size=3) | json_values, dtype_texts | json_values, st.just([2]) | json_values)
        | json_values,
        max_size=3,
    ),
)


@given(st.binary(max_size=200) | json_values.map(lambda v: json.dumps(v).encode()) | schema_like)
def test_any_bytes_are_a_layout_or_a_layout_error(schema):
    try:
        layout = Layout.from_schema(schema)
    except LayoutError:
        return
    assert layout.schema == schema


@given(field_maps, st.data())
def test_a_changed_schema_never_reads_as_the_same_layout(fields, data):
    schema = bytearray(Layout(fields).schema)
    schema[data.draw(st.integers(0, len(schema) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        assert Layout.from_schema(bytes(schema)) != Layout(fields)
    except LayoutError:
        pass


@pytest.mark.parametrize("depth", [100, 100_000])
def test_a_deeply_nested_schema_is_a_layout_error(depth):
    with pytest.raises(LayoutError, match="not the schema of a layout"):
        Layout.from_schema(b"[" * depth + b"]" * depth)


def test_a_schema_with_a_field_twice_is_refused():
    with pytest.raises(LayoutError, match="not in the form that Layout writes"):
        Layout.from_schema(b'{"fields":[["a","<f4",[2]],["a","<f4",[2]]]}')


def test_a_schema_written_with_spaces_is_refused():
    schema = Layout({"a": ("f4", (2,))}).schema
    with pytest.raises(LayoutError, match="not in the form that Layout writes"):
        Layout.from_schema(schema.replace(b",", b", "))


def test_a_layout_crosses_pickle():
    layout = Layout({"reward": (np.float64, (8,)), "done": (np.bool_, (8,))})
    again = pickle.loads(pickle.dumps(layout))
    assert again == layout and list(again.values()) == list(layout.values())


# -- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([("a", "f4")], "made from a mapping of name to .dtype, shape., got list"),
        ({3: ("f4", ())}, "name must be a str, got int: 3"),
        ({"": ("f4", ())}, "1 to 65536 characters and no NUL, got ''"),
        ({"a\0b": ("f4", ())}, "1 to 65536 characters and no NUL, got 'a.x00b'"),
        ({"n" * 65537: ("f4", ())}, "1 to 65536 characters and no NUL, got 'n{80}'$"),
        ({"a": "f"}, r"field 'a': expected \(dtype, shape\), for example .* got 'f'"),
        ({"a": 7}, r"field 'a': expected \(dtype, shape\), for example .* got 7"),
        ({"a": ("f4", (), ())}, r"field 'a': expected \(dtype, shape\)"),
        ({"a": ("nonsense", ())}, "field 'a': 'nonsense' is not a NumPy dtype"),
        ({"a": ((3, 4), ())}, r"field 'a': \(3, 4\) is not a NumPy dtype"),
        ({"a": ({"names": ["x"], "formats": ["f4"], "offsets": [10**30]}, ())}, "is not a NumPy dtype"),
        (
            {"a": (object, ())},
            "field 'a': dtype object cannot be stored in shared memory; use a bool, integer",
        ),
        ({"a": (str, ())}, "field 'a': dtype <U0 cannot be stored in shared memory"),
        ({"a": ("S8", ())}, r"field 'a': dtype \|S8 cannot be stored in shared memory"),
        ({"a": ("M8[s]", ())}, "field 'a': dtype datetime64.s. cannot be stored in shared memory"),
        (
            {"a": ([("x", "f4")], ())},
            r"field 'a': dtype \[\('x', '<f4'\)\] cannot be stored in shared memory",
        ),
        ({"a": (("f4", (3,)), ())}, r"field 'a': dtype \('<f4', \(3,\)\) cannot be stored in shared memory"),
        ({"a": (np.dtype("i4").newbyteorder("S"), ())}, "is not in this machine's byte order; use .i4"),
        ({"a": ("f4", 3)}, "field 'a': a shape must be a tuple of ints, got 3"),
        ({"a": ("f4", (-1,))}, "field 'a': every dimension must be an int of at least 0, got -1"),
        ({"a": ("f4", (True,))}, "field 'a': every dimension must be an int of at least 0, got True"),
        ({"a": ("f4", (2.0,))}, "field 'a': every dimension must be an int of at least 0, got 2.0"),
        ({"a": ("f4", ("2",))}, "field 'a': every dimension must be an int of at least 0, got '2'"),
        ({"a": ("f4", (1,) * 33)}, "field 'a': at most 32 dimensions, got 33"),
        (
            {"a": ("f4", (2**61,))},
            r"field 'a': float32\[2305843009213693952\] reaches byte 9223372036854775808",
        ),
        (
            {"a": ("u1", (2**61,)), "b": ("u1", (2**61 + 1,))},
            "field 'b': .* more than any machine can address",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_cannot_be_laid_out_is_refused_in_words_that_name_it(fields, message):
    with pytest.raises(LayoutError, match=message):
        Layout(fields)


def test_a_layout_error_is_a_value_error():
    with pytest.raises(ValueError):
        Layout({"a": ("f4", (-1,))})


@pytest.mark.parametrize("shape", [(10**30,), (10**9,) * 32, (10**5000,), (0, 10**30), (0, 2**40, 2**40)])
def test_an_absurd_size_is_refused_at_once(shape):
    begin = time.process_time()
    with pytest.raises(LayoutError, match="field 'a': .* any machine can address; check num_envs"):
        Layout({"a": ("f4", shape)})
    assert time.process_time() - begin < 0.01


def test_the_largest_dimensions_are_as_many_as_numpy_always_allows():
    layout = Layout({"a": ("f4", (1,) * 32)})
    assert np.zeros(layout["a"].shape).ndim == 32


# -- how two layouts differ -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"a": ("f4", (2,)), "b": ("i8", ())}, ""),
        ({"a": ("f8", (2,)), "b": ("i8", ())}, "'a': expected float32[2], found float64[2]"),
        ({"a": ("f4", (3,)), "b": ("i8", ())}, "'a': expected float32[2], found float32[3]"),
        ({"a": ("f4", (2,))}, "'b': expected int64[], found no such field"),
        (
            {"a": ("f4", (2,)), "b": ("i8", ()), "c": ("?", (1,))},
            "'c': expected no such field, found bool[1]",
        ),
        ({"b": ("i8", ()), "a": ("f4", (2,))}, "expected the order ['a', 'b'], found ['b', 'a']"),
        (
            {"b": ("i4", ())},
            "'a': expected float32[2], found no such field; 'b': expected int64[], found int32[]",
        ),
    ],
)
def test_a_difference_names_the_fields_that_differ(other, text):
    assert Layout({"a": ("f4", (2,)), "b": ("i8", ())}).difference(Layout(other)) == text


@given(field_maps, field_maps)
def test_a_difference_is_empty_exactly_if_the_layouts_are_equal(first, second):
    first, second = Layout(first), Layout(second)
    assert (first.difference(second) == "") == (first == second)


def test_a_layout_shows_its_fields_and_size():
    assert repr(Layout({"a": ("f4", (2,))})) == "Layout(a: float32[2]; 64 bytes)"
