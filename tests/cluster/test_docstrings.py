"""The docstring examples of public names that need a cluster run on a cluster."""

import pytest

import shoal.cluster
from tests.docs.test_docstrings import examples, run


@pytest.mark.parametrize("name", shoal.cluster.__all__)
def test_the_examples_of_a_public_name_run(name, cluster):
    found = examples(getattr(shoal.cluster, name))
    assert found
    for one in found:
        said = run(one)
        assert not said, said
