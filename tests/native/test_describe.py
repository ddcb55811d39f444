"""`shoal envs` and `shoal info`: what is printed is what the plug-in declares."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal.cli import main
from shoal.errors import PluginError
from shoal.native.describe import describe_env, format_env, list_envs
from shoal.native.plugin import bundled
from tests.native.conftest import REAL

needs_compiler = pytest.mark.skipif(REAL is None, reason="no C compiler: install gcc or clang")

SOURCE = r"""
#include <shoal/env.h>
#include <shoal/ext/info.h>
#include <string.h>
typedef struct Toy { int64_t x; } Toy;
static const char *describe(const shoal_value *options, shoal_spec *spec) {
    (void)options;
    spec->instance_bytes = sizeof(Toy);
    shoal_field seen = {.dtype = SHOAL_FLOAT32, .ndim = 1, .shape = {2}, .low = 0, .high = 1};
    shoal_field act = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 3, .high = 5};
    spec->add_observation(spec->host, &seen);
    spec->add_action(spec->host, &act);
    return 0;
}
static void reset_one(Toy *self, shoal_envs *envs, uint64_t env) {
    self->x = 0;
    memset(SHOAL_OBSERVATION(float, envs, 0, env), 0, 2 * sizeof(float));
}
static void step_one(Toy *self, shoal_envs *envs, uint64_t env) {
    reset_one(self, envs, env);
    envs->rewards[env] = 0;
    envs->terminated[env] = 0;
}
SHOAL_BATCH(Toy, reset_one, step_one)
INFO
const shoal_entry_v1 shoal_entry = {.abi_major = SHOAL_ABI_MAJOR, .name = "Toy-v0",
    .describe = describe, .reset = Toy_reset, .step = Toy_step, .get_extension = get_extension};
"""
INFO = r"""
static const shoal_info_field SEEN[] = {{"Two numbers.", SHOAL_NAMES("left", "right"), 0, 0}};
static const shoal_info_field ACT[] = {{"A choice.", 0, 0, SHOAL_NAMES("three", "four", "five")}};
static const shoal_info_v1 TEXTS = {"A toy", "None.", "Never.", SEEN, 1, ACT, 1};
static const void *get_extension(const char *id) { return strcmp(id, SHOAL_EXT_INFO) == 0 ? &TEXTS : 0; }
"""


def toy(folder, info):
    source = folder / "toy.c"
    source.write_text(SOURCE.replace("INFO\n", info, 1))
    return source


def test_every_bundled_environment_is_listed_with_one_line(capsys):
    assert main(["envs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(bundled())
    for name, summary in list_envs().items():
        assert 20 <= len(summary) <= 100 and not summary.endswith("."), name
        assert any(line.startswith(name) and line.endswith(summary) for line in lines)


@pytest.mark.parametrize("name", sorted(bundled()))
def test_a_bundled_environment_is_described_in_full(name, capsys):
    assert main(["info", name]) == 0
    printed = capsys.readouterr().out
    env = describe_env(name)
    assert env.summary and env.reward and env.ending and env.abilities
    for field in (*env.observations, *env.actions):
        assert field.text and field.space in printed
    for option, value, text in env.options:
        assert f"{option}={value!r}" in printed and text in printed
    for heading in ("Observation", "Action", "Reward", "End of an episode", "Agents", "Options"):
        assert f"\n{heading}" in printed


@pytest.mark.parametrize("name", sorted(bundled()))
def test_the_description_agrees_with_the_environments_that_are_made(name):
    env = describe_env(name)
    with shoal.make_vec(name, 2) as envs:
        assert envs.num_envs == 2 * env.agents
        space = envs.single_action_space
        for field in env.actions:
            if field.values:
                assert [value for value, _ in field.values] == list(
                    range(int(space.start), int(space.start) + int(space.n))
                )
        spaces = getattr(envs.single_observation_space, "spaces", {None: envs.single_observation_space})
        assert [field.name for field in env.observations] == list(spaces)
        for field in env.observations:
            if field.elements:
                assert len(field.elements) == spaces[field.name].shape[-1]


def test_names_of_elements_are_in_the_order_of_the_observation():
    """The angle of Pendulum is drawn with its velocity: cos, sin, velocity."""
    names = [name for name, _ in describe_env("Pendulum-v1").observations[0].elements]
    assert names == ["cos(angle)", "sin(angle)", "angular velocity, rad/s"]
    with shoal.make_vec("Pendulum-v1", 64) as envs:
        seen, _ = envs.reset(seed=0)
        assert np.allclose(seen[:, 0] ** 2 + seen[:, 1] ** 2, 1, atol=1e-6)


def test_options_change_the_description(capsys):
    assert main(["info", "Squared-v0", "--option", "size=7"]) == 0
    printed = capsys.readouterr().out
    assert "shape (7, 7)" in printed and "size=7" in printed and "time limit is 14 steps" in printed


def test_several_agents_are_described_by_their_rows(capsys):
    assert main(["info", "Snake-v0", "--option", "agents=3"]) == 0
    printed = capsys.readouterr().out
    assert "3 in each environment, so arrays have num_worlds * 3 rows" in printed
    assert "row e * 3 + a" in " ".join(printed.split())


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("cartpole", "Did you mean CartPole-v1?"),
        ("CartPole-v0", "Did you mean CartPole-v1?"),
        ("Reef", "Did you mean Reef-v0?"),
        ("zzz", "There are Acrobot-v1, CartPole-v1,"),
        ("FrozenLake-v1", "Gymnasium has FrozenLake-v1: shoal.make_vec('FrozenLake-v1') runs it"),
    ],
)
def test_an_unknown_name_is_an_error_with_near_matches(asked, answer, capsys):
    assert main(["info", asked]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"shoal info: no bundled environment is called {asked!r}. ")
    assert answer in error and error.count("\n") == 1


def test_an_unknown_option_is_an_error_that_names_the_known_ones(capsys):
    assert main(["info", "Squared-v0", "--option", "edge=7"]) == 1
    assert "Squared-v0 has no option 'edge'; it has ['size']" in capsys.readouterr().err


@needs_compiler
def test_a_c_file_is_described_too(tmp_path, capsys):
    assert main(["info", str(toy(tmp_path, INFO))]) == 0
    printed = capsys.readouterr().out
    assert "Toy-v0\n  A toy.\n" in printed
    assert "0  left\n    1  right" in printed and "3  three\n    4  four\n    5  five" in printed


@needs_compiler
def test_a_plug_in_without_texts_is_described_by_its_fields(tmp_path):
    source = toy(tmp_path, "static const void *get_extension(const char *id) { return id[0] ? 0 : id; }\n")
    printed = format_env(describe_env(source))
    assert "Observation: Box(0 to 1, shape (2,), float32)" in printed
    assert "Reward\n  The plug-in does not describe it." in printed


@needs_compiler
@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            'SHOAL_NAMES("left", "right")',
            'SHOAL_NAMES("left")',
            "has 2 elements in its last dimension, but 1",
        ),
        ('SHOAL_NAMES("three", "four", "five")', 'SHOAL_NAMES("three")', "has 3 values, but 1 names"),
        ("SEEN, 1", "0, 0", "describes 0 observation fields, but describe.. adds 1"),
        ("SEEN, 1", "0, 1", "observations has the count 1 but is NULL"),
        ('"A toy"', "0", "summary must be a text of 1 to 4095 bytes"),
        ('"A toy"', '"\\xff"', "summary must be UTF-8"),
        ('"A choice."', "0", r"actions\[0\].text must be a text"),
        ("ACT, 1}", "ACT, 1ull << 40}", "actions has the count .* at most 4096 fields are allowed"),
    ],
)
def test_texts_that_do_not_fit_the_fields_are_an_error(tmp_path, before, after, message):
    assert before in INFO
    with pytest.raises(PluginError, match=f"Toy-v0: shoal.info/1.*{message}"):
        describe_env(toy(tmp_path, INFO.replace(before, after)))
