"""Writes outside an environment's own memory are found and named, in any array and in both directions."""

import ctypes
import re

import numpy as np
import pytest

from shoal import check
from shoal.check.guards import Pieces
from shoal.check.subject import CheckFailed, prepare_subject
from tests.check.conftest import needs_compiler

OUTSIDE = {
    "past the struct": (
        {"STEP": "if (env == 7) ((char *)self)[sizeof *self] = 1;"},
        "step of environment 7 wrote 1 byte outside its struct; the first is byte 1 after its end",
    ),
    "past the struct in reset": (
        {"RESET": "if (env == 36) self[1].place = 0;"},
        "reset of environment 36 wrote 8 bytes outside its struct; the first is byte 1 after its end",
    ),
    "before the struct": (
        {"STEP": "if (env == 7) ((char *)self)[-3] = 1;"},
        "step of environment 7 wrote 1 byte outside its struct; the nearest is byte 3 before its start",
    ),
    "past a block of lanes": (
        {"DESCRIBE": "spec->lanes = 4;", "STEP": "if (env == 7) self[1].place = 0;"},
        "step of environments 4 to 7 wrote 8 bytes outside its struct; the first is byte 1 after its end",
    ),
    "another environment's generator": (
        {"STEP": "if (env == 2) envs->rng[env + 1].state_low = 1;"},
        r"step of environment 2 wrote 8 bytes outside its generator \(rng\); the first is byte 9 after",
    ),
    "past an observation": (
        {"SHOW": "if (env == 9) row[2] = 1;"},
        r"environment 9 wrote \d bytes outside observation field 'place'; the first is byte . after its end",
    ),
    "before an observation": (
        {"SHOW": "if (env == 9) phase[-1] = 1;"},
        "environment 9 wrote 8 bytes outside observation field 'phase'; the nearest is byte 1 before",
    ),
    "another environment's reward": (
        {"STEP": "if (env == 3) envs->rewards[env + 1] = 1;"},
        "step of environment 3 wrote . bytes outside reward; the first is byte . after its end",
    ),
    "another environment's terminated": (
        {"STEP": "if (env == 3) envs->terminated[env - 1] = 1;"},
        "step of environment 3 wrote 1 byte outside terminated; the nearest is byte 1 before its start",
    ),
    "another environment's truncated": (
        {"STEP": "if (env == 3) envs->truncated[env + 1] = 1;"},
        "step of environment 3 wrote 1 byte outside truncated; the first is byte 1 after its end",
    ),
    "its own action": (
        {"STEP": "if (env == 8) *(int64_t *)SHOAL_ACTION(int64_t, envs, 0, env) = 5;"},
        "step of environment 8 wrote to action, which it may only read",
    ),
    "the host's table": (
        {"STEP": "envs->num_envs = 1;"},
        r"step of environment 0 changed \*envs, which belongs to the host",
    ),
}


# A line of walk.c, what is in its place, and what is found then.
RESULTS = [
    (
        "row[1] = (double)(self->place % 7);",
        "",
        "reset does not write its whole row: after reset, observation field 'place', environment 0, element",
    ),
    (
        "envs->terminated[env] = self->place % 13 == 0;",
        "",
        "step does not write its whole row: at step 1, terminated, environment 0, element 0 of 1 keeps",
    ),
    (
        "envs->rewards[env] = 1;",
        "envs->rewards[env] += 1;",
        "step gives different results if the result arrays hold other bytes before the call: at step 1, rew",
    ),
]


@needs_compiler
@pytest.mark.parametrize("name", OUTSIDE)
def test_a_write_outside_its_memory_is_found_and_named(name, find_problem):
    changes, message = OUTSIDE[name]
    problem = find_problem("memory", **changes)
    assert problem is not None and re.search(message, problem), problem


@needs_compiler
@pytest.mark.parametrize(("line", "instead", "message"), RESULTS)
def test_a_row_that_is_not_written_or_is_read_back_is_named(line, instead, message, write_walk):
    path = write_walk()
    assert line in path.read_text()
    path.write_text(path.read_text().replace(line, instead))
    with pytest.raises(CheckFailed) as failed:
        check.CHECKS["memory"](prepare_subject(str(path), {}, []))
    assert message in str(failed.value)


# Each gives other bytes in a second run, whatever the result arrays hold.
NOT_DETERMINISTIC = [
    {"GLOBAL": "#include <stdlib.h>", "SHOW": "if (env == 4) row[1] = rand() % 1000;"},
    {"GLOBAL": "static int64_t all;", "STEP": "if (env == 4) envs->rewards[env] = (double)all++;"},
]


@needs_compiler
@pytest.mark.parametrize("changes", NOT_DETERMINISTIC, ids=["rand", "a global"])
def test_a_plug_in_that_is_not_deterministic_is_not_blamed_for_its_rows(changes, find_problem):
    problem = find_problem("memory", **changes)
    assert problem is not None and problem.startswith("it is not deterministic"), problem
    assert re.search(r"differ (after reset|at step 1), .*, environment 4; does it use rand\(\)", problem)


@needs_compiler
@pytest.mark.parametrize("lanes", [1, 4, 64])
def test_a_good_plug_in_damages_nothing_however_many_lanes_it_has(lanes, find_problem):
    assert find_problem("memory", DESCRIBE=f"spec->lanes = {lanes};") is None


@pytest.mark.parametrize("size", [1, 3, 8, 40, 64, 100, 5000, 40000])
def test_pieces_lie_aligned_as_in_an_array_without_guards_and_every_guard_byte_is_seen(size):
    pieces = Pieces("it", size, 3)
    for block in range(3):
        assert (pieces.base(block)) % 64 == 0
        begin, end = pieces.region(block)
        assert begin == pieces.base(block) + block * size and end == begin + size
        for address, text in (
            (begin - 1, "outside it; the nearest is byte 1 before its start"),
            (end, "outside it; the first is byte 1 after its end"),
        ):
            byte = ctypes.c_uint8.from_address(address)
            assert byte.value == 0xA5
            byte.value = 1
            assert pieces.find_damage() == (block, f"1 byte {text}")
            byte.value = 0xA5
        assert pieces.find_damage() is None


def test_pieces_are_written_and_read_one_after_another():
    pieces = Pieces("it", 3, 4)
    values = np.arange(12, dtype=np.uint8)
    pieces.write(values)
    kept = pieces.read()
    pieces.write(7)
    assert kept.tolist() == values.tolist() and pieces.read().tolist() == [7] * 12
    assert pieces.find_damage() is None
