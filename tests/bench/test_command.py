"""`shoal bench` as a user types it, with suites that cost nothing."""

import importlib.util
import json
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from shoal.cli import main
from shoal.errors import BuildError
from shoal_lab.bench import command, sweep
from shoal_lab.bench.compile import SOURCES, compiled
from shoal_lab.bench.measure import Bench, Pace, Planned, Rival, RivalFailed
from shoal_lab.bench.suites import startup
from tests.bench import found


@pytest.fixture
def fake(monkeypatch):
    """Suites that are already done; what each was asked for."""
    asked = {}

    def suite(name):
        def plan(bench, **options):
            asked[name] = options
            return [Planned(f"{name} toys", 1.0, lambda: found.case(suite=name))]

        return plan

    monkeypatch.setattr(command, "SUITES", {name: suite(name) for name in command.SUITES})
    monkeypatch.setattr(
        sweep, "SWEEPS", {name: lambda bench, s, name=name: found.sweep(name) for name in sweep.SWEEPS}
    )
    return asked


def test_without_arguments_it_runs_every_suite(fake, capsys):
    assert main(["bench"]) == 0
    assert list(fake) == ["native", "process", "replay", "startup", "memory"]
    out, err = capsys.readouterr()
    assert out.startswith("shoal bench\nshoal ")
    assert "native: Toys, num_envs=8" in out and "memory: Toys" in out
    assert "left] native toys" in err
    assert max(map(len, out.splitlines())) <= 80


def test_a_suite_gets_the_given_numbers_of_environments(fake):
    assert main(["bench", "native", "replay", "--envs", "1", "8", "--quiet"]) == 0
    assert fake == {"native": {"envs": [1, 8]}, "replay": {}}


def test_results_are_written_as_json_and_drawn(fake, tmp_path, capsys):
    target, plot = tmp_path / "a.json", tmp_path / "a.svg"
    python = ["--python", f"gymnasium={sys.executable}"]
    assert main(["bench", "native", *python, "--json", str(target), f"--plot={plot}", "--quiet"]) == 0
    written = json.loads(target.read_text())
    assert written["command"] == f"shoal bench native --python gymnasium={sys.executable}", (
        "less where it goes"
    )
    assert [case["suite"] for case in written["cases"]] == ["native"]
    assert {"cpu", "cores", "platform", "load"} == set(written["machine"])
    said = [text.text for text in ElementTree.parse(plot).iter() if text.tag.endswith("text")]
    assert any(text.startswith("shoal bench native, ") for text in said), "a chart names no directories"
    assert f"written: {target}" in capsys.readouterr().out


def test_sweeps_are_chosen_and_drawn(fake, tmp_path, capsys):
    plot = tmp_path / "a.png"
    assert main(["bench", "sweep", "--only", "threads", "replay", "--plot", str(plot)]) == 0
    out, err = capsys.readouterr()
    assert "sweep threads: Toys in C" in out and "sweep replay" in out and "sweep envs" not in out
    assert "-> Saturated from 16 on." in out and "left] sweep threads" in err
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["nativ"],
            "unknown suite 'nativ'; suites are native, process, replay, startup, memory, sweep and cuda",
        ),
        (["sweep", "native"], "sweep is a run of its own"),
        (["sweep", "--only", "env"], "unknown sweep 'env'; sweeps are envs, bytes, threads, workers, replay"),
        (["native", "--only", "envs"], "--only chooses sweeps"),
        (["--plot", "a.pdf"], "--plot writes a .svg or a .png file, got 'a.pdf'"),
        (["--json", "/no/such/place/a.json"], "there is no directory /no/such/place"),
        (["--python", "envpool"], "--python wants NAME=PATH"),
        (["--against", "envpol"], "unknown peer 'envpol'; peers are gymnasium"),
        (["--install", "--against", "envpol"], "unknown peer 'envpol'"),
        (["--mine", "make"], "--mine must be module:factory"),
    ],
)
def test_bad_arguments_raise_before_anything_is_measured(fake, arguments, message, capsys):
    assert main(["bench", *arguments]) == 1
    assert fake == {}
    out, err = capsys.readouterr()
    assert message in err and err.startswith("shoal bench: ") and out == ""


def test_without_a_compiler_limits_are_missing_and_a_note_says_what_to_do(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    bench = Bench({})
    assert bench.loops is None and bench.loops is None
    assert len(bench.notes) == 1
    assert bench.notes[0].startswith(
        "without limits in C: limits are measured in C, but the compiler 'no-such-compiler'"
    )
    assert "apt install build-essential" in bench.notes[0]
    with pytest.raises(BuildError, match="did not compile"):
        monkeypatch.delenv("CC")
        compiled(SOURCES / "uneven.c")  # shoal/env.h is not on its path


def test_a_case_has_its_rounds_and_parameters():
    rivals = [Rival("Shoal", "shoal", 8, lambda calls: 0.5), Rival("loop", "limit", 8, lambda calls: 0.25)]
    done = []
    bench = Bench({})
    planned = Planned(
        "toys",
        1,
        lambda: bench.timed("native", "toys", "steps/s", rivals, Pace(3, None), lambda n, s: n / s, "none"),
    )
    (case,) = bench.go([planned], done.append)
    assert done == [case]
    assert case.shoal.turns == (16.0, 16.0, 16.0) and case.of_limit(case.shoal) == 0.5
    assert case.parameters == "none; 3 bursts, one call each, in turns"


def test_a_library_that_fails_is_noted_once_and_left_out():
    bench = Bench({"no_such_library_here": "/no/such/python"})
    with bench.roster("native") as roster:
        roster.add("no_such_library_here", "A")
        roster.add("no_such_library_here", "B")
        roster.add("not_asked_for", "C")
        assert roster.rivals == []
    assert bench.notes == ["without A: /no/such/python: No such file or directory"]
    bench.close()


def test_a_rival_that_fails_while_timed_is_noted_and_the_others_start_again():
    def fails(calls):
        raise RivalFailed("Peer", "it ended with status 1")

    rivals = [Rival("Shoal", "shoal", 1, lambda calls: 1.0), Rival("Peer", "peer", 1, fails)]
    bench = Bench({})
    case = bench.timed("native", "toys", "s", rivals, Pace(2, None), lambda n, s: s)
    assert [row.name for row in case.rows] == ["Shoal"] and len(case.shoal.turns) == 2
    assert bench.notes == ["without Peer in 'toys': it ended with status 1"]


def test_a_peer_that_no_suite_uses_prints_a_note(fake, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    assert main(["bench", "native", "--against", "cpprb,gymnasium", "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "cpprb has no part in native, but in replay, startup, memory" in said
    assert "gymnasium has no part" not in said


def test_an_import_that_fails_is_not_timed():
    bench = Bench({"cpprb": sys.executable} if importlib.util.find_spec("cpprb") is None else {})
    case = startup._imports(bench, Pace(1, None))
    assert [row.name for row in case.rows] == ["Shoal", "NumPy and Gymnasium"]
    if bench.pythons:
        assert bench.notes == [
            "without cpprb in 'Importing, in a new Python': ModuleNotFoundError: No module named 'cpprb'"
        ]
