"""docs/faults.md says what the situations say."""

import re

import pytest

from tests.docs.faults import PAGE, SITUATIONS, message, parts, shown

ROWS = re.findall(r"^\| (.+?) \| `(.+?)` \| (.+?) \|$", parts(PAGE.read_text())[1], re.MULTILINE)


@pytest.mark.parametrize("one", SITUATIONS, ids=lambda one: one.words)
def test_the_page_has_the_message_of_a_situation(one):
    said = message(one).replace("|", "\\|").replace("`", "'")
    told = [(words, text) for words, text, advice in ROWS if words == one.words and advice == one.advice]
    assert told == [(one.words, said)], "python -m tests.docs.faults writes the page anew"


def test_the_page_has_no_other_situations():
    assert [words for words, _, _ in ROWS] == [one.words for one in SITUATIONS]


def test_what_differs_between_runs_is_left_out():
    assert shown("worker 1 (process 4711) has died") == "worker 1 (process N) has died"
    assert shown(
        "needs 1125899906842624 bytes (1.0 PB), but only 9876543210 (9.2 GB) are available, "
        "limited by a cgroup; raise it"
    ) == ("needs N bytes, but only N are available, limited by this machine's free memory")
    assert shown("from 1 to 16777216") == "from 1 to 16777216"
