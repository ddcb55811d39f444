"""The ring, and opening its file, keep their guarantees in every interleaving; their mutants do not."""

import pytest

from tests.model import mend_model
from tests.model.ring_model import explore
from tests.model.states import Violation


def test_every_interleaving_of_the_protocol_is_right():
    assert explore() > 150_000  # it visited that many states


@pytest.mark.parametrize(
    "mutant",
    [
        "no second look",
        "lap apart from state",
        "commit before the record",
        "steal from the living",
        "say it after the swap",
        "believe an old look",
        "empty the line before the commit",
        "drop what is another's by now",
        "nap with the line said",
    ],
)
def test_a_mutant_of_the_protocol_is_caught(mutant):
    with pytest.raises(Violation):
        explore(mutant)


def test_every_interleaving_of_opening_after_a_crash_is_right():
    assert mend_model.explore() > 50_000


@pytest.mark.parametrize(
    "mutant",
    [
        "mark first",
        "no second look",
        "touch what is held",
        "drop without looking",
        "drop before the check",
        "forget the lap",
        "clear without looking",
        "leave stale checks",
    ],
)
def test_a_mutant_of_opening_is_caught(mutant):
    with pytest.raises(Violation):
        mend_model.explore(mutant)
