"""`shoal check` passes what keeps the contract and finds each way of breaking it."""

import re
import shutil
from pathlib import Path

import pytest

from shoal import check
from shoal.native.plugin import bundled

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler to build plug-ins"
)

GOOD = """
#include <shoal/ext/state.h>
#include <string.h>
typedef struct Walk { int64_t place; } Walk;
GLOBAL
static const char *describe(const shoal_value *options, shoal_spec *spec) {
    (void)options;
    DESCRIBE
    shoal_field place = {.dtype = SHOAL_FLOAT64, .kind = SHOAL_BOX, .ndim = 1, .low = -1000, .high = 1000};
    place.shape[0] = 2;
    shoal_field move = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = 2};
    spec->instance_bytes = sizeof(Walk);
    spec->max_episode_steps = 40;
    spec->add_observation(spec->host, &place);
    spec->add_action(spec->host, &move);
    return 0;
}
static void show(Walk *self, shoal_envs *envs, uint64_t env) {
    double *row = SHOAL_OBSERVATION(double, envs, 0, env);
    row[0] = (double)self->place;
    row[1] = (double)(self->place % 7);
    SHOW
}
static void reset_one(Walk *self, shoal_envs *envs, uint64_t env) {
    self->place = shoal_integers(&envs->rng[env], -100, 100);
    RESET
    show(self, envs, env);
}
static void step_one(Walk *self, shoal_envs *envs, uint64_t env) {
    self->place += *SHOAL_ACTION(int64_t, envs, 0, env) - 1;
    envs->rewards[env] = 1;
    envs->terminated[env] = self->place % 13 == 0;
    STEP
    show(self, envs, env);
}
SHOAL_BATCH(Walk, reset_one, step_one)
typedef void adder(void *host, const shoal_state_field *field);
static void fields(shoal_envs *envs, uint64_t env, void *host, adder *add) {
    Walk *self = SHOAL_INSTANCE(Walk, envs, env);
    shoal_state_field place = {.name = "place", .dtype = SHOAL_INT64, .data = &self->place};
    place.flags = SHOAL_STATE_STABLE;
    EXPORT
    add(host, &place);
}
static const shoal_state_v1 state = {fields};
static const void *get_extension(const char *id) { return strcmp(id, SHOAL_EXT_STATE) == 0 ? &state : 0; }
const shoal_entry_v1 shoal_entry = {.abi_major = SHOAL_ABI_MAJOR, .abi_minor = SHOAL_ABI_MINOR,
    .name = "Walk-v0", .describe = describe, .reset = Walk_reset, .step = Walk_step,
    .get_extension = get_extension};
"""

BROKEN = {
    "a refusal to describe itself": ({"DESCRIBE": 'return "no wind today";'}, "loads", "no wind today"),
    "an observation outside its space": ({"SHOW": "row[0] = 2000;"}, "Observations lie", "outside Box"),
    "a NaN": ({"SHOW": "row[1] = 0.0 / 0.0;"}, "Observations lie", "NaN"),
    "an infinite reward": ({"STEP": "envs->rewards[env] = 1.0 / 0.0;"}, "rewards are finite", "not finite"),
    "a flag of 2": ({"STEP": "envs->terminated[env] = 2;"}, "Observations lie", "must be 0 or 1"),
    "a global variable": (
        {"GLOBAL": "static int64_t all;", "STEP": "all++; envs->rewards[env] = (double)all;"},
        "The same seed",
        "differ",
    ),
    "a neighbour's memory": (
        {"STEP": "if (env > 0) self[-1].place = 0;"},
        "alone as it does among others",
        "another life",
    ),
    "state that outlives reset": (
        {
            "RESET": "self->place = self->place;",
            "GLOBAL": "#define shoal_integers(r, a, b) (self->place + 1)",
        },
        "The same seed",
        "after reset",
    ),
    "one life for all": (
        {"RESET": "self->place = 5;", "STEP": "self->place = 6;"},
        "same life",
        "one and the same life",
    ),
    "a write before the rows": ({"SHOW": "row[-1] = 1;"}, "none outside them", "outside the rows"),
    "a look that changes something": ({"EXPORT": "self->place++;"}, "looking changes nothing", "asked twice"),
    "a look that draws a number": (
        {"EXPORT": "shoal_random64(&envs->rng[env]);"},
        "looking changes nothing",
        "went another way",
    ),
    "a stable field that changes its shape": (
        {
            "EXPORT": "int64_t both[2] = {1, 2}; if (self->place % 2) place.ndim = 1, place.shape[0] = 2, "
            "place.data = both;"
        },
        "what is stable stays",
        "moved or changed shape",
    ),
    "a state field without a name": ({"EXPORT": 'place.name = "";'}, "looking changes", "needs a name"),
    "a crash": ({"STEP": "*(volatile int *)0 = 1;"}, "Observations lie", "SIGSEGV"),
}


def source(tmp_path, **changes):
    text = GOOD
    for slot in ("GLOBAL", "DESCRIBE", "SHOW", "RESET", "STEP", "EXPORT"):
        text = re.sub(rf"^( *){slot}$", lambda m, s=slot: m[1] + changes.get(s, ""), text, flags=re.MULTILINE)
    path = tmp_path / "walk.c"
    path.write_text(text)
    return str(path)


def test_a_plug_in_that_keeps_the_contract_passes_every_check(tmp_path, capsys):
    assert check.run(source(tmp_path)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(check.CHECKS)
    assert all(line.startswith("ok ") for line in lines)


@pytest.mark.parametrize("name", [name for name, case in BROKEN.items() if case[1]])
def test_each_way_of_breaking_it_is_found(name, tmp_path, capsys):
    changes, sentence, message = BROKEN[name]
    assert check.run(source(tmp_path, **changes)) == 1
    report = capsys.readouterr().out
    assert re.search(rf"FAILED  [^\n]*{sentence}", report), report
    assert message in report


def test_a_byte_that_is_not_written_is_found(tmp_path, capsys):
    path = Path(source(tmp_path))
    path.write_text(path.read_text().replace("    row[1] = (double)(self->place % 7);\n", ""))
    assert check.run(str(path)) == 1
    assert "not written at every step" in capsys.readouterr().out


def test_what_a_plug_in_prints_disturbs_nothing_and_is_shown_with_its_death(tmp_path, capsys):
    noise = 'printf("hello %d\\n", 1); fprintf(stderr, "%0200d\\n", 1);'
    assert check.run(source(tmp_path, GLOBAL="#include <stdio.h>", STEP=noise)) == 0
    capsys.readouterr()
    assert check.run(source(tmp_path, GLOBAL="#include <assert.h>", STEP="assert(self->place > 1000);")) == 1
    report = capsys.readouterr().out
    assert "SIGABRT" in report and "self->place > 1000" in report


def test_an_endless_loop_is_a_failed_check(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(check, "_TIMEOUT_S", 3)
    monkeypatch.setattr(check, "CHECKS", {name: check.CHECKS[name] for name in ("loads", "spaces")})
    assert check.run(source(tmp_path, STEP="for (;;) ;")) == 1
    assert "did not finish in 3 s" in capsys.readouterr().out


def test_source_that_does_not_compile_fails_with_the_compilers_message(tmp_path, capsys):
    assert check.run(source(tmp_path, STEP="this is not C;")) == 1
    report = capsys.readouterr().out
    assert "walk.c" in report and "error:" in report


@pytest.mark.parametrize("env", sorted(bundled()))
def test_every_bundled_environment_passes(env, capsys, monkeypatch):
    # In this process, where a child each would take long: a crash here would be seen as well.
    for name, one in check.CHECKS.items():
        one(env, {})
        assert name


def test_options_reach_the_environment(capsys):
    assert check.run("Squared-v0", {"size": 4}) == 1
    assert "size must be odd" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("named", "said"), [("examples", "give the source file in it, such as"), ("CartPole-v2", "CartPole-v1")]
)
def test_a_name_that_is_none_is_told_so_and_what_there_is(named, said, capfd):
    assert check.run(named) == 2
    assert said in capfd.readouterr().err
