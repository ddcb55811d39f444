"""`shoal check` finds and names each way in which shoal.observe/1 can break its contract."""

import re

import pytest

from shoal import check
from shoal.check.subject import CheckFailed, prepare_subject
from tests.check.conftest import needs_compiler

pytestmark = needs_compiler

SHOW = "show(self, envs, env);"
# What is done -> (the code, what is said of it).
BROKEN = {
    "the state changes before it is shown": (
        {"OBSERVE": "if (env == 5) self->place++;"},
        r"after reset, observe\(0, 37\) changed its struct, environment 5: observe must write obs",
    ),
    "the state changes after it was shown": (
        {"OBSERVE": f"{SHOW} if (env == 5) self->place++; return;"},
        r"after reset, observe\(0, 37\) changed its struct, environment 5",
    ),
    "the state of a block of lanes changes": (
        {"DESCRIBE": "spec->lanes = 4;", "OBSERVE": "if (env == 6) self->place++;"},
        r"after reset, observe\(0, 37\) changed its struct, environments 4 to 7",
    ),
    "a random number is drawn": (
        {"OBSERVE": "if (env == 9) shoal_random64(&envs->rng[env]);"},
        r"after reset, observe\(0, 37\) changed its generator \(rng\), environment 9",
    ),
    "a field is left out": (
        {
            "OBSERVE": "if (env == 3) { double *row = SHOAL_OBSERVATION(double, envs, 0, env); "
            "row[0] = (double)self->place; row[1] = (double)(self->place % 7); return; }"
        },
        r"after reset, observe\(0, 37\) does not write its whole row: observation field 'phase', "
        "environment 3, element 0 of 1 keeps its old value",
    ),
    "an element is left out": (
        {
            "OBSERVE": "double *row = SHOAL_OBSERVATION(double, envs, 0, env), kept = row[1]; "
            f"{SHOW} row[1] = kept; return;"
        },
        r"does not write its whole row: observation field 'place', environment 0, element 1 of 2 keeps",
    ),
    "the bytes are others after an episode ended": (
        {
            "OBSERVE": f"{SHOW} if (env == 8 && self->place % 13 == 0) "
            "*SHOAL_OBSERVATION(double, envs, 0, env) = 500; return;"
        },
        r"at step \d+, observe\(0, 37\) wrote different bytes from the last step or reset: observation field "
        r"'place', environment 8, element 0 of 2 is 500.0 instead of -?\d+.0; keep in the struct",
    ),
    "the last action is shown and not in the struct": (
        {"SHOW": "*phase = *SHOAL_ACTION(int64_t, envs, 0, env);"},
        r"observe\(0, 37\) wrote different bytes from the last step or reset: observation field 'phase'",
    ),
    "the flag of a reset is shown and not in the struct": (
        {"SHOW": "if (envs->reset[env]) row[1] = 9;"},
        r"observe\(0, 37\) wrote different bytes from the last step or reset: observation field 'place'",
    ),
    "another environment's row": (
        {"OBSERVE": "if (env == 11) *SHOAL_OBSERVATION(int64_t, envs, 1, env + 1) = 1;"},
        r"after reset, observe\(11, 12\) wrote outside its range: observation field 'phase', environment 12",
    ),
    "a whole range whatever it is asked for": (
        {
            "OBSERVE": "for (uint64_t i = 0; i < envs->num_envs; i++) "
            "show(SHOAL_INSTANCE(Walk, envs, i), envs, i);"
        },
        r"after reset, observe\(1, 36\) wrote outside its range: observation field 'place', environment 0",
    ),
    "a row past the last": (
        {"OBSERVE": "if (env == 36) SHOAL_OBSERVATION(double, envs, 0, env)[2] = 1;"},
        r"after reset, observe\(0, 37\) wrote \d bytes outside observation field 'place'; the first is byte",
    ),
    "a reward": (
        {"OBSERVE": "if (env == 2) envs->rewards[env] = 1;"},
        r"after reset, observe\(0, 37\) changed reward, environment 2",
    ),
    "a flag": (
        {"OBSERVE": "if (env == 2) envs->terminated[env] = 0;"},
        r"after reset, observe\(0, 37\) changed terminated, environment 2",
    ),
    "an action": (
        {"OBSERVE": "if (env == 2) *(int64_t *)SHOAL_ACTION(int64_t, envs, 0, env) = 7;"},
        r"after reset, observe\(0, 37\) changed action, environment 2",
    ),
    "the host's table": (
        {"OBSERVE": "envs->num_envs = 1;"},
        r"after reset, observe of environments 0 to 36 changed \*envs, which belongs to the host",
    ),
    "memory outside the struct": (
        {
            "GLOBAL": "static const void *seen;",
            "OBSERVE": "if (env == 7) seen = envs->instances;",
            "STEP": "if (env == 7 && seen == envs->instances) envs->rewards[env] = 2;",
        },
        r"environments that were observed behave differently from the same ones that were not.*\n"
        "the first difference: at step 1, reward, environment 7: 2.0 instead of 1.0",
    ),
}

# Batch functions that keep apart a reset on its own and one in a step.
RESET_APART = """
SHOAL_BATCH(Walk, reset_one, step_one)
static void count_step(shoal_envs *envs, uint64_t begin, uint64_t end) {
    Walk_step(envs, begin, end);
    for (uint64_t env = begin; env < end; env++)
        SHOAL_INSTANCE(Walk, envs, env)->steps++, SHOAL_INSTANCE(Walk, envs, env)->is_fresh = 0;
}
static void reset_late(shoal_envs *envs, uint64_t begin, uint64_t end) {
    Walk_reset(envs, begin, end);
    for (uint64_t env = begin; env < end; env++)
        SHOAL_INSTANCE(Walk, envs, env)->is_fresh = SHOAL_INSTANCE(Walk, envs, env)->steps > 0;
}
#define Walk_step count_step
#define Walk_reset reset_late
"""


@pytest.mark.parametrize("name", BROKEN)
def test_each_way_of_breaking_observe_is_found_and_named(name, find_problem):
    changes, message = BROKEN[name]
    problem = find_problem("observe", **changes)
    assert problem is not None and re.search(message, problem), problem


@pytest.mark.parametrize("lanes", [1, 4, 64])
def test_a_good_observe_passes_however_many_lanes_there_are(lanes, find_problem):
    assert find_problem("observe", DESCRIBE=f"spec->lanes = {lanes};") is None


def test_a_plug_in_without_the_ability_passes(write_walk):
    path = write_walk(OBSERVE="self->place++;")
    text = path.read_text()
    assert text.count("return &observer;") == 1
    path.write_text(text.replace("return &observer;", "return 0;"))
    check.CHECKS["observe"](prepare_subject(str(path), {}, []))


def test_a_direct_reset_in_the_middle_of_a_run_is_observed_too(write_walk):
    # Only Walk_reset, which resets without a step, leaves this in the struct.
    path = write_walk(OBSERVE="if (self->is_fresh) self->place++;")
    text = path.read_text()
    for line, instead in (
        ("    int64_t place;\n", "    int64_t place, is_fresh, steps;\n"),
        ("SHOAL_BATCH(Walk, reset_one, step_one)", RESET_APART),
    ):
        assert text.count(line) == 1
        text = text.replace(line, instead)
    path.write_text(text)
    with pytest.raises(CheckFailed, match=r"at step 16, after a reset of environments \d+ to \d+, observe"):
        check.CHECKS["observe"](prepare_subject(str(path), {}, []))
