"""Pixels-v0 against the same drift in NumPy: every byte of every frame, and nothing outside its rows."""

from __future__ import annotations

import numpy as np
import pytest

from .agent_host import AgentHost
from .plugin_harness import compiled

BRAKE, COAST, PUSH = range(3)
SHAPES = [(84, 84, 4), (1, 1, 1), (3, 5, 3), (7, 84, 16), (300, 2, 1), (5, 257, 2), (64, 64, 4)]


def make(num_envs=1, *flags, seed=0, **options):
    return AgentHost(compiled("envs/pixels/pixels.c", *flags), num_envs, seed, **options)


def sized(height, width, frames):
    return {"height": height, "width": width, "frames": frames}


class Drift:
    """The rules in Python, drawing the same numbers."""

    def __init__(self, seed, height, width, frames):
        self.shape = (height, width)
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
        self.drift = int(rng.integers(4, 9))
        if rng.integers(0, 2):
            self.drift = -self.drift
        newest = int(rng.integers(0, 256))
        self.first = [newest - age * self.drift for age in reversed(range(frames))]

    def step(self, action):
        thrust = 3 * (action - 1) * (1 if self.drift > 0 else -1)
        self.first = [*self.first[1:], self.first[-1] + self.drift + thrust]
        return 1 - abs(self.first[-1] % 256 - 128) / 128

    def frames(self):
        height, width = self.shape
        slope = 256 // width if width < 256 else 1
        ramp = slope * np.arange(height * width).reshape(height, width)
        return np.stack([ramp + first for first in self.first], axis=-1).astype(np.uint8)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("flags", [(), ("-DSHOAL_ONE_ISA",)], ids=["", "one instruction set"])
def test_every_byte_of_every_frame_is_the_drifting_ramp(shape, flags):
    host = make(3, *flags, seed=7, **sized(*shape))
    models = [Drift(7 + i, *shape) for i in range(3)]
    host.reset_all()
    choices = np.random.default_rng(0)
    for _ in range(30):
        for i, model in enumerate(models):
            assert np.array_equal(host.observations[i], model.frames())
        host.check_canaries()
        actions = choices.integers(0, 3, 3)
        host.step(actions)
        assert host.rewards.tolist() == [m.step(a) for m, a in zip(models, actions, strict=True)]
        assert host.terminated.tolist() == [0, 0, 0]


def test_an_observation_is_84_by_84_by_4_bytes_and_episodes_last_1000_steps():
    host = make()
    assert host.name == "Pixels-v0"
    assert host.observation_space.shape == (84, 84, 4)
    assert host.observation_space.dtype == np.uint8
    assert host.action_space.n == 3
    assert host.max_episode_steps == 1000


def test_every_byte_changes_at_every_step_whatever_the_action():
    host = make(8)
    host.reset_all()
    for step in range(60):
        before = host.observations.copy()
        host.step(np.full(8, step // 4 % 3))
        assert (host.observations != before).all()


def test_the_newest_frame_depends_on_the_action_and_the_older_ones_do_not():
    host = make()
    host.reset_all()
    host.step([COAST])
    saved, seen = host.save(0), []
    for action in (BRAKE, COAST, PUSH):
        host.restore(0, saved)
        host.step([action])
        seen.append(host.observations[0].copy())
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert (seen[one][..., 3] != seen[other][..., 3]).all()
        assert np.array_equal(seen[one][..., :3], seen[other][..., :3])


def test_a_frame_moves_back_by_one_place_at_each_step():
    host = make()
    host.reset_all()
    before = host.observations[0].copy()
    host.step([PUSH])
    assert np.array_equal(host.observations[0][..., :3], before[..., 1:])


def test_braking_slows_the_drift_and_pushing_hastens_it_in_both_directions():
    host = make(64)
    host.reset_all()
    newest = host.observations[:, 0, 0, 3].astype(int)
    for i in range(64):
        saved, moved = host.save(i), {}
        for action in (BRAKE, COAST, PUSH):
            host.restore(i, saved)
            host.step(np.full(64, action), ranges=[(i, i + 1)])
            moved[action] = (host.observations[i, 0, 0, 3] - newest[i] + 128) % 256 - 128
        assert abs(moved[BRAKE]) + 3 == abs(moved[COAST]) == abs(moved[PUSH]) - 3
        assert 4 <= abs(moved[COAST]) <= 8
    drifts = [Drift(i, 1, 1, 1).drift for i in range(64)]
    assert min(drifts) < 0 < max(drifts)


def test_braking_at_mid_grey_earns_more_than_coasting():
    def total(policy):
        host, reward = make(16), 0.0
        host.reset_all()
        for _ in range(400):
            host.step(policy(host.observations[:, 0, 0, -1].astype(int)))
            reward += host.rewards.sum()
        return reward

    assert total(lambda grey: np.where(abs(grey - 128) < 64, BRAKE, PUSH)) > 1.2 * total(
        lambda grey: np.full(16, COAST)
    )


def test_the_same_seed_gives_the_same_bytes_however_a_batch_is_split():
    whole, parts = make(9, seed=3), make(9, seed=3)
    for host in (whole, parts):
        host.reset_all()
    choices = np.random.default_rng(1)
    for step in range(20):
        actions, resets = choices.integers(0, 3, 9), choices.random(9) < 0.2
        whole.step(actions, resets)
        parts.step(actions, resets, ranges=[(5, 9), (0, 1), (1, 5)])
        assert whole.results() == parts.results(), step
    assert whole.results() != make(9, seed=4).results()


def test_a_reset_within_a_step_starts_a_new_episode_and_no_other():
    host = make(2)
    host.reset_all()
    rng, instance = host.rng[1].copy(), host.instances[1].copy()
    host.step([COAST, COAST], resets=[0, 1])
    assert not np.array_equal(host.rng[1], rng)
    assert not np.array_equal(host.instances[1], instance)
    model = Drift(0, 84, 84, 4)
    model.step(COAST)
    assert np.array_equal(host.observations[0], model.frames())


def test_restored_checkpoint_continues_in_the_same_way():
    host = make(2)
    host.reset_all()
    host.step([PUSH, BRAKE])
    saved, futures = host.save(0), []
    for env in (0, 1):
        host.restore(env, saved)
        seen = []
        for step in range(20):
            host.step([step % 3] * 2, resets=step == 10)
            seen.append((host.observations[env].tobytes(), host.rewards[env]))
        futures.append(seen)
    assert futures[0] == futures[1]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_picture_is_the_newest_frame_in_grey(shape):
    host = make(2, **sized(*shape))
    host.reset_all()
    host.step([PUSH, BRAKE])
    for env in range(2):
        picture = host.draw(env)
        assert picture.shape == (*shape[:2], 3)
        for channel in range(3):
            assert np.array_equal(picture[..., channel], host.observations[env][..., -1])


def test_there_are_no_other_extensions():
    assert make().has_extension("shoal.checkpoint/1")
    assert make().has_extension("shoal.render/1")
    assert not make().has_extension("shoal.checkpoint/2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"height": 0}, "height and width"),
        ({"width": 4097}, "height and width"),
        ({"frames": 0}, "frames"),
        ({"frames": 17}, "frames"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
