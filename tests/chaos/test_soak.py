"""`shoal chaos --soak`: what stays the same is called flat, what grows is not."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from shoal_lab.chaos import soak
from shoal_lab.chaos.chart import drawn
from shoal_lab.chaos.soak import Sample, count_mappings, judged

FLAT = [Sample(float(n), 7, 300, 1, 0, 50.0 + n % 3 * 0.1, 47.0) for n in range(30)]


def test_what_stays_the_same_is_flat():
    assert judged(FLAT) == {}
    warm = [replace(one, descriptors=40, trainer_mb=90.0) if n < 10 else one for n, one in enumerate(FLAT)]
    assert judged(warm) == {}  # the first third warms up


@pytest.mark.parametrize(
    "name", ["descriptors", "mappings", "threads", "children", "trainer_mb", "launcher_mb"]
)
def test_what_grows_is_not(name):
    step = 0.5 if name.endswith("mb") else 0.1  # of a descriptor: one in ten cycles
    grown = [replace(one, **{name: int(getattr(one, name) + step * n)}) for n, one in enumerate(FLAT)]
    assert name in judged(grown)


def test_only_mappings_of_files_and_shared_memory_are_counted(tmp_path):
    file = tmp_path / "a file with spaces"
    file.write_bytes(bytes(4096))
    before = count_mappings(Path("/proc/self/maps").read_text())
    with file.open("rb") as opened:
        private = [mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE) for _ in range(3)]
        assert count_mappings(Path("/proc/self/maps").read_text()) == before
        shared = mmap.mmap(-1, 4096)
        mapped = mmap.mmap(opened.fileno(), 4096, access=mmap.ACCESS_READ)
        assert count_mappings(Path("/proc/self/maps").read_text()) == before + 2
    for one in (*private, shared, mapped):
        one.close()


def test_a_short_soak_is_too_little_to_judge():
    assert "too few" in judged(FLAT[:5])["samples"]


def test_a_short_soak_holds_nothing_more_than_before(tmp_path):
    chart = tmp_path / "soak.svg"
    command = [sys.executable, "-m", "shoal_lab.chaos", "--soak", "0.01", "--json", "--chart", str(chart)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    found = json.loads(done.stdout)
    assert found["cycles"] >= 12 and found["rows"] > 500, done.stderr
    names = ("descriptors", "threads", "children")
    assert [found["early"][name] for name in names] == [found["last"][name] for name in names], found
    assert chart.read_text().startswith("<svg")


def test_the_picture_has_a_panel_for_each():
    text = drawn([asdict(one) for one in FLAT], 30)
    for label in ("trainer, MB", "launcher, MB", "descriptors", "mappings", "threads"):
        assert label in text


def test_samples_are_thinned_and_still_reach_from_the_first_cycle_to_the_last():
    samples, every = [], 1
    for cycle in range(5 * soak.MOST):
        if cycle % every == 0:
            samples.append(cycle)
            samples, every = soak._thinned(samples, every)
    assert soak.MOST / 2 <= len(samples) < soak.MOST and every == 8
    assert samples[0] == 0 and samples[-1] > 5 * soak.MOST - 2 * every
    assert {later - one for one, later in zip(samples, samples[1:], strict=False)} == {every}
