"""`shoal chaos --soak` reports constant resources as flat, and growing ones as not flat."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from shoal_lab.chaos import soak
from shoal_lab.chaos.chart import draw_chart
from shoal_lab.chaos.soak import Sample, count_mappings, find_growth

FLAT = [Sample(float(n), 7, 300, 1, 0, 50.0 + n % 3 * 0.1, 47.0) for n in range(30)]


def test_constant_resources_are_flat():
    assert find_growth(FLAT) == {}
    warm = [replace(one, descriptors=40, trainer_mb=90.0) if n < 10 else one for n, one in enumerate(FLAT)]
    assert find_growth(warm) == {}  # the first third warms up


@pytest.mark.parametrize(
    "name", ["descriptors", "mappings", "threads", "children", "trainer_mb", "launcher_mb"]
)
def test_growing_resources_are_not_flat(name):
    step = 0.5 if name.endswith("mb") else 0.1  # of a descriptor: one in ten cycles
    grown = [replace(one, **{name: int(getattr(one, name) + step * n)}) for n, one in enumerate(FLAT)]
    assert name in find_growth(grown)


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


def test_a_short_soak_has_too_few_samples_to_judge():
    assert "too few" in find_growth(FLAT[:5])["samples"]


def test_a_short_soak_leaks_nothing(tmp_path):
    chart = tmp_path / "soak.svg"
    command = [sys.executable, "-m", "shoal_lab.chaos", "--soak", "0.01", "--json", "--chart", str(chart)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    found = json.loads(done.stdout)
    assert found["cycles"] >= 12 and found["rows"] > 500, done.stderr
    names = ("descriptors", "threads", "children")
    assert [found["early"][name] for name in names] == [found["last"][name] for name in names], found
    assert chart.read_text().startswith("<svg")


def test_the_chart_has_a_panel_for_each_resource():
    text = draw_chart([asdict(one) for one in FLAT], 30)
    for label in ("trainer, MB", "launcher, MB", "descriptors", "mappings", "threads"):
        assert label in text


def test_thinned_samples_span_the_first_to_the_last_cycle():
    samples, every = [], 1
    for cycle in range(5 * soak.MOST):
        if cycle % every == 0:
            samples.append(cycle)
            samples, every = soak._thin(samples, every)
    assert soak.MOST / 2 <= len(samples) < soak.MOST and every == 8
    assert samples[0] == 0 and samples[-1] > 5 * soak.MOST - 2 * every
    assert {later - one for one, later in zip(samples, samples[1:], strict=False)} == {every}
