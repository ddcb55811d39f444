"""The ring's protocol keeps its promises in every interleaving with a crash, and its mutants do not."""

import pytest

from tests.model.ring_model import Violation, explore


def test_every_interleaving_of_the_protocol_is_right():
    assert explore() > 50_000  # it really went through them


@pytest.mark.parametrize(
    "mutant",
    ["no second look", "steal from the living", "commit before the record", "lap apart from state"],
)
def test_a_mutant_of_the_protocol_is_caught(mutant):
    with pytest.raises(Violation):
        explore(mutant)
