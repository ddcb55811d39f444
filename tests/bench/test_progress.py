"""How far, and how long still."""

import io

from shoal_lab.bench.progress import Progress, clock_text


class Clock:
    def __init__(self):
        self.at = 0.0

    def __call__(self):
        return self.at


def test_time_left_is_corrected_by_the_time_used(capsys):
    clock, out = Clock(), io.StringIO()
    with Progress(100, out, clock) as progress:
        progress.begin("first")
        clock.at = 40  # it was planned to take 20
        progress.end(20)
        progress.begin("second")
        assert (progress.part, progress.left_s) == (0.2, 160)
        progress.advance(0.5, of_s=40)
        clock.at = 80
        assert (progress.part, progress.left_s) == (0.4, 120)
        progress.say("a table")
    assert out.getvalue().splitlines() == ["[  0%, 1:40 left] first", "[ 20%, 2:40 left] second"]
    assert capsys.readouterr().out == "a table\n"


def test_progress_can_be_silent():
    out = io.StringIO()
    with Progress(1, out, enabled=False) as progress:
        progress.begin("first")
    assert out.getvalue() == ""


def test_progress_never_exceeds_all_of_it():
    with Progress(10, io.StringIO(), Clock()) as progress:
        progress.end(30)
        assert (progress.part, progress.left_s) == (1.0, 0.0)


def test_clock_text_has_minutes_and_seconds():
    assert [clock_text(s) for s in (-3, 0, 59.6, 125)] == ["0:00", "0:00", "1:00", "2:05"]


def test_in_a_terminal_progress_is_a_bar():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out = Terminal()
    with Progress(10, out, Clock()) as progress:
        progress.begin("a case")
        progress.advance(0.5, of_s=10)
    assert "50%" in out.getvalue() and "a case" in out.getvalue() and "left" in out.getvalue()
