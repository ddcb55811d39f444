"""The gate keeps its promises in every interleaving with deaths in every state; its mutants do not."""

import pytest

from tests.model.gate_model import Violation, explore


@pytest.mark.parametrize("by_word", [False, True])
def test_every_interleaving_of_the_protocol_is_right(by_word):
    assert explore(by_word=by_word) > 20_000  # it really went through them


@pytest.mark.parametrize("by_word", [False, True])
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
        ("forget to mark", "row"),
        ("leave its number open", "row"),
        ("replace without killing", "row"),
    ],
)
def test_a_mutant_of_the_protocol_is_caught(mutant, what, by_word):
    with pytest.raises(Violation, match=what):
        explore(mutant, by_word=by_word)


@pytest.mark.parametrize("mutant", ["sleep whatever the word says", "watch the busy ones alone"])
def test_a_mutant_of_the_sleep_on_a_word_is_caught(mutant):
    with pytest.raises(Violation, match="nobody can go on"):
        explore(mutant, by_word=True)
