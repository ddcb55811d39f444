"""Environments of one worker that share objects, and environments that keep or change their arguments."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Sequence

from shoal.vector import ProcessVectorEnv
from tests.vector.test_process_envs import END, Counter, Words, assert_same

MODES = [{"num_workers": 1}, {"num_workers": 2}, {"num_workers": 1, "caller_steps": True}]
ids = pytest.mark.parametrize("division", MODES, ids=["one worker", "two", "one and the caller"])


def makers(kind, number=4):
    return [lambda who=who: kind(who) for who in range(number)]


@ids
def test_environments_that_share_an_info_dict_keep_their_own_values(division):
    class Shared(Counter):
        info = {"who": -1, "list": [0], "nested": {"count": -1}, "array": np.zeros(2, np.int64)}

        def step(self, action):
            *rest, _ = super().step(action)
            self.info["who"], self.info["list"][0] = self.who, self.count
            self.info["nested"]["count"] = self.who * 10 + self.count
            self.info["array"][:] = self.who, self.count
            return *rest, self.info

    with ProcessVectorEnv(makers(Shared), **division) as envs:
        envs.reset()
        kept = [envs.step([0] * 4)[4] for _ in range(3)]
    for count, info in enumerate(kept, 1):
        assert info["who"].tolist() == [0, 1, 2, 3]
        assert [one[0] for one in info["list"]] == [count] * 4
        assert info["nested"]["count"].tolist() == [count, 10 + count, 20 + count, 30 + count]
        assert info["array"].tolist() == [[who, count] for who in range(4)]


@ids
@pytest.mark.parametrize("by_message", [False, True])
def test_environments_that_share_an_observation_keep_their_own_values(division, by_message):
    class Shared(Counter):
        observation_space = Dict(seen=Words() if by_message else Box(-1e6, 1e6, (3,)))
        seen = {"seen": [0, 0, 0] if by_message else np.zeros(3, np.float32)}

        def _seen(self):
            self.seen["seen"][:] = [self.who, self.episode, self.count]
            return self.seen

    with ProcessVectorEnv(makers(Shared), shared_memory=not by_message, **division) as envs:
        envs.reset()
        kept = [envs.step([0] * 4)[0]["seen"] for _ in range(3)]
    for count, seen in enumerate(kept, 1):
        assert [list(map(int, one)) for one in seen] == [[who, 1, count] for who in range(4)]


ACTIONS = {
    "array": (Box(0, 99, (2,), np.int64), lambda t: np.full((4, 2), t)),
    "other floats": (Box(0, 99, (2,)), lambda t: np.full((4, 2), t, np.float64)),
    "scalars": (MultiDiscrete([99, 99]), lambda t: [[t, t]] * 4),
    "fields": (Dict(a=Box(0, 99, (2,), np.int64)), lambda t: {"a": np.full((4, 2), t)}),
    "messages": (Sequence(Box(0, 99, (2,), np.int64)), lambda t: tuple((np.full(2, t),) for _ in range(4))),
}


@ids
@pytest.mark.parametrize("case", ACTIONS)
def test_action_that_an_environment_keeps_never_changes(case, division):
    space, make = ACTIONS[case]

    class Keeping(Counter):
        action_space = space

        def step(self, action):
            vars(self).setdefault("kept", []).append(action)
            return super().step(0)

        def sums(self):
            return [int(np.sum(flat(one))) for one in self.kept]

        def spoil(self):
            for one in self.kept:
                if isinstance(flat(one), np.ndarray):
                    flat(one)[:] = -1

    def flat(action):
        action = action["a"] if isinstance(action, dict) else action
        return action[0] if isinstance(action, tuple) else action

    def touch(actions):
        for one in actions if isinstance(actions, (tuple, list)) else [actions]:
            if isinstance(flat(one), np.ndarray):
                flat(one)[:] = 55

    with ProcessVectorEnv(makers(Keeping), **division) as envs:
        envs.reset()
        for t in range(4):
            actions = make(t)
            envs.step(actions)
            touch(actions)  # the caller uses its array for something else
        assert envs.call("sums") == ([0, 2, 4, 6],) * 4
        actions = make(9)
        envs.step(actions)
        envs.call("spoil")
        assert_same(actions, make(9))


def test_sent_action_that_an_environment_keeps_never_changes():
    class Keeping(Counter):
        action_space = Box(0, 99, (2,), np.int64)

        def step(self, action):
            vars(self).setdefault("kept", []).append(action)
            *rest, _ = super().step(0)
            return *rest, {"kept": [int(one[0]) for one in self.kept]}

    with ProcessVectorEnv(makers(Keeping), num_workers=2, batch_size=4) as envs:
        envs.async_reset()
        envs.recv()
        for t in range(4):
            envs.send(np.full((4, 2), t), range(4))
            assert list(envs.recv()[4]["kept"]) == [list(range(t + 1))] * 4


@ids
def test_environment_that_changes_its_action_does_not_affect_others(division):
    class Clipping(Counter):
        action_space = Box(-1, 1, (2,))

        def step(self, action):
            seen = float(action[0])
            np.multiply(action, 0, out=action)
            *rest, _ = super().step(0)
            return *rest, {"seen": seen}

    with ProcessVectorEnv(makers(Clipping), **division) as envs:
        envs.reset()
        actions = np.arange(8, dtype=np.float32).reshape(4, 2) / 8
        envs.actions[:] = actions
        for _ in range(2):  # the buffer is as it was
            assert envs.step()[4]["seen"].tolist() == actions[:, 0].tolist()
        assert envs.step(actions)[4]["seen"].tolist() == actions[:, 0].tolist()
        assert actions[3, 1] == 7 / 8


@ids
def test_final_observations_of_environments_that_share_theirs_are_kept_apart(division):
    class Shared(Counter):
        seen = np.zeros(3, np.float32)

        def _seen(self):
            self.seen[:] = self.who, self.episode, self.count
            return self.seen

    with ProcessVectorEnv(makers(Shared), autoreset_mode="SAME_STEP", **division) as envs:
        envs.reset()
        first = envs.step([END] * 4)[4]["final_obs"]
        second = envs.step([END] * 4)[4]["final_obs"]
        assert [one.tolist() for one in first] == [[who, 1, 1] for who in range(4)]
        assert [one.tolist() for one in second] == [[who, 2, 1] for who in range(4)]


def test_each_environment_gets_a_copy_of_reset_options():
    class Taking(Counter):
        def reset(self, *, seed=None, options=None):
            result = super().reset(seed=seed)
            options["list"].append(self.who)
            return result[0], {"taken": list(options["list"])}

    with ProcessVectorEnv(makers(Taking), num_workers=1, caller_steps=True) as envs:
        options = {"list": []}
        info = envs.reset(options=options)[1]
        assert list(info["taken"]) == [[0], [1], [2], [3]] and options == {"list": []}


def test_workers_have_different_random_numbers():
    class Drawing(Counter):
        action_space = Discrete(2)

        def draw(self):
            return np.random.random()  # the global generator, which forks would share

    with ProcessVectorEnv(makers(Drawing), num_workers=4) as envs:
        assert len(set(envs.call("draw"))) == 4
