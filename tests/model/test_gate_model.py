"""The gate keeps its guarantees in every interleaving with deaths in every state; its mutants do not."""

import pytest

from tests.model.gate_model import explore
from tests.model.states import Violation

both_sleeps = pytest.mark.parametrize("by_word", [False, True])
both_ways = pytest.mark.parametrize("raises", [False, True])


@both_sleeps
@both_ways
def test_every_interleaving_of_the_protocol_is_right(by_word, raises):
    late = 0 if raises else 1  # late workers are handled the same way in both modes
    assert explore(by_word=by_word, raises=raises, late=late) > 120_000  # it visited that many states


@both_sleeps
@both_ways
@pytest.mark.parametrize(
    ("mutant", "what"),
    [
        ("worker: no second check", "deadlock"),
        ("parent: no second check", "deadlock"),
        ("post without a wake-up", "deadlock"),
        ("only worker 0 wakes the parent", "deadlock"),
        ("ignore deaths", "deadlock"),
        ("start with the posted number", "deadlock"),
        ("done before the row", "row"),
        ("do not finish for the dead", "posted to worker 0, which is busy"),
        ("replace without killing", "row"),
        ("do not wait for the others", "row|posted to worker 0, which is busy"),
    ],
)
def test_a_mutant_of_the_protocol_is_caught(mutant, what, by_word, raises):
    with pytest.raises(Violation, match=what):
        explore(mutant, by_word=by_word, raises=raises)


@both_sleeps
def test_a_row_of_one_that_was_replaced_must_be_marked(by_word):
    with pytest.raises(Violation, match="row"):
        explore("forget to mark", by_word=by_word)


@both_ways
@pytest.mark.parametrize(
    ("mutant", "what"),
    [
        ("sleep without comparing the word", "deadlock"),
        ("watch busy workers only", "deadlock"),
        ("do not watch exiting workers", "deadlock"),
        ("sleep before the dead have ended", "deadlock"),
        ("replace before the dead have ended", "row"),
        ("claim without comparing", "deadlock"),
    ],
)
def test_a_mutant_of_the_sleep_on_a_word_is_caught(mutant, what, raises):
    with pytest.raises(Violation, match=what):
        explore(mutant, by_word=True, raises=raises)


@both_ways
def test_a_mutant_of_the_sleep_on_a_descriptor_is_caught(raises):
    with pytest.raises(Violation, match="deadlock"):
        explore("claim the word, then write the descriptor", raises=raises)
