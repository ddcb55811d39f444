"""`shoal chaos` finds no violation in Shoal, and finds bugs that are added to it on purpose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shoal_lab.chaos.faults import copy_with_trap
from shoal_lab.chaos.plan import plan_rounds
from shoal_lab.chaos.rounds import Round, run_round

BROKEN = Path(__file__).with_name("broken")


def chaos(*arguments, breaks="", timeout_s=110):
    path = [str(BROKEN), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {"BREAK": breaks, "PYTHONPATH": os.pathsep.join(path)} if breaks else {}
    return subprocess.run(
        [sys.executable, "-m", "shoal_lab.chaos", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **own},
    )


def test_every_invariant_holds_in_a_short_run():
    done = chaos("--kills", 20, "--seed", 1, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["held"] and found["violations"] == []
    assert found["rounds"]["begun"] == found["rounds"]["planned"] > 0
    kills = {part: one["kills"] for part, one in found["parts"].items()}
    assert kills["workers"] >= 20 and kills["ring"] >= 200 and kills["parents"] == 2
    assert {"death to exception", "step with a repair"} < found["milliseconds"].keys()


@pytest.mark.parametrize(
    ("breaks", "only", "kills", "invariant"),
    [
        ("rows_of_a_restarted_worker_report_no_fault", "workers", 10, 3),
        ("a_reward_is_that_of_the_step_before", "workers", 10, 3),
        ("a_death_names_the_wrong_environments", "workers", 20, 6),
        ("a_worker_death_is_ignored", "workers", 10, 4),
        ("a_descriptor_of_each_dead_worker_stays_open", "workers", 10, 5),
        ("every_fifth_push_stores_half_a_row", "ring", 100, 2),
        ("an_acknowledged_push_is_lost", "ring", 100, 1),
        ("workers_do_not_watch_their_parent", "parents", 12, 5),
    ],
)
def test_a_bug_added_on_purpose_is_found(breaks, only, kills, invariant):
    deadline = 6 if invariant == 4 else 30
    arguments = ["--only", only, "--kills", kills, "--seed", 1, "--deadline", deadline, "--json"]
    done = chaos(*arguments, breaks=breaks)
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert not found["held"] and invariant in {one["invariant"] for one in found["violations"]}, found
    assert found["violations"][0]["again"].startswith(f"shoal chaos --only {only} --kills {kills} --seed 1")


def test_a_stage_that_sends_nothing_is_reported_as_a_hang(monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import shoal_lab.chaos.ring as ring, time\nring.stage = lambda *_: time.sleep(60)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome = run_round(Round("ring", 0, 1), 6.0, lambda kills: None)
    assert outcome.hangs == 1 and outcome.violations[0][0] == 4
    assert "sitecustomize" in outcome.facts["output"]  # its stack


def test_a_run_with_a_record_skips_recorded_rounds(tmp_path):
    record = tmp_path / "record"
    first = chaos("--only", "ring", "--kills", 20, "--seed", 5, "--record", record)
    assert first.returncode == 0 and "round 1 of 1" in first.stdout, first.stdout + first.stderr
    again = chaos("--only", "ring", "--kills", 20, "--seed", 5, "--record", record)
    assert (
        again.returncode == 0
        and "round 1 of 1" not in again.stdout
        and "every invariant held" in again.stdout
    )


def test_rounds_have_the_requested_sizes_and_each_can_be_run_alone():
    rounds = plan_rounds(["workers", "ring", "parents"], 10_000, 7, exactly=False)
    sums = {
        part: sum(one.kills for one in rounds if one.part == part) for part in ("workers", "ring", "parents")
    }
    assert sums == {"workers": 10_000, "ring": 100_000, "parents": 1000}
    assert len({one.key for one in rounds}) == len(rounds)
    one = next(one for one in rounds if one.part == "ring" and one.seed == 9)
    assert plan_rounds(["ring"], one.kills, one.seed, exactly=True) == [one]


def test_a_protected_page_kills_a_copy_in_its_middle(run_python):
    """The named points rely on this."""
    out = run_python(
        "import os, numpy as np\n"
        "from shoal_lab.chaos.faults import copy_with_trap\n"
        "from shoal.memory import Layout, Segment\n"
        "segment = Segment(Layout({'to': (np.int64, (1024,))}))\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    segment['to'][:] = copy_with_trap(np.arange(1, 1025), 2048)\n"
        "    os._exit(0)\n"
        "print(os.WTERMSIG(os.waitpid(pid, 0)[1]), np.count_nonzero(segment['to']))\n"
    )
    signal, copied = map(int, out.split())
    assert signal == 11 and 0 < copied < 1024


def test_bytes_before_and_after_the_protected_page_can_be_read():
    values = np.arange(2048)
    copy = copy_with_trap(values, 1024)
    assert np.array_equal(copy[:128], values[:128]) and np.array_equal(copy[640:], values[640:])


@pytest.mark.parametrize(
    "given",
    [
        ("--deadline", "-1"),
        ("--deadline", "x"),
        ("--seed", "-1"),
        ("--minutes", "0"),
        ("--soak", "0"),
        ("--record", "/nowhere/at/all"),
        ("--chart", "soak.svg"),
    ],
)
def test_bad_arguments_are_rejected_before_anything_is_killed(given):
    done = subprocess.run([sys.executable, "-m", "shoal_lab.chaos", *given], capture_output=True, text=True)
    assert done.returncode == 2 and given[0] in done.stderr and done.stdout == ""
