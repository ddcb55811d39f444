"""Bad input never reaches C: it raises an exception that says what to do, and the environments still work."""

import copy
import os
import pickle
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import shoal
from shoal.errors import ClosedError, ForkedError, NoRoomError, PluginError
from shoal.vector import arguments

BAD_ACTIONS = {
    "too short": (np.zeros(3, np.int64), ValueError, r"expected shape \(4,\), found \(3,\)"),
    "too long": (np.zeros(5, np.int64), ValueError, r"found \(5,\)"),
    "empty": ([], ValueError, r"found \(0,\)"),
    "scalar": (1, ValueError, r"found \(\)"),
    "0-d": (np.array(1), ValueError, r"found \(\)"),
    "two dimensions": (np.zeros((4, 1), np.int64), ValueError, r"found \(4, 1\)"),
    "floats": (np.zeros(4), TypeError, "expected dtype int64, found float64, which could lose precision"),
    "fractions": ([0.9, 0, 0, 0], TypeError, "expected dtype int64, found float64"),
    "complex": (np.zeros(4, complex), TypeError, "found complex128, which is not a type of real numbers"),
    "text": (["a", "b", "c", "d"], TypeError, "found <U1, which is not a type of real numbers"),
    "objects": ([None, 0, 0, 0], TypeError, "found object, which is not a type of real numbers"),
    "ragged": ([[0], [0, 1], 0, 0], ValueError, "expected an array"),
    "a dict": ({"a": 1}, ValueError, r"found \(\) of type dict"),
    "too large": ([0, 0, 2, 0], ValueError, "action 2 of row 2 is not in Discrete.2.; nothing was stepped"),
    "negative": ([0, -1, 0, 0], ValueError, "action -1 of row 1"),
    "huge": (np.array([0, 0, 0, 99]), ValueError, "action 99 of row 3"),
    "beyond int64": (np.array([0, 0, 0, 2**63], np.uint64), ValueError, "does not fit dtype int64"),
}


@pytest.mark.parametrize("case", BAD_ACTIONS)
def test_bad_actions_raise_and_step_nothing(case):
    actions, kind, message = BAD_ACTIONS[case]
    envs, other = shoal.make_vec("CartPole-v1", 4), shoal.make_vec("CartPole-v1", 4)
    envs.reset(seed=0)
    other.reset(seed=0)
    with pytest.raises(kind, match=message):
        envs.step(actions)
    assert np.array_equal(envs.step([1, 0, 1, 0])[0], other.step([1, 0, 1, 0])[0])


@pytest.mark.parametrize(
    "actions",
    [
        [0, 1, 0, 1],
        (0, 1, 0, 1),
        np.array([0, 1, 0, 1], np.int8),
        np.array([0, 1, 0, 1], np.uint64),
        np.array([0, 1, 0, 1], ">i8"),
        np.array([0, 9, 1, 9, 0, 9, 1, 9])[::2],
        np.array([False, True, False, True]),
        np.ma.array([0, 1, 0, 1]),
        np.frombuffer(bytes(1) + np.array([0, 1, 0, 1]).tobytes(), np.int64, offset=1),
        memoryview(np.array([0, 1, 0, 1])),
    ],
    ids=lambda one: f"{type(one).__name__}, {getattr(one, 'dtype', 'plain')}",
)
def test_actions_that_lose_nothing_by_conversion_are_taken(actions):
    envs, other = shoal.make_vec("CartPole-v1", 4), shoal.make_vec("CartPole-v1", 4)
    envs.reset(seed=0)
    other.reset(seed=0)
    expected = other.step(np.array([0, 1, 0, 1]))[0]
    assert np.array_equal(envs.step(actions)[0], expected)


def test_rejected_actions_do_not_change_the_buffer():
    envs = shoal.make_vec("CartPole-v1", 5)
    envs.reset(seed=0)
    envs.actions[:] = 1
    with pytest.raises(ValueError, match=r"expected shape \(5,\), found \(\) of type NoneType"):
        envs.step(None)
    with pytest.raises(ValueError, match="action -1 of row 3"):
        envs.step([0, 0, 0, -1, 0])
    assert envs.actions.tolist() == [1] * 5


def test_step_takes_actions_by_position_by_name_or_from_the_buffer():
    envs = shoal.make_vec("CartPole-v1", 2)
    envs.reset(seed=0)
    for positional, named in (
        ((0, 1), {}),
        ((0,), {"actions": 1}),
        ((), {"action": 1}),
        ((), {"a": 1, "b": 2}),
    ):
        with pytest.raises(TypeError, match="step takes the actions"):
            envs.step(*positional, **named)
    first = envs.step(actions=np.array([1, 1]))[0].copy()
    envs.reset(seed=0)
    envs.actions[:] = 1
    assert np.array_equal(envs.step()[0], first)


def test_environments_are_not_pickled_or_copied():
    envs = shoal.make_vec("CartPole-v1", 2)
    for call in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="Pass the arguments of make_vec instead"):
            call(envs)


def test_daemon_threads_that_step_do_not_disturb_program_exit():
    script = """
import threading, time, shoal, numpy as np
envs = shoal.make_vec("CartPole-v1", 65536, num_threads=1)
envs.reset(seed=0)
actions = np.zeros(65536, np.int64)
flow = shoal.make_vec("Squared-v0", 8, batch_size=4)
flow.async_reset(seed=0)
def step():
    while True:
        envs.step(actions)
def receive():
    while True:
        flow.send(np.zeros(4, np.int64), flow.recv()[4]["env_id"])
for work in (step, receive):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_action_buffer_is_checked_too():
    envs = shoal.make_vec("CartPole-v1", 4)
    envs.reset(seed=0)
    envs.actions[2] = 7
    with pytest.raises(ValueError, match="action 7 of row 2"):
        envs.step()
    envs.actions[2] = 1
    envs.step()


@settings(max_examples=300, deadline=None)
@given(
    actions=st.one_of(
        hnp.arrays(
            dtype=st.one_of(hnp.integer_dtypes(), hnp.floating_dtypes(), hnp.boolean_dtypes()),
            shape=hnp.array_shapes(min_dims=0, max_dims=3, max_side=6),
        ),
        st.recursive(
            st.one_of(st.integers(), st.floats(), st.text(max_size=2), st.none(), st.binary(max_size=8)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=2), inner, max_size=2)
            ),
            max_leaves=8,
        ),
    )
)
def test_any_object_as_actions_steps_or_raises_and_the_environments_go_on(four, actions):
    try:
        four.step(actions)
    except (ValueError, TypeError, OverflowError):
        pass
    assert np.isfinite(four.step(np.ones(4, np.int64))[0]).all()


@pytest.fixture(scope="module")
def four():
    with shoal.make_vec("CartPole-v1", 4) as envs:
        envs.reset(seed=0)
        yield envs


@pytest.mark.parametrize(
    ("kwargs", "kind", "message"),
    [
        ({"num_envs": 0}, ValueError, "num_envs must be from 1"),
        ({"num_envs": -3}, ValueError, "num_envs must be from 1"),
        ({"num_envs": 2.0}, TypeError, "num_envs must be an int"),
        ({"num_envs": True}, TypeError, "num_envs must be an int"),
        ({"num_envs": "8"}, TypeError, "num_envs must be an int"),
        ({"num_threads": 0}, ValueError, "num_threads must be from 1"),
        ({"num_threads": 10**6}, ValueError, "num_threads must be from 1 to 4096"),
        ({"buffers": "lent"}, ValueError, "'leased', 'live' or 'copy'"),
        ({"autoreset_mode": "never"}, ValueError, "never"),
        ({"max_episode_steps": 0}, ValueError, "max_episode_steps must be from 1"),
        ({"check": ["speed"]}, ValueError, r"check may name \['actions', 'nan'\]"),
        ({"render_mode": "human"}, ValueError, "must be None or 'rgb_array' .* 'human'; `shoal watch`"),
        ({"render_mode": "rgb"}, ValueError, "must be None or 'rgb_array' for CartPole-v1, got 'rgb'$"),
        ({"render_mode": 3}, ValueError, "must be None or 'rgb_array' for CartPole-v1, got 3$"),
        ({"max_slots": 0}, ValueError, "max_slots must be from 1"),
        ({"bufers": "live"}, TypeError, "did you mean the argument 'buffers'"),
        ({"colour": 3}, TypeError, "CartPole-v1 has no option 'colour'; it has"),
    ],
    ids=str,
)
def test_a_bad_argument_is_named(kwargs, kind, message):
    with pytest.raises(kind, match=message):
        shoal.make_vec("CartPole-v1", **{"num_envs": 2, **kwargs})


BLANK = """
#include <shoal/env.h>
static const char *describe(const shoal_value *options, shoal_spec *spec) {
    (void)options;
    shoal_field one = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = 1};
    spec->instance_bytes = 8;
    spec->add_observation(spec->host, &one);
    spec->add_action(spec->host, &one);
    return 0;
}
static void nothing(shoal_envs *envs, uint64_t begin, uint64_t end) { (void)envs, (void)begin, (void)end; }
const shoal_entry_v1 shoal_entry = {.abi_major = SHOAL_ABI_MAJOR, .abi_minor = SHOAL_ABI_MINOR,
    .name = "NAME", .describe = describe, .reset = nothing, .step = nothing};
"""


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("FrozenLake-v1", "; Gymnasium's own version can: pass a function .* lambda: gymnasium.make"),
        ("Mine-v0", ""),
    ],
)
def test_advice_on_drawing_is_given_only_where_it_helps(name, advice, tmp_path):
    source = tmp_path / "blank.c"
    source.write_text(BLANK.replace("NAME", name))
    with shoal.make_vec(source, 2) as envs:
        assert envs.metadata["render_modes"] == [] and "render_fps" not in envs.metadata
        with pytest.raises(ValueError, match=f"^{name} in C cannot be drawn{advice}"):
            envs.render()
    with pytest.raises(ValueError, match=f"must be None for {name}, got 'rgb_array'; {name} in C cannot"):
        shoal.make_vec(source, 2, render_mode="rgb_array")


def test_render_without_a_mode_says_which_to_pass():
    with shoal.make_vec("Snake-v0", 2) as envs, pytest.raises(ValueError, match="render needs render_mode"):
        envs.render()


def test_absurdly_many_environments_are_refused_before_anything_is_allocated():
    with pytest.raises((NoRoomError, ValueError)):
        shoal.make_vec("CartPole-v1", 2 * 10**9)
    with pytest.raises((NoRoomError, ValueError)):
        shoal.make_vec("CartPole-v1", 10**30)


def test_memory_error_of_a_batched_space_names_gymnasium(monkeypatch):
    def full(space, rows):
        raise MemoryError("no room")

    monkeypatch.setattr(arguments, "batch_space", full)
    with pytest.raises(MemoryError, match="Gymnasium's batched space of 4 x .* use fewer environments"):
        shoal.make_vec("CartPole-v1", 4)


def test_an_unknown_environment_names_the_known_ones():
    with pytest.raises(PluginError, match="Bundled with Shoal are .*CartPole-v1"):
        shoal.make_vec("Nope-v0")


def test_use_after_close_is_an_error_and_close_is_idempotent():
    envs = shoal.make_vec("CartPole-v1", 4)
    envs.reset(seed=0)
    envs.close()
    envs.close()
    for call in (lambda: envs.step([0] * 4), envs.reset, lambda: envs.save_env(0), lambda: envs.stats):
        with pytest.raises(ClosedError):
            call()


def test_a_context_manager_closes():
    with shoal.make_vec("CartPole-v1", 4) as envs:
        envs.reset(seed=0)
    assert envs.closed


@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_child_gets_an_error_and_the_parent_goes_on(threads):
    envs = shoal.make_vec("CartPole-v1", 256, num_threads=threads)
    envs.reset(seed=0)
    actions = np.zeros(256, np.int64)
    envs.step(actions)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(20)
            for call in (lambda: envs.step(actions), envs.reset):
                try:
                    call()
                except ForkedError:
                    code = 0
                else:
                    code = 2
            envs.close()
            del envs
            again = shoal.make_vec("CartPole-v1", 256, num_threads=threads)
            again.reset(seed=0)
            again.step(actions)
        except BaseException:
            code = 3
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    envs.step(actions)


@pytest.mark.parametrize("env_id", [-1, 4, 10**9])
def test_an_environment_id_out_of_range_is_an_index_error(env_id):
    envs = shoal.make_vec("CartPole-v1", 4)
    envs.reset(seed=0)
    for call in (envs.save_env, envs.render_env, lambda i: envs.restore_env(i, b"")):
        with pytest.raises(IndexError, match="out of range for 4 environments"):
            call(env_id)
