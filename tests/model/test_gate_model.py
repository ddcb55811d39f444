"""The gate keeps its promises in every interleaving with deaths in every state; its mutants do not."""

import pytest

from tests.model.gate_model import Violation, explore

both_sleeps = pytest.mark.parametrize("by_word", [False, True])
both_ways = pytest.mark.parametrize("raises", [False, True])


@both_sleeps
@both_ways
def test_every_interleaving_of_the_protocol_is_right(by_word, raises):
    late = 0 if raises else 1  # who is late ends the same way in both
    assert explore(by_word=by_word, raises=raises, late=late) > 120_000  # it really went through them


@both_sleeps
@both_ways
@pytest.mark.parametrize(
    ("mutant", "what"),
    [
        ("worker: no second look", "nobody can go on"),
        ("parent: no second look", "nobody can go on"),
        ("post without a wake-up", "nobody can go on"),
        ("only one of them rings", "nobody can go on"),
        ("deaf to a death", "nobody can go on"),
        ("begin with what is asked", "nobody can go on"),
        ("done before the row", "row"),
        ("leave its number open", "posted to worker 0, which is busy"),
        ("replace without killing", "row"),
        ("wait for nobody", "row|posted to worker 0, which is busy"),
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
        ("sleep whatever the word says", "nobody can go on"),
        ("watch the busy ones alone", "nobody can go on"),
        ("forget who is dying", "nobody can go on"),
        ("sleep beside who is dying", "nobody can go on"),
        ("replace who is dying", "row"),
        ("take whatever is there", "nobody can go on"),
    ],
)
def test_a_mutant_of_the_sleep_on_a_word_is_caught(mutant, what, raises):
    with pytest.raises(Violation, match=what):
        explore(mutant, by_word=True, raises=raises)


@both_ways
def test_a_mutant_of_the_sleep_on_a_descriptor_is_caught(raises):
    with pytest.raises(Violation, match="nobody can go on"):
        explore("take the bell, then ring", raises=raises)
