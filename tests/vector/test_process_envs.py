"""Environments for the tests of worker processes, and the comparison of their results.

Workers import this module, so it loads nothing that is slow to load.
"""

import contextlib
import copy
import os
import time
import warnings

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from shoal.vector import ProcessVectorEnv

RAISE, SLOW, DIE, END = 9, 8, 7, 6
"""Actions of a Counter; others just count. SLOW waits for the file it was given."""


def wait_for(gate):
    """Until there is a file `gate`: a test that makes it decides how slow a step is."""
    deadline = time.monotonic() + 60
    while not os.path.exists(gate) and time.monotonic() < deadline:
        time.sleep(0.002)


class Counter(gymnasium.Env):
    """Shows (who, episode, step) in the observation, step as the reward and again in the info."""

    observation_space = Box(-1e6, 1e6, (3,))
    action_space = Discrete(10)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}

    def __init__(self, who=0, gate=None, render_mode=None):
        self.who, self.gate, self.render_mode = who, gate, render_mode
        self.episode = self.count = 0
        self.seen_options = None

    def _seen(self):
        return np.array([self.who, self.episode, self.count], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen_options = options
        if options and options.get("fail") == self.who:
            raise LookupError(f"no such level in {self.who}")
        self.episode, self.count = self.episode + 1, 0
        return self._seen(), {"begun": self.episode}

    def step(self, action):
        if action == RAISE:
            raise Broken(self.who, reason="it was told to")
        if action == SLOW:
            wait_for(self.gate)
        if action == DIE:
            os._exit(3)
        self.count += 1
        return self._seen(), float(self.count), bool(action == END), False, {"count": self.count}

    def render(self):
        return np.full((2, 2, 3), self.who, np.uint8)

    def add(self, one, *, two=0):
        return self.who + one + two


class Broken(RuntimeError):
    """An exception whose constructor takes more than its message."""

    def __init__(self, who, *, reason):
        super().__init__(f"environment {who} broke: {reason}")
        self.who, self.reason = who, reason


class Talkative(gymnasium.Env):
    """Random episodes with random infos: nested dicts, arrays, strings, objects, and often nothing at all."""

    observation_space = Box(-1, 1, (2,), np.float64)
    action_space = Box(-1, 1, (2,), np.float64)

    def _info(self):
        draw = self.np_random
        makers = {
            "integer": lambda: int(draw.integers(99)),
            "real": lambda: draw.random(),
            "flag": lambda: bool(draw.random() < 0.5),
            "numpy": lambda: np.float32(draw.random()),
            "array": lambda: draw.random((2, 3), np.float32),
            "text": lambda: str(draw.integers(99)),
            "object": lambda: [None, {"deep": 1}, (1, "two")],
            "nothing": lambda: None,
            "nested": lambda: {"one": int(draw.integers(9)), "two": {"three": draw.random(2)}},
            "empty": dict,
        }
        share = (0, 0.2, 0.8)[draw.integers(3)]
        return {key: make() for key, make in makers.items() if draw.random() < share}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2), self._info()

    def step(self, action):
        seen = np.clip(self.np_random.uniform(-1, 1, 2) + action, -1, 1)
        ended, cut = self.np_random.random(2) < 0.08
        return seen, float(self.np_random.normal()), bool(ended), bool(cut), self._info()


class Scripted(gymnasium.Env):
    """Plays a script of (info, whether the episode ends), one line for each reset and each step."""

    observation_space = Box(-1e6, 1e6, (1,), np.float64)
    action_space = Discrete(2)

    def __init__(self, script):
        self.script, self.line = script, -1

    def _next(self):
        self.line += 1
        info, ends = self.script[self.line % len(self.script)]
        return np.array([self.line], np.float64), info, ends

    def reset(self, *, seed=None, options=None):
        return self._next()[:2]

    def step(self, action):
        seen, info, ends = self._next()
        return seen, 0.0, ends, False, info


class Sampler(gymnasium.Env):
    """Draws observations from one space; the actions it was given, of another, are in its infos."""

    def __init__(self, observation_space, action_space):
        self.observation_space = copy.deepcopy(observation_space)
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {"seen": [action]}


class Words(Space):
    """A space that neither Gymnasium nor Shoal knows."""

    def sample(self, mask=None, probability=None):
        return [str(number) for number in self.np_random.integers(0, 99, 3)]

    def contains(self, x):
        return isinstance(x, list)

    def __eq__(self, other):
        return isinstance(other, Words)


def counters(number, **kwargs):
    """Functions that make `number` Counters, who say who they are."""
    return [lambda who=who: Counter(who, **kwargs) for who in range(number)]


@contextlib.contextmanager
def logged():
    """Gymnasium's logger warns when an environment raises: the lines it wrote."""
    lines = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield lines
        finally:
            lines += [str(one.message) for one in caught]


def assert_same(found, expected):
    """Equal in type, dtype, shape, value and order of keys, however nested."""
    if isinstance(expected, np.ndarray):
        assert isinstance(found, np.ndarray)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        if expected.dtype != object:
            np.testing.assert_array_equal(found, expected)
        else:
            for one, other in zip(found, expected, strict=True):
                assert_same(one, other)
    elif isinstance(expected, dict):
        assert isinstance(found, dict) and list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, (tuple, list)):
        assert type(found) is type(expected) and len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        both_nan = found != found and expected != expected
        assert type(found) is type(expected) and (found == expected or both_nan)


def assert_same_history(makers, mode, steps, seed, **kwargs):
    """Steps the environments in workers and in Gymnasium's SyncVectorEnv; every result must be the same."""
    theirs = SyncVectorEnv(makers, autoreset_mode=mode)
    with ProcessVectorEnv(makers, autoreset_mode=mode, **kwargs) as ours:
        ours.action_space.seed(seed)
        assert_same(ours.reset(seed=seed), theirs.reset(seed=seed))
        for _ in range(steps):
            actions = ours.action_space.sample()
            found, expected = ours.step(actions), theirs.step(copy.deepcopy(actions))
            assert_same(found, expected)
            over = expected[2] | expected[3]
            if mode == AutoresetMode.DISABLED and over.any():
                again = [worlds.reset(options={"reset_mask": over.copy()}) for worlds in (ours, theirs)]
                assert_same(*again)
        assert_same(ours.get_attr("np_random_seed"), theirs.get_attr("np_random_seed"))
    theirs.close()


def test_comparison_finds_differences():
    pairs = [
        (np.zeros(2), np.zeros(2, np.float32)),
        (np.zeros(2), np.zeros((2, 1))),
        (np.array([None, 1], object), np.array([None, 2], object)),
        ({"a": 1}, {"a": 1, "_a": np.ones(2, bool)}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ((1, "a"), (1, "b")),
        ((1,), [1]),
        (1, True),
    ]
    for found, expected in pairs:
        assert_same(expected, expected)
        try:
            assert_same(found, expected)
        except AssertionError:
            continue
        raise AssertionError(f"{found!r} passed for {expected!r}")


def test_counter_environment_counts_and_names_itself():
    with ProcessVectorEnv(counters(3), num_workers=2) as envs:
        assert envs.reset(seed=0)[0].tolist() == [[0, 1, 0], [1, 1, 0], [2, 1, 0]]
        observations, rewards, terminated, truncated, info = envs.step([0, END, 0])
        assert observations.tolist() == [[0, 1, 1], [1, 1, 1], [2, 1, 1]]
        assert rewards.tolist() == [1, 1, 1] and terminated.tolist() == [False, True, False]
        assert not truncated.any() and info["count"].tolist() == [1, 1, 1]
        observations, rewards, terminated, *_ = envs.step([0, 0, 0])
        assert observations.tolist() == [[0, 1, 2], [1, 2, 0], [2, 1, 2]]
        assert rewards.tolist() == [2, 0, 2] and not terminated.any()
