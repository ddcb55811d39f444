"""Environments in C: steps per second against plain loops, bytes of observations against memcpy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from shoal.vector import make_vec
from shoal_lab.bench.compile import FLAGS
from shoal_lab.bench.interleave import undisturbed
from shoal_lab.bench.load import cores
from shoal_lab.bench.loops import SCALAR, VECTORISED
from shoal_lab.bench.measure import Bench, Pace, Planned, Rival
from shoal_lab.bench.results import Case
from shoal_lab.bench.rivals.native import MAKERS, random_actions, stepping

__all__ = ["ENVS", "plan"]

ENVS = (8, 1024)
ENVS_FULL = (1, 8, 64, 1024, 8192)
_PIXELS, _PIXEL_ENVS = "Pixels-v0", 256


def plan(bench: Bench, envs: Sequence[int] | None = None) -> list[Planned]:
    """Plans CartPole with each number of environments, then pictures."""
    pace = bench.pace(Pace(9, 0.004), Pace(31, 0.006))
    sizes = envs or (ENVS_FULL if bench.full else ENVS)
    seconds = pace.seconds(10) + 2
    planned = [Planned(_title(n), seconds, partial(_cartpole, bench, n, pace)) for n in sizes]
    if envs is None:
        planned.append(Planned(f"{_PIXELS}, num_envs={_PIXEL_ENVS}", 3, lambda: _pixels(bench, pace)))
    return planned


def _title(num_envs: int) -> str:
    return f"CartPole-v1, num_envs={num_envs:,}"


def _cartpole(bench: Bench, num_envs: int, pace: Pace) -> Case:
    with bench.roster("native") as roster:
        ours = 'make_vec("CartPole-v1", num_threads={}), buffers="leased"'
        roster.add("shoal", "Shoal", num_envs, {"num_threads": 1}, role="shoal", how=ours.format(1))
        count = len(cores())
        if count > 1:
            name = f"Shoal, up to {count} threads"
            roster.add("shoal", "Shoal", num_envs, {}, name=name, role="shoal", how=ours.format("None"))
            name = "Shoal async, 2 threads"
            roster.add("shoal", name, num_envs, role="shoal", how=_HOW["EnvPool async, 2 threads"])
        if bench.loops is not None:
            loops = bench.loops.cartpole(random_actions(num_envs))
            flags = f"one thread, cc {' '.join(FLAGS)}"
            roster.add_bare(VECTORISED, num_envs, loops[VECTORISED], flags)
            if bench.every_case:
                roster.add_bare(SCALAR, num_envs, loops[SCALAR], flags)
        for library in ("gymnasium", "envpool", "pufferlib"):
            for maker in MAKERS[library]:
                if not maker.endswith("start"):
                    roster.add(library, maker, num_envs, how=_HOW.get(maker, ""))
        what = "random actions made beforehand, 16 in turn; results held until the next step"
        return bench.timed(
            "native", _title(num_envs), "env steps/s", roster.rivals, pace, lambda n, s: n / s, what
        )


_HOW = {
    "Gymnasium sync": 'vectorization_mode="sync"',
    "Gymnasium NumPy": 'vectorization_mode="vector_entry_point"',
    "EnvPool sync": 'env_type="gymnasium", num_threads=1',
    "EnvPool sync, 2 threads": 'env_type="gymnasium", num_threads=2',
    "EnvPool async, 2 threads": "batches of half of the environments",
    "PufferLib C": "ocean.cartpole, float32, episodes of 200 steps",
    "PufferLib C, log seldom": "report_interval=128",
}


def _pixels(bench: Bench, pace: Pace) -> Case:
    title = f"{_PIXELS}: 84x84x4 bytes of observation, num_envs={_PIXEL_ENVS}"
    with bench.roster("native") as roster, make_vec(_PIXELS, _PIXEL_ENVS, num_threads=1) as envs:
        num_bytes = envs.reset(seed=0)[0].nbytes
        burst = undisturbed(stepping(envs.step, random_actions(_PIXEL_ENVS, 3)))
        roster.rivals.append(
            Rival("Shoal", "shoal", num_bytes, burst, f'make_vec("{_PIXELS}", num_threads=1)')
        )
        if bench.loops is not None:
            roster.add_bare("memcpy", num_bytes, bench.loops.copy(num_bytes, 1), "as many bytes, one thread")
        return bench.timed("native", title, "GB/s", roster.rivals, pace, lambda n, s: n / s / 1e9)
