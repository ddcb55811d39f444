"""The viewer's page over a real run and the real server: what is on the screen is what the run holds."""

# ruff: noqa: F811 (fixtures are imported, and named again as arguments)

import threading
from types import SimpleNamespace

import numpy as np
import pytest

import shoal
from tests.viewer.browsing import browser, drawn, rgb, serve, tile, until, visit  # noqa: F401

WATCH = """
import sys
from shoal.cli import main
main(["watch", sys.argv[1], "--no-browser"])
"""


@pytest.fixture
def run(name, tmp_path, monkeypatch):
    """A reef that is stepped until the test says otherwise."""
    monkeypatch.setenv("SHOAL_SESSION_DIR", str(tmp_path / "s"))
    envs = shoal.make_vec(
        "Reef-v0", num_envs=2, session=name, height=24, width=36, num_agents=6, num_enemies=9
    )
    rest = threading.Event()

    def step():
        envs.reset(seed=1)
        actions = np.zeros(envs.action_space.shape, envs.action_space.dtype)
        while not rest.wait(0.05):  # an episode, and so the map, lasts 50 seconds
            envs.step(actions)

    stepping = threading.Thread(target=step)
    stepping.start()
    yield SimpleNamespace(name=name, stop=lambda: (rest.set(), stepping.join()))
    rest.set()
    stepping.join()
    envs.close()


def test_the_page_shows_a_real_run(run, start_python, visit):
    with shoal.attach(run.name) as session:
        world = session.snapshot(1, timeout_s=20).world
    viewer = start_python(WATCH, run.name)
    assert run.name in viewer.read()
    page = visit(SimpleNamespace(url=viewer.read()), "#env=1&hide=world/food&hide=world/positions")
    assert page.evaluate("shoal.env") == 1 and page.locator("#run-name").inner_text() == run.name
    colors = {one.value: rgb(one.color) for one in world["terrain"].categories}
    page.wait_for_timeout(300)
    pixels, terrain = drawn(page), world["terrain"].data
    for row in range(24):
        for column in range(33):  # the buttons are over the last ones
            assert tuple(pixels[tile(page, row, column)]) == colors[terrain[row, column]]
    until(page, "shoal.frames > 5")
    run.stop()
    until(page, "document.getElementById('status').dataset.state === 'idle'")


@pytest.fixture
def still_cart(name, tmp_path, monkeypatch):
    """CartPole with two environments, which stands still as soon as the page has seen it."""
    monkeypatch.setenv("SHOAL_SESSION_DIR", str(tmp_path / "s"))
    envs = shoal.make_vec("CartPole-v1", num_envs=2, session=name)
    rest = threading.Event()

    def step():
        envs.reset(seed=1)
        while not rest.wait(0.02):
            envs.step(np.ones(2, np.int64))

    stepping = threading.Thread(target=step)
    stepping.start()
    yield SimpleNamespace(name=name, envs=envs, stop=lambda: (rest.set(), stepping.join()))
    rest.set()
    stepping.join()
    envs.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_shows_cartpoles_picture_and_its_names(still_cart, start_python, visit, scheme):
    viewer = start_python(WATCH, still_cart.name)
    assert still_cart.name in viewer.read()
    page = visit(SimpleNamespace(url=viewer.read()), "#env=1&tab=agent", color_scheme=scheme)
    until(page, "shoal.frames > 3")
    still_cart.stop()
    until(page, "document.getElementById('status').dataset.state === 'idle'")
    pixels = drawn(page)
    for color in ((202, 152, 101), (0, 0, 0), (255, 255, 255)):  # the pole, the cart, the background
        assert (pixels[..., :3] == color).all(-1).sum() > 200
    assert "1 (push right)" in page.locator("#agent-step").inner_text()
    page.click("#tab-inspect")
    page.evaluate("document.querySelectorAll('#fields details').forEach((one) => (one.open = true))")
    until(page, "document.getElementById('fields').textContent.includes('pole angular velocity, rad/s: ')")
    assert "theta_dot: " in page.locator("#fields").text_content()


def test_numbers_without_a_picture_have_names_beside_their_bars(serve, visit):
    page = visit(serve("vector"))
    until(page, "shoal.frames > 3")
    written = page.evaluate("""async () => {
        const { drawBars } = await import("/charts.js"), texts = [];
        const ctx = document.createElement("canvas").getContext("2d");
        ctx.fillText = (text, x, y, most) => texts.push([text, most, ctx.measureText(text).width]);
        drawBars(ctx, 0, 0, 700, 200, [1, -2, 3], ["pole angular velocity, rad/s", "x"]);
        return texts;
    }""")
    assert [text for text, _, _ in written[::2]] == ["pole angular velocity, rad/s", "x", "2"]
    assert all(most >= width for _, most, width in written)  # no name is squeezed
