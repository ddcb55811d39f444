"""Spaces to test with: one of every kind and shape, and a hypothesis strategy that nests them at random."""

import numpy as np
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Space,
    Text,
    Tuple,
)
from hypothesis import strategies as st

DTYPES = [
    np.bool_,
    np.int8,
    np.uint8,
    np.int16,
    np.uint16,
    np.int32,
    np.uint32,
    np.int64,
    np.uint64,
    np.float16,
    np.float32,
    np.float64,
]

FIXED: list[Space] = [
    *(Box(0, 1, (2, 3), dtype) for dtype in DTYPES),
    Box(-1, 1, ()),
    Box(-1, 1, (0,)),
    Box(-np.inf, np.inf, (3,)),
    Box(0, 255, (4, 5, 3), np.uint8),
    Discrete(3),
    Discrete(4, start=-2),
    MultiDiscrete([3, 2]),
    MultiDiscrete([[2, 3], [3, 2]]),
    MultiBinary(5),
    MultiBinary([2, 3]),
    Text(6),
    Text(4, min_length=0, charset="abé☃"),
    Tuple((Discrete(2), Box(0, 1, (2,)))),
    Tuple((Tuple((Box(0, 1, (3,)), Text(3))), Discrete(2))),
    Dict(position=Box(-1, 1, (2,)), inner=Dict(camera=Box(0, 255, (2, 2), np.uint8), n=Discrete(4))),
    Dict({"a/b": Discrete(2), "a": Dict(b=Discrete(3)), "~1": Discrete(4), "": Discrete(5)}),
    Dict({"\0": Discrete(2), "~4": Discrete(3), "long" * 500: Discrete(4), "\ud800": Discrete(5)}),
    OneOf((Discrete(3), Box(0, 1, (2,)))),
    Dict(choice=OneOf((MultiBinary(2), MultiDiscrete([2, 2]))), text=Text(5)),
]

DYNAMIC: list[Space] = [
    Sequence(Discrete(4)),
    Sequence(Box(0, 1, (2,)), stack=True),
    Sequence(Dict(a=Box(0, 1, (3,)), b=Discrete(5)), stack=True),
    Sequence(Tuple((Discrete(2), Text(3)))),
    Sequence(Text(4)),
    Sequence(Sequence(Discrete(3))),
    Sequence(Graph(Box(-1, 1, (2,)), Discrete(4))),
    Graph(Box(-1, 1, (2,)), None),
    Graph(Discrete(5), Box(-1, 1, (3, 4))),
    Graph(Dict(f=Discrete(5), g=MultiBinary(5)), Box(1, 4)),
    Graph(Tuple((Box(-1, 1, (2,)), Discrete(3))), Discrete(2)),
    Dict(graph=Graph(Box(-1, 1, (2,)), Discrete(2)), items=Sequence(OneOf((Discrete(2), Text(2))))),
]

# OneOf over spaces that Gymnasium itself cannot read back.
NESTED_ONEOF: list[Space] = [
    OneOf((Dict(a=Box(0, 1, (2,)), b=Discrete(3)), Discrete(2))),
    OneOf((Tuple((Discrete(2), Box(0, 1, (2,)))), Text(3), OneOf((Discrete(2), MultiBinary(3))))),
]

_leaves = st.one_of(
    st.builds(
        lambda dtype, shape: Box(0, 1, tuple(shape), dtype),
        st.sampled_from(DTYPES),
        st.lists(st.integers(0, 3), max_size=3),
    ),
    st.builds(Discrete, st.integers(1, 9), start=st.integers(-5, 5)),
    st.builds(MultiDiscrete, st.lists(st.integers(1, 5), min_size=1, max_size=3)),
    st.builds(MultiBinary, st.integers(1, 4)),
    st.builds(Text, st.integers(1, 5)),
)


def _branches(children: st.SearchStrategy[Space]) -> st.SearchStrategy[Space]:
    return st.one_of(
        st.builds(Dict, st.dictionaries(st.text(max_size=4), children, min_size=1, max_size=3)),
        st.builds(lambda spaces: Tuple(tuple(spaces)), st.lists(children, min_size=1, max_size=3)),
    )


fixed_spaces = st.recursive(_leaves, _branches, max_leaves=5)
any_spaces = st.recursive(
    _leaves,
    lambda children: st.one_of(
        _branches(children),
        st.builds(lambda spaces: OneOf(tuple(spaces)), st.lists(children, min_size=1, max_size=3)),
        st.builds(Sequence, children),
    ),
    max_leaves=5,
)
