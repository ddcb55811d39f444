"""Every public name has a docstring with an example, and the examples run."""

import doctest
import importlib
import inspect
import sys

import gymnasium
import numpy as np
import pytest

import shoal
from tests.test_exports import PUBLIC

THINGS = {
    id(thing): (f"{module}.{name}", thing)
    for module, names in PUBLIC.items()
    for name in names
    for thing in [getattr(importlib.import_module(module), name)]
    if inspect.isclass(thing) or inspect.isfunction(thing)
}
# Those that need a cluster are run in tests/cluster, where Ray is.
HERE = pytest.mark.parametrize(
    "thing",
    [pytest.param(thing, id=path) for path, thing in THINGS.values() if "shoal.cluster." not in path],
)
ALL = pytest.mark.parametrize("thing", [pytest.param(thing, id=path) for path, thing in THINGS.values()])
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples(thing, name="it"):
    """Its own examples and those of its methods, with `np`, `gymnasium`, `shoal` and its module's names."""
    around = {**vars(sys.modules[thing.__module__]), "np": np, "gymnasium": gymnasium, "shoal": shoal}
    return [found for found in doctest.DocTestFinder().find(thing, name, globs=around) if found.examples]


def run(found):
    said = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    runner.run(found, out=said.append)
    return "".join(said)


@ALL
def test_every_public_name_has_a_docstring_with_an_example(thing):
    own = [found for found in examples(thing) if found.name == "it"]
    assert own, "add a short example, such as: >>> shoal.make_vec(...)"
    assert sum(bool(example.want) for example in own[0].examples), "an example shows what comes out"


@HERE
def test_the_examples_of_a_public_name_run(thing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for found in examples(thing):
        said = run(found)
        assert not said, said


@ALL
def test_every_public_method_says_what_it_does(thing):
    if not inspect.isclass(thing):
        return
    for name, value in vars(thing).items():
        value = getattr(value, "__func__", value)
        if name.startswith("_") or not (inspect.isfunction(value) or isinstance(value, property)):
            continue
        assert inspect.getdoc(getattr(thing, name)), f"{thing.__name__}.{name} has no docstring"


def test_an_example_that_is_wrong_is_found():
    def wrong():
        """Adds.

        >>> 1 + 1
        3
        """

    (found,) = examples(wrong)
    assert "Expected" in run(found)
