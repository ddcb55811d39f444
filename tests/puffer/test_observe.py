"""shoal.observe/1 of PufferLib's environments, in all three contracts: what the last step or reset wrote."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.envs.byte_host import ByteHost, play_and_observe
from tests.envs.plugin_harness import _generator

from shoal.compat.puffer import prepare

OCEAN = Path(__file__).parent / "ocean"
CASES = [
    ("walk", {}),
    ("walk", {"size": 21}),
    ("herd", {"num_agents": 3}),
    ("four", {}),  # shows a mask too
    ("crowd", {}),
    ("five", {}),  # widens bfloat16
    ("half", {}),
    ("old", {}),
]

pytestmark = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler")


@pytest.fixture
def make():
    made = []

    def maker(name, num_envs, log, options):
        ready = prepare(OCEAN / name, options, log=log)
        made.append(ByteHost(ready.library, num_envs, 5, settings=ready.settings))
        return made[-1]

    yield maker
    for host in made:
        host.close()


def test_every_environment_of_these_tests_is_tried():
    bindings = {path.parent.name for path in OCEAN.glob("*/*.h")}
    assert {name for name, _ in CASES} == bindings


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
@pytest.mark.parametrize("num_envs", [1, 3, 37])
@pytest.mark.parametrize("log", [False, True], ids=["", "log"])
def test_it_writes_the_bytes_of_the_last_step_or_reset_and_changes_nothing(
    make, name, options, num_envs, log
):
    host, twin = (make(name, num_envs, log, options) for _ in range(2))
    ended = play_and_observe(host, twin, 200)
    assert ended > 0 or name == "half"  # which never ends


def test_a_new_seed_which_makes_the_environment_anew_is_observed(make):
    host, twin = (make("walk", 3, False, {"size": 41}) for _ in range(2))
    play_and_observe(host, twin, 20)
    before = host.expected[0].copy()
    for seed in range(10):
        for one in (host, twin):
            one.arrays["rng"].bytes[1] = _generator(seed).view(np.uint8)
            one.reset(1, 2)
        host.check_observe(0, 3)
    assert (host.expected[0][1] != before[1]).any()
    play_and_observe(host, twin, 20)
