"""A chunk writes infos into rows, and the parent reads them: without worker processes."""

import json

import numpy as np
import pytest

from shoal import _core
from shoal.process.infos import describe_info, info_fields


def test_a_description_lists_keys_types_and_shapes_in_order():
    info = {"b": 1.0, "a": True, "c": {"d": np.float32(1)}, "e": np.zeros((2, 3), np.int8)}
    description, data = describe_info(info)
    assert [entry[0] for entry in description] == ["b", "a", "c", "e"] and json.loads(data)[3] == [
        "e",
        description[3][1],
        "|i1",
        [2, 3],
    ]
    assert description[3][2:] == ("|i1", (2, 3)) and description[2][3][0][2:] == ("<f4", ())


class Recursive(dict):
    pass


@pytest.mark.parametrize(
    "info", [{"a": Recursive()}, {"a": np.longlong(1)}, {"a": np.ma.zeros(2)}, {"a": np.zeros(2, "M8[s]")}]
)
def test_infos_that_gymnasium_batches_differently_are_not_described(info):
    assert describe_info(info) is None


def test_a_dict_that_holds_itself_is_not_described():
    info = {"a": 1.0}
    info["b"] = info
    assert describe_info(info) is None


def test_a_word_that_names_no_schema_is_an_error():
    fields = {name: np.zeros(shape, dtype) for name, (dtype, shape) in info_fields(2, 3).items()}
    reader = _core.InfoReader(*fields.values(), [0, 2], 3, json.loads)
    assert not reader.any() and reader.batch(None) == {} and reader.read(2) is None
    fields["info_word"][1] = 17
    assert reader.any() and reader.batch([0, 2]) == {}
    with pytest.raises(RuntimeError, match="names a schema that is not there"):
        reader.batch(None)
    with pytest.raises(IndexError):
        reader.read(3)
