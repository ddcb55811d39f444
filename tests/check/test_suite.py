"""`shoal check` passes what keeps the contract, and finds and names each way of breaking it."""

import re
from pathlib import Path

import pytest

from shoal import check
from shoal.check.subject import CheckFailed, prepare_subject
from shoal.compat.puffer import writable_globals
from shoal.native.build import build
from shoal.native.plugin import bundled
from shoal.native.template import new
from tests.check.conftest import needs_compiler

pytestmark = needs_compiler
TEAM = Path(__file__).parent.parent / "native" / "plugins" / "team.c"

# What is done -> (the code, the check that fails, what it says).
BROKEN = {
    "a refusal to describe itself": ({"DESCRIBE": 'return "no wind today";'}, "loads", "no wind today"),
    "an observation outside its space": (
        {"SHOW": "if (env == 12) row[1] = 2000;"},
        "spaces",
        r"observation field 'place', environment 12: element \[1\] is 2000.0, outside the declared bounds "
        r"-1000.0 to 1000.0",
    ),
    "a discrete observation outside its space": (
        {"SHOW": "if (env == 3) *phase = 7;"},
        "spaces",
        r"observation field 'phase', environment 3: 7 is outside Discrete\(3\)",
    ),
    "a NaN": (
        {"SHOW": "if (env == 5) row[0] = 0.0 / 0.0;"},
        "spaces",
        r"observation field 'place', environment 5: element \[0\] is NaN",
    ),
    "an infinite reward": (
        {"STEP": "if (env == 4) envs->rewards[env] = 1.0 / 0.0;"},
        "spaces",
        "at step 1, reward, environment 4 is not finite: it is inf",
    ),
    "a flag of 2": (
        {"STEP": "if (env == 6) envs->terminated[env] = 2;"},
        "spaces",
        "terminated, environment 6 must be 0 or 1: it is 2",
    ),
    "a global variable": (
        {"GLOBAL": "static int64_t all;", "STEP": "all++; envs->rewards[env] = (double)all;"},
        "same_seed",
        r"two runs with the same seed differ.*\n.*at step 1, reward, environment 0: \d+.0 instead of 1.0",
    ),
    "a neighbour's memory": (
        {"STEP": "if (env == 5) self[-1].place = 0;"},
        "alone",
        "environment 4 behaves differently among 37 environments than alone.*\n"
        ".*observation field 'place', environment 4, element",
    ),
    "state that outlives reset": (
        {"GLOBAL": "#define shoal_integers(r, a, b) (self->place + 1)"},
        "same_seed",
        "a second run after reset",
    ),
    "the same results for all": (
        {"RESET": "self->place = 5;", "STEP": "self->place = 6;"},
        "other_seed",
        "16 environments with 16 seeds and different actions gave the same results",
    ),
    "a look that changes something": (
        {"EXPORT": "self->place++;"},
        "state",
        "after 0 steps, the state field 'place' of environment 1 differs when it is exported twice",
    ),
    "a look that draws a number": (
        {"EXPORT": "shoal_random64(&envs->rng[env]);"},
        "state",
        "behave differently after their state was exported",
    ),
    "a stable field that changes its shape": (
        {
            "EXPORT": "int64_t both[2] = {1, 2}; if (self->place % 2) place.ndim = 1, place.shape[0] = 2, "
            "place.data = both;"
        },
        "state",
        "the stable state field 'place' moved or changed shape",
    ),
    "a state field without a name": ({"EXPORT": 'place.name = "";'}, "state", "needs a name"),
}


def test_a_plug_in_that_keeps_the_contract_passes_every_check(run_check):
    status, report = run_check()
    assert status == 0, report
    assert [line[:8] for line in report.splitlines()] == ["ok      "] * len(check.CHECKS)


@pytest.mark.parametrize("name", BROKEN)
def test_each_violation_is_found_and_named(name, find_problem):
    changes, failing, message = BROKEN[name]
    problem = find_problem(failing, **changes)
    assert problem is not None and re.search(message, problem), problem


def test_a_failed_check_is_reported_and_the_others_run(run_check):
    status, report = run_check(STEP="if (env == 5) ((char *)self)[sizeof *self] = 1;")
    assert status == 1
    assert (
        "FAILED  It writes every byte of its rows and nothing outside its own memory\n        step of"
        in report
    )
    assert len(re.findall(r"^(ok|FAILED) ", report, re.MULTILINE)) == len(check.CHECKS)


def test_every_environment_is_compared_with_itself_alone_in_its_own_lane(find_problem):
    lanes = {"DESCRIBE": "spec->lanes = 4;"}
    assert find_problem("alone", **lanes) is None
    assert "environment 31 behaves differently among 37 environments than alone" in find_problem(
        "alone", **lanes, STEP="if (env == 30) self[1].place = 0;"
    )


@pytest.mark.parametrize(
    ("code", "failing", "message"),
    [
        (
            "if (row == 5 * AGENTS + 2) envs->rewards[row] = 1.0 / 0.0;",
            "spaces",
            "at step 1, reward, environment 5, agent 2 is not finite",
        ),
        (
            "if (row == 5 * AGENTS) self[-1].step = 9;",
            "alone",
            "at step 2, observation, environment 4, agent 0, element [2]: 2.0 instead of 10.0",
        ),
    ],
)
def test_a_row_of_several_agents_is_named_by_environment_and_agent(code, failing, message, tmp_path):
    line = "envs->truncated[row] = action == 2;"
    text = TEAM.read_text()
    assert line in text
    (tmp_path / "team.c").write_text(text.replace(line, f"{line} {code}"))
    with pytest.raises(CheckFailed) as failed:
        check.CHECKS[failing](prepare_subject(str(tmp_path / "team.c"), {}, []))
    assert message in str(failed.value)


def test_writable_globals_are_a_warning_with_their_names(run_check):
    status, report = run_check(GLOBAL="static int64_t calls;", STEP="calls++;")
    assert status == 0
    assert re.search(
        r"^warning It has writable global variables: calls\n {8}All environments", report, re.MULTILINE
    )


def test_writable_globals_of_cpp_have_their_names_of_the_source(tmp_path):
    source = tmp_path / "counting.cpp"
    source.write_text('static int all;\nextern "C" int count() { static int own; return ++all + ++own; }\n')
    assert writable_globals(build(source)) == ["all", "count::own"]


@pytest.mark.parametrize("env", sorted(bundled()))
def test_every_bundled_environment_passes(env):
    # In this process, because a child for each takes long.
    for one in check.CHECKS.values():
        one(check.Subject(bundled()[env]))


def test_the_template_passes(tmp_path):
    source = new("my_env", tmp_path)[0]
    subject = prepare_subject(str(source), {}, ["-g"])
    for one in check.CHECKS.values():
        one(subject)
