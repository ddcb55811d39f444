"""Bad arguments, actions and values raise an exception that says what to do; nothing is stepped or leaked."""

import copy
import os
import pickle
import signal

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, OneOf, Sequence, Text, Tuple

import shoal
from shoal.errors import ForkedError, PluginError
from shoal.vector import ProcessVectorEnv
from tests.vector.test_process_envs import RAISE, Broken, Counter, counters, logged

BAD_ARGUMENTS = [
    ({"num_workers": 0}, ValueError, "num_workers must be from 1 to 4096, got 0"),
    ({"num_workers": -2}, ValueError, "num_workers must be from 1"),
    ({"num_workers": 5000}, ValueError, "num_workers must be from 1 to 4096"),
    ({"num_workers": 1.5}, TypeError, "num_workers must be an int, got float: 1.5"),
    ({"num_workers": True}, TypeError, "num_workers must be an int, got bool"),
    ({"num_workers": "2"}, TypeError, "num_workers must be an int, got str: '2'"),
    ({"on_fault": "retry"}, ValueError, "on_fault must be 'raise' or 'restart', got 'retry'"),
    ({"on_fault": None}, ValueError, "on_fault must be"),
    ({"buffers": "lent"}, ValueError, "buffers must be 'leased', 'live' or 'copy', got 'lent'"),
    ({"check": "speed"}, ValueError, r"check may name \['actions', 'nan'\], got \['speed'\]"),
    ({"check": ["nan", "speed"]}, ValueError, "check may name"),
    ({"step_timeout_s": 0}, ValueError, "step_timeout_s must be more than 0 seconds, got 0"),
    ({"step_timeout_s": -1.5}, ValueError, "step_timeout_s must be more than 0"),
    ({"step_timeout_s": float("nan")}, ValueError, "step_timeout_s must be more than 0"),
    (
        {"reset_timeout_s": "5"},
        TypeError,
        "reset_timeout_s must be a number of seconds or None, got str",
    ),
    ({"reset_timeout_s": True}, TypeError, "reset_timeout_s must be a number"),
    ({"max_slots": 0}, ValueError, "max_slots must be from 1"),
    ({"max_slots": 2.0}, TypeError, "max_slots must be an int"),
    ({"max_length": -1}, ValueError, "max_length must be at least 0, got -1"),
    ({"max_nodes": 1.5}, TypeError, "max_nodes must be an int"),
    (
        {"context": "thread"},
        ValueError,
        "context must be None, 'fork', 'forkserver' or 'spawn'",
    ),
    ({"autoreset_mode": "never"}, ValueError, "autoreset_mode must be one of NEXT_STEP.*got 'never'"),
    ({"session": "no/slash"}, ValueError, "a session's name must have 1 to 64 letters"),
    ({"session": 3}, TypeError, "a session's name must be a str, got int: 3"),
    ({"worker": print}, ValueError, "custom `worker` is not supported"),
]


@pytest.mark.parametrize(("kwargs", "kind", "message"), BAD_ARGUMENTS, ids=lambda one: str(one)[:40])
def test_a_bad_argument_is_named_with_what_it_may_be(kwargs, kind, message):
    with pytest.raises(kind, match=message):
        ProcessVectorEnv(counters(2), **kwargs)


@pytest.mark.parametrize(
    ("env_fns", "kind", "message"),
    [
        (3, TypeError, "env_fns must be a list of functions that make environments, .*got int"),
        (None, TypeError, "got NoneType"),
        (Counter, TypeError, "env_fns must be a list of functions"),
        ([], ValueError, "env_fns must have at least one function"),
        ([Counter, 7], TypeError, r"env_fns\[1\] must be a function that makes an environment, .*got 7"),
        ([Counter()], TypeError, r"env_fns\[0\] must be a function .*such as lambda: gymnasium.make"),
        ("CartPole-v1", TypeError, r"env_fns\[0\] must be a function that makes an environment, .*got 'C'"),
    ],
    ids=["int", "None", "a class", "empty", "an int in it", "an environment", "an id"],
)
def test_bad_functions_are_named(env_fns, kind, message):
    with pytest.raises(kind, match=message):
        ProcessVectorEnv(env_fns)


def test_functions_may_come_from_any_iterable():
    with ProcessVectorEnv(maker for maker in counters(3)) as envs:
        assert envs.num_envs == 3 and envs.reset()[0][:, 0].tolist() == [0, 1, 2]


def test_more_workers_than_environments_are_not_started():
    with ProcessVectorEnv(counters(2), num_workers=7) as envs:
        assert envs.num_workers == len(set(envs.worker_pids)) == 2


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (("FrozenLake-v1", 0), ValueError, "num_envs must be from 1"),
        (("FrozenLake-v1", 2.0), TypeError, "num_envs must be an int"),
        ((["FrozenLake-v1"],), TypeError, "env must be an id, a path, an EnvSpec or a function, got list"),
        (("Nope-v0",), PluginError, "no environment 'Nope-v0': Gymnasium says"),
    ],
    ids=str,
)
def test_make_vec_names_what_is_wrong(arguments, kind, message):
    with pytest.raises(kind, match=message):
        shoal.make_vec(*arguments)


@pytest.mark.parametrize(
    ("kwargs", "kind", "message"),
    [
        ({"num_threads": 2}, TypeError, "num_threads is not for environments in Python; use num_workers"),
        ({"backend": "native"}, PluginError, "is not an environment in C"),
        ({"backend": "thread"}, ValueError, "backend must be 'native' or 'process'"),
        ({"max_episode_steps": 0}, ValueError, "max_episode_steps must be from 1"),
        ({"nonsense": 1}, TypeError, "nonsense"),
    ],
    ids=str,
)
def test_make_vec_of_a_python_environment_refuses_what_is_not_for_it(kwargs, kind, message):
    with pytest.raises(kind, match=message):
        shoal.make_vec("FrozenLake-v1", 2, **kwargs)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {"num_threads": 2, "backend": "process"},
            "num_threads is not for worker processes; use num_workers",
        ),
        ({"render_mode": "human", "backend": "process"}, "render_mode must be None or 'rgb_array'"),
        ({"num_workers": 2}, "num_workers is for worker processes; use backend='process'"),
        ({"on_fault": "restart"}, "on_fault is for worker processes"),
        ({"caller_steps": True, "backend": "process"}, "caller_steps is for Python environments"),
    ],
    ids=str,
)
def test_make_vec_of_a_c_environment_refuses_what_is_not_for_its_backend(kwargs, message):
    with pytest.raises((TypeError, ValueError), match=message):
        shoal.make_vec("CartPole-v1", 2, **kwargs)


def test_render_mode_with_a_function_raises():
    with pytest.raises(
        TypeError, match="max_episode_steps, render_mode cannot be given together with a function"
    ):
        shoal.make_vec(Counter, 2, max_episode_steps=3, render_mode="human")
    with shoal.make_vec(Counter, 2, who=5) as envs:  # other keywords are its own
        assert envs.get_attr("who") == (5, 5)


# -- values -------------------------------------------------------------------------------------------


class Poisoned(Counter):
    """Gives NaN where its action says."""

    observation_space = Dict(a=Box(-np.inf, np.inf, (2, 2)), b=Tuple((Discrete(3), Box(-np.inf, np.inf, ()))))

    def reset(self, *, seed=None, options=None):
        return self._with(0), {}

    def _with(self, action):
        whole = np.array([[np.inf, -np.inf], [0, 65504]], np.float32)
        if action == 1:
            whole[1, 0] = np.nan
        return {"a": whole, "b": (1, np.float32(np.nan if action == 2 else np.inf))}

    def step(self, action):
        return self._with(action), float("nan") if action == 3 else float("inf"), False, False, {}


def test_nan_is_found_and_infinity_is_allowed():
    with ProcessVectorEnv([Poisoned] * 3, num_workers=2, check="nan") as envs:
        envs.reset()
        envs.step([0, 0, 0])
        for actions, message in {
            (0, 1, 0): r"observation\['a'\] of environment 1 is NaN at \(1, 0\)",
            (0, 0, 2): r"observation\['b'\]\[1\] of environment 2 is NaN",
            (3, 0, 0): "reward of environment 0 is NaN",
        }.items():
            with pytest.raises(ValueError, match=message):
                envs.step(list(actions))
        envs.step([0, 0, 0])
    with ProcessVectorEnv([Poisoned] * 3, num_workers=2) as envs:  # nobody asked
        envs.reset()
        assert np.isnan(envs.step([1, 2, 3])[0]["a"]).any()


@pytest.mark.parametrize(
    "space", [Sequence(Box(-1, 1, (2,))), OneOf((Discrete(2), Box(-1, 1, ())))], ids=repr
)
def test_nan_is_found_in_spaces_without_arrays(space):
    class Bad(Counter):
        observation_space = space

        def reset(self, *, seed=None, options=None):
            return self._with(0.5), {}

        def _with(self, value):
            value = np.array(value, np.float32)
            return (value.repeat(2),) * 3 if isinstance(space, Sequence) else (1, value)

        def step(self, action):
            return self._with(np.nan if action else 0.5), 0.0, False, False, {}

    for bound in ({"max_length": 3}, {}):
        with ProcessVectorEnv([Bad] * 3, num_workers=2, check="nan", **bound) as envs:
            envs.reset()
            envs.step([0, 0, 0])
            with pytest.raises(ValueError, match="observation of environment 1 is NaN"):
                envs.step([0, 1, 1])


def test_nan_does_not_hide_an_exception_of_an_environment():
    class Bad(Counter):
        def step(self, action):
            seen, *rest = super().step(action)
            return seen * np.nan, *rest

    with ProcessVectorEnv([Bad] * 2, num_workers=2, check="nan") as envs:
        envs.reset()
        with logged(), pytest.raises(Broken):
            envs.step([0, RAISE])


def test_nan_is_found_in_rollouts_and_batches_too():
    class Bad(Counter):
        def step(self, action):
            seen, *rest = super().step(0)
            return (seen * np.nan if action else seen), *rest

    with ProcessVectorEnv([Bad] * 3, num_workers=2, check="nan") as envs:
        rollout = envs.rollout(2)
        rollout.start(envs.reset()[0])
        rollout.step([0, 0, 0])
        with pytest.raises(ValueError, match=r"observation of environment 2 is NaN at \(0,\)"):
            rollout.step([0, 0, 1])
    with ProcessVectorEnv([Bad] * 4, num_workers=2, batch_size=2, check="nan") as envs:
        envs.async_reset()
        envs.recv([0, 1])
        envs.recv([2, 3])
        envs.send([0, 0, 1, 0], range(4))
        with pytest.raises(ValueError, match=r"observation of environment 2 is NaN at \(0,\)"):
            envs.recv([3, 2])


OUTSIDE = {
    "Discrete": (Discrete(3, start=-1), [0, -1, 1], [0, 2, 0], "2"),
    "below": (Discrete(3, start=-1), [0, -1, 1], [0, -2, 0], "-2"),
    "MultiDiscrete": (MultiDiscrete([2, 5]), [[0, 4]] * 3, [[0, 4], [0, 5], [0, 0]], r"\[0, 5\]"),
    "MultiBinary": (MultiBinary(2), [[0, 1]] * 3, [[0, 1], [2, 0], [0, 0]], r"\[2, 0\]"),
    "Box": (Box(-1, 1, (1,)), [[0.5]] * 3, np.array([[0.5], [1.5], [0]], np.float32), "1.5"),
    "NaN": (Box(-1, 1, (1,)), np.zeros((3, 1)), np.array([[0], [np.nan], [0]], np.float32), "nan"),
    "Dict": (Dict(a=Discrete(2)), {"a": np.array([0, 1, 0])}, {"a": np.array([0, 2, 0])}, "2"),
    "Text": (Text(2, charset="ab"), ("a", "b", "ab"), ("a", "c", "a"), "c"),
    "Sequence": (Sequence(Discrete(2)), ((0,), (1, 1), ()), ((0,), (2,), ()), "2"),
}  # fmt: skip


@pytest.mark.parametrize("case", OUTSIDE)
def test_check_actions_names_the_bad_action_and_steps_nothing(case):
    space, good, bad, shown = OUTSIDE[case]

    class Own(Counter):
        action_space = space

        def step(self, action):
            return super().step(0)

    with ProcessVectorEnv([Own] * 3, num_workers=2, check=["actions"]) as envs:
        envs.reset()
        assert envs.step(good)[1].tolist() == [1, 1, 1]
        with pytest.raises(ValueError, match=f"{shown}.* of environment 1 is not in .*; nothing was stepped"):
            envs.step(bad)
        assert envs.get_attr("count") == (1, 1, 1)
    with ProcessVectorEnv([Own] * 3, num_workers=2) as envs:  # without it, the environment is the judge
        envs.reset()
        assert envs.step(bad)[1].tolist() == [1, 1, 1]


def test_check_actions_covers_the_buffer_and_send():
    with ProcessVectorEnv(counters(3), num_workers=2, check="actions") as envs:
        envs.reset()
        envs.actions[:] = [0, 0, 77]
        with pytest.raises(ValueError, match="action 77 of environment 2 is not in"):
            envs.step()
        assert envs.get_attr("count") == (0, 0, 0)
        envs.actions[2] = 1
        assert envs.step()[1].tolist() == [1, 1, 1]
    with ProcessVectorEnv(counters(4), num_workers=2, check="actions", batch_size=2) as envs:
        envs.async_reset()
        envs.recv([0, 1])
        envs.recv([2, 3])
        with pytest.raises(ValueError, match="action 77 of environment 3 is not in"):
            envs.send([0, 77], [2, 3])
        envs.send([0, 1], [2, 3])
        assert envs.recv([2, 3])[1].tolist() == [1, 1]


def test_dict_actions_of_other_types_reach_the_environment_unchanged():
    class Own(Counter):
        action_space = Dict(a=Discrete(9), b=Box(0, 255, (1,), np.uint8))

        def step(self, action):
            *rest, _ = super().step(0)
            return *rest, {"a": float(action["a"]), "b": float(action["b"][0]), "length": len(action["b"])}

    with ProcessVectorEnv([Own] * 2, num_workers=2) as envs:
        envs.reset()
        whole = np.array([[3], [4]], np.uint8)
        for a, b in (([1.5, 2], whole), ([1, 2], whole.astype(np.int64) + 300), ([1, 2], whole - 3.5)):
            info = envs.step({"a": np.array(a), "b": b})[4]
            assert info["a"].tolist() == a and info["b"].tolist() == b[:, 0].tolist()
        assert envs.step({"a": [1, 2], "b": [[1], [2, 3]]})[4]["length"].tolist() == [1, 2]  # of two shapes


# -- this object --------------------------------------------------------------------------------------


def test_environments_are_not_pickled_or_copied():
    with ProcessVectorEnv(counters(1)) as envs:
        for call in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot be pickled.*make them where they are used"):
                call(envs)


def test_a_forked_child_gets_an_error_and_the_parent_goes_on():
    with ProcessVectorEnv(counters(2), num_workers=2) as envs:
        envs.reset(seed=0)
        child = os.fork()
        if child == 0:
            code = 0
            try:
                signal.alarm(20)
                for call in (lambda: envs.step([0, 0]), envs.reset, lambda: envs.get_attr("who")):
                    try:
                        call()
                        code = 1
                    except ForkedError:
                        pass
                envs.close()  # and this ends nobody else's workers
            except BaseException:
                code = 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert envs.step([0, 0])[1].tolist() == [1, 1]


def test_a_misspelt_keyword_that_the_environment_refuses_is_named():
    with pytest.raises(TypeError, match=r"num_wrokers.*did you mean the argument 'num_workers'\?"):
        shoal.make_vec("FrozenLake-v1", 2, num_wrokers=2)
    with pytest.raises(TypeError, match=r"takes no arguments; did you mean the argument 'num_workers'\?"):
        shoal.make_vec(type("Bare", (gymnasium.Env,), {}), 2, num_worker=2)
    with pytest.raises(TypeError, match="'sizzle'") as caught:
        shoal.make_vec("FrozenLake-v1", 2, sizzle=2)
    assert "did you mean" not in str(caught.value)
