"""All of it together: a run in one process, `shoal watch` in another, its page in a real browser."""

# ruff: noqa: F811 (fixtures are imported, and named again as arguments)

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from shoal.state.attach import attach
from tests.viewer.browsing import browser, drawn, rgb, tile, until, visit  # noqa: F401

RUN = """
import sys, time
import numpy as np, shoal, gymnasium
if sys.argv[1] == "reef":
    size = {"height": 40, "width": 40, "num_agents": 4, "num_enemies": 6}
    envs = shoal.make_vec("Reef-v0", 3, session="watched", **size)
else:
    envs = shoal.make_vec("FrozenLake-v1", 2, num_workers=1, session="watched", render_mode="rgb_array")
envs.reset(seed=0)
print("ready", flush=True)
rng = np.random.default_rng(0)
while True:
    envs.step(envs.action_space.sample())
    time.sleep(0.02)
"""


@pytest.fixture
def watch(start_python, tmp_path, monkeypatch):
    """Starts a run and a viewer of it; gives where the page is."""
    monkeypatch.setenv("SHOAL_SESSION_DIR", str(tmp_path / "s"))
    viewers = []

    def start(which):
        run = start_python(RUN, which)
        assert run.read() == "ready"
        command = [sys.executable, "-m", "shoal", "watch", "--no-browser", "watched"]
        viewer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        viewers.append(viewer)
        assert viewer.stdout.readline().startswith("watched: ")
        link = viewer.stdout.readline().strip()
        url, _, token = link.partition("?")
        return SimpleNamespace(url=url, token=f"?{token}", viewer=viewer, run=run)

    yield start
    for viewer in viewers:
        viewer.kill()
        viewer.wait()
        viewer.stdout.close()


def test_the_page_draws_the_terrain_of_the_run(watch, visit):
    server = watch("reef")
    page = visit(server, server.token + "#env=2&hide=world/positions&hide=world/food")
    until(page, "shoal.env === 2 && shoal.tick > 3")
    with attach("watched") as session:
        field = session.snapshot(2).world["terrain"]
    colors = {one.value: rgb(one.color) for one in field.categories}
    pixels = drawn(page)
    places = [(row, column) for row in range(1, 40, 3) for column in range(1, 36, 3)]
    shown = [tuple(pixels[tile(page, *place)]) for place in places]
    assert shown == [colors[int(field.data[place])] for place in places]
    assert len(set(shown)) > 3


def test_an_environment_without_a_world_shows_its_frame(watch, visit):
    server = watch("lake")
    page = visit(server, server.token)
    until(page, "shoal.tick > 0")
    with attach("watched") as session:
        frame = session.snapshot(0).step["frame"].data
    pixels = drawn(page)
    common = tuple(np.unique(frame.reshape(-1, 3), axis=0, return_counts=True)[0][0])
    near = np.abs(pixels.reshape(-1, 3).astype(int) - np.array(common, int)).max(axis=1)
    assert (near <= 3).mean() > 0.001  # its pixels are on the page


def test_killing_the_viewer_does_not_affect_the_run_and_the_page_shows_it(watch, visit):
    server = watch("reef")
    page = visit(server, server.token, expect_lost=True)
    with attach("watched") as session:
        server.viewer.kill()
        before = session.counters()["steps"]
        until(page, "document.body.innerText.includes('econnect') || document.body.innerText.includes('ost')")
        assert session.counters()["steps"] > before and session.alive
    os.kill(server.run.pid, 0)


def test_a_new_run_of_the_same_name_is_shown(watch, visit, start_python):
    server = watch("lake")
    assert server.viewer.stdout.readline().startswith("Ctrl-C")
    page = visit(server, server.token)
    server.run.kill()
    assert server.viewer.stdout.readline().startswith("watched: the run has ended")
    until(page, "document.getElementById('status').dataset.state === 'ended'")
    again = start_python(RUN, "reef")
    assert again.read() == "ready"
    assert server.viewer.stdout.readline() == f"watched: 3 x Reef-v0, pid {again.pid}\n"
    until(page, "document.getElementById('status').dataset.state === 'live' && shoal.tick !== null")
    assert page.locator("#run-about").inner_text().startswith("Reef-v0")
