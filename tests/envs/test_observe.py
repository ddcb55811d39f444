"""shoal.observe/1 of every bundled plug-in writes what the last step or reset wrote, and changes nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from .byte_host import Array, ByteHost, play_and_observe
from .plugin_harness import ROOT, compiled
from .test_classic_control import instruction_sets

CLASSIC = ("acrobot", "cartpole", "mountain_car", "mountain_car_continuous", "pendulum")
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "envs/acrobot/acrobot.c": [{}, {"precision": "float"}],
    "envs/cartpole/cartpole.c": [{}, {"precision": "float"}, {"sutton_barto_reward": 1}],
    "envs/mountain_car/mountain_car.c": [{}, {"precision": "float", "goal_velocity": 0.01}],
    "envs/mountain_car_continuous/mountain_car_continuous.c": [
        {},
        {"precision": "float", "goal_velocity": 0.01},
    ],
    "envs/pendulum/pendulum.c": [{}, {"precision": "float"}, {"g": 3.7}],
    "envs/pixels/pixels.c": [
        {"height": 21},
        {"height": 1, "width": 1, "frames": 1},
        {"height": 3, "width": 257, "frames": 16},
    ],
    "envs/reef/reef.c": [
        {"height": 16, "width": 24, "num_agents": 8, "num_enemies": 12},
        {"height": 8, "width": 9, "num_agents": 3, "num_enemies": 5, "window": 3},
        {"height": 10, "width": 8, "num_agents": 1, "num_enemies": 0, "window": 21},
    ],
    "envs/snake/snake.c": [
        {},
        {"width": 5, "height": 4, "agents": 1, "vision": 1},
        {"width": 7, "height": 9, "agents": 13, "food": 40, "vision": 9},
    ],
    "envs/squared/squared.c": [{}, {"size": 3}, {"size": 31}],
    "src/shoal/native/template.c": [{}, {"height": 2, "width": 1}, {"height": 20, "width": 9}],
    "examples/my_env.c": [{}, {"pace": 1, "shells": 1.0}, {"shells": 0.0}],
}
CASES = [(source, options) for source, several in OPTIONS.items() for options in several]
EVERY = pytest.mark.parametrize(("source", "options"), CASES, ids=lambda part: str(part).rpartition("/")[2])

# Random actions alone seldom reach the goal of these: every second one is pushed along this number.
DRIVES: dict[str, Callable[[Array], Array]] = {
    "acrobot": lambda seen: -seen[:, 4],
    "mountain_car": lambda seen: seen[:, 1],
    "mountain_car_continuous": lambda seen: seen[:, 1],
}


def choose(source: str, host: ByteHost, rng: np.random.Generator) -> list[Array]:
    actions = host.sample_actions(rng)
    drive = DRIVES.get(source.rpartition("/")[2][:-2])
    if drive is not None:
        push = drive(host.expected[0][: host.num_envs].view(np.float32))
        bounds = host.action_bounds[0]
        actions[0][::2, 0] = np.where(push > 0, bounds.high[0], bounds.low[0])[::2]
    return actions


def test_every_bundled_plugin_is_tried():
    bundled = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("envs/*/*.c")}
    assert bundled == {source for source in OPTIONS if source.startswith("envs/")}


@EVERY
@pytest.mark.parametrize("num_envs", [1, 3, 37, 64])
def test_it_writes_the_bytes_of_the_last_step_or_reset_and_changes_nothing(source, options, num_envs):
    host, twin = (ByteHost(compiled(source), num_envs, 5, **options) for _ in range(2))
    ended = play_and_observe(host, twin, 300, functools.partial(choose, source))
    if num_envs >= 37 and not any(name in source for name in ("pendulum", "pixels", "snake", "reef")):
        assert ended > 0, "no episode ended: the test is too easy"


@EVERY
def test_it_writes_the_observation_of_a_checkpoint_in_a_host_that_never_stepped(source, options):
    old, new = ByteHost(compiled(source), 37, 5, **options), ByteHost(compiled(source), 3, 99, **options)
    old.reset(0, 37)
    rng = np.random.default_rng(3)
    for _ in range(20):
        old.step(choose(source, old, rng), old.ended())
    new.restore(1, old.save(33))
    new.check_observe(1, 2)
    old.restore(0, new.save(1))
    old.check_observe(0, 37)
    for host in (old, new):
        host.snapshot()  # nothing was written outside the arrays


@pytest.mark.parametrize("name", CLASSIC)
@pytest.mark.parametrize("precision", ["double", "float"])
def test_every_instruction_set_writes_the_same_bytes_as_its_steps(name, precision):
    source = f"envs/{name}/{name}.c"
    for flags in instruction_sets():
        library = compiled(source, "-DSHOAL_ONE_ISA", *flags.split())
        hosts = [ByteHost(library, 37, 5, precision=precision) for _ in range(2)]
        play_and_observe(hosts[0], hosts[1], 60, functools.partial(choose, source))
