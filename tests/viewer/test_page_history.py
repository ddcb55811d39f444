"""The curves of the page: those of the whole run, whenever it is opened, in every theme and size."""

# ruff: noqa: F811 (fixtures are imported, and named again as arguments)

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import shoal
from shoal.state import read_history
from tests.viewer.browsing import browser, drawn, reef, serve, until, visit  # noqa: F401
from tests.viewer.pictures import decode_png

LOOKS = [
    (scheme, size)
    for scheme in ("light", "dark")
    for size in ({"width": 1280, "height": 900}, {"width": 390, "height": 844})
]
WATCH = """
import sys
from shoal.cli import main
main(["watch", *sys.argv[1:], "--no-browser"])
"""
TOLD = "[...document.querySelectorAll('.curve')].map((one) => one.innerText.split('\\n')[0])"


@pytest.mark.parametrize(("scheme", "size"), LOOKS)
def test_curves_of_the_whole_run_are_drawn_in_every_theme_and_size(reef, visit, scheme, size):
    page = visit(reef, color_scheme=scheme, viewport=size)
    until(page, "document.querySelectorAll('.curve').length === 5 && shoal.bins.count > 100")
    assert page.evaluate(TOLD) == ["Return", "Episode length", "Steps per second", "loss", "entropy"]
    accent = (0x0E, 0x7C, 0x86) if scheme == "light" else (0x3F, 0xBF, 0xC6)
    chart = page.locator(".curve[data-curve=return] canvas")
    chart.scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    pixels = decode_png(chart.screenshot())[..., :3].astype(int)
    line = (abs(pixels - accent).sum(-1) < 12).any(axis=0)
    assert line.mean() > 0.9  # the curve goes over the whole width
    rows = [np.flatnonzero((abs(pixels - accent).sum(-1) < 12)[:, at]).mean() for at in (8, -8)]
    assert rows[0] > rows[1] + 15  # it learned: the curve rises
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert "of the run" in page.locator(".curve[data-curve=return] .chart-about").inner_text()


def test_the_axis_is_time_or_steps_and_curves_are_smooth_or_raw(reef, visit):
    page = visit(reef)
    until(page, "shoal.bins.count > 100")
    by_time, by_steps = page.evaluate("[shoal.curve('return'), shoal.curve('return', 'steps')]")
    assert by_steps[-1]["x"] == pytest.approx(20 * 60 * 1e6) and by_time[-1]["x"] < 1200
    chart = page.locator(".curve[data-curve=return]")
    page.wait_for_timeout(500)
    smooth = chart.locator(".chart-now").inner_text()
    page.uncheck("#smooth")
    raw = chart.locator(".chart-now").inner_text()
    assert float(raw) == pytest.approx(by_time[-1]["mean"], rel=1e-3) and raw != smooth
    before = chart.locator("canvas").screenshot()
    page.click("#axis button[value=steps]")
    assert page.locator("#axis button[value=steps]").get_attribute("aria-pressed") == "true"
    page.wait_for_timeout(100)
    box = chart.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    about = chart.locator(".chart-about")
    assert "steps: lowest" in about.inner_text() and "highest" in about.inner_text()
    assert chart.locator("canvas").screenshot() != before
    chart.locator("canvas").focus()
    tick = page.evaluate("shoal.paused")
    told = about.inner_text()
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    assert about.inner_text() != told and page.evaluate("shoal.paused") == tick  # the frame stays


def test_a_loss_that_came_later_starts_where_it_was_logged_first(reef, visit):
    page = visit(reef)
    until(page, "shoal.bins.count > 100")
    loss, returns = page.evaluate("[shoal.curve('loss'), shoal.curve('return')]")
    assert loss[0]["x"] > 600 and returns[0]["x"] < 60 and loss[-1]["x"] == returns[-1]["x"]


def test_the_returns_are_a_histogram(reef, visit):
    page = visit(reef)
    page.wait_for_selector("#returns-card:visible")
    told = page.locator("#returns-card .ends").inner_text().split("\n")
    assert told[0] == "9" and "64 rows" in told[1] and told[-1] == "500"
    canvas = decode_png(page.locator("#returns-histogram").screenshot())
    assert len(np.unique(canvas.reshape(-1, canvas.shape[-1]), axis=0)) > 1


@pytest.fixture
def stepping(name, tmp_path, monkeypatch):
    """A run that logs, until the test stops it."""
    monkeypatch.setenv("SHOAL_SESSION_DIR", str(tmp_path / "s"))
    envs = shoal.make_vec("CartPole-v1", 8, session=name, history=tmp_path / "h")
    rest, rng = threading.Event(), np.random.default_rng(0)

    def step():
        envs.reset(seed=1)
        while not rest.wait(0.002):
            envs.step(rng.integers(0, 2, 8))
            envs.log(loss=rng.random())
        envs.close()

    thread = threading.Thread(target=step)
    thread.start()
    stop = lambda: (rest.set(), thread.join())  # noqa: E731
    yield SimpleNamespace(name=name, stop=stop, file=tmp_path / "h")
    stop()


def test_pages_opened_late_reloaded_and_after_the_end_show_the_same_curves(stepping, start_python, visit):
    time.sleep(1.5)  # nobody watches
    viewer = start_python(WATCH, stepping.name)
    assert stepping.name in viewer.read()
    link = SimpleNamespace(url=viewer.read())
    page = visit(link)
    until(page, "shoal.bins.count >= 5 && shoal.curve('loss').length > 3")
    first = page.evaluate("[shoal.bins.begin, shoal.curve('return')]")
    assert first[0][0] == 0  # from the beginning of the run, not of the page
    until(page, f"shoal.bins.count > {len(first[0]) + 3}")  # new bins are added
    page.reload()
    until(page, f"window.shoal !== undefined && shoal.bins.count > {len(first[0]) + 3}")
    again = page.evaluate("[shoal.bins.begin, shoal.curve('return')]")
    assert again[0][: len(first[0])] == first[0] and again[1][: len(first[1])] == first[1]
    stepping.stop()
    until(page, "document.getElementById('status').dataset.state === 'ended'")
    history = read_history(stepping.file)
    late = visit(link, empty=True)
    until(late, f"shoal.bins.count === {len(history)}")
    whole = late.evaluate("[shoal.bins, shoal.curve('return'), shoal.curve('loss')]")
    assert whole[0]["end"] == history.bins["end"].tolist()
    assert whole[0]["steps"] == history.bins["steps"].tolist()
    for found, name in zip(whole[1:], ("return", "loss"), strict=True):
        curve = history[name]
        there = curve.weight > 0
        for key in ("mean", "low", "high", "weight"):
            assert [one[key] for one in found] == getattr(curve, key)[there].tolist()
    until(page, f"shoal.bins.count === {len(history)}")  # the page that was open has them too


def test_a_history_file_is_shown_as_a_run_that_has_ended(stepping, start_python, visit):
    time.sleep(1.0)
    stepping.stop()
    viewer = start_python(WATCH, stepping.file)
    assert "history of 8 x CartPole-v1" in viewer.read()
    page = visit(SimpleNamespace(url=viewer.read()), empty=True)
    until(page, "shoal.curve('loss').length > 1")
    until(page, "document.getElementById('status').dataset.state === 'ended'")
    assert page.locator("#status").inner_text() == "History file"
    assert "no environments" in page.locator("#notice").inner_text()
    assert page.locator("#run-name").inner_text() == stepping.name


# -- sessions, links, actions ------------------------------------------------------------------------------


@pytest.fixture
def two(name, tmp_path, monkeypatch):
    """Two runs of one user: CartPoles that always push left, and some that never learn either."""
    monkeypatch.setenv("SHOAL_SESSION_DIR", str(tmp_path / "s"))
    runs = [shoal.make_vec(env, 4, session=f"{name}-{env[:4]}") for env in ("CartPole-v1", "Snake-v0")]
    rest = threading.Event()

    def step():
        for envs in runs:
            envs.reset(seed=1)
        while not rest.wait(0.004):
            for envs in runs:
                envs.step(np.zeros(envs.action_space.shape, np.int64))
            runs[0].log(loss=1)
            runs[1].log(other=2)
        for envs in runs:
            envs.close()

    thread = threading.Thread(target=step)
    thread.start()
    yield SimpleNamespace(names=[envs.session for envs in runs], rest=rest, thread=thread)
    rest.set()
    thread.join()


def test_a_page_switches_between_sessions_and_compares_two(two, start_python, visit):
    cart, snake = two.names
    viewer = start_python(WATCH, cart)
    viewer.read()
    page = visit(SimpleNamespace(url=viewer.read()))
    until(page, "shoal.curve('loss').length > 1")
    assert page.locator("#session option").all_inner_texts() == two.names
    page.select_option("#compare", snake)
    until(page, "document.querySelector('.curve[data-curve=other]') !== null")
    assert page.locator("#compared-name").inner_text() == snake and page.locator("#compared").is_visible()
    page.wait_for_timeout(600)
    page.select_option("#session", snake)
    until(page, f"document.getElementById('run-name').innerText === '{snake}'")
    until(page, "shoal.tick !== null && shoal.curve('other').length > 1")
    assert page.evaluate("shoal.curve('loss').length") == 0  # nothing of the run that was shown before
    assert page.locator("#compared").is_hidden()
    until(page, "document.querySelector('.curve[data-curve=loss]') === null")
    page.select_option("#session", cart)
    until(page, "shoal.curve('loss').length > 1")


def test_a_session_that_ended_meanwhile_is_said_to_be_missing(two, start_python, visit):
    viewer = start_python(WATCH, two.names[0])
    viewer.read()
    page = visit(SimpleNamespace(url=viewer.read()))
    two.rest.set()
    two.thread.join()
    until(page, "document.getElementById('status').dataset.state === 'ended'")
    page.select_option("#session", two.names[1])
    until(page, "document.getElementById('status').dataset.state === 'missing'")
    assert page.locator("#status").inner_text() == "No such session"
    assert f"is called '{two.names[1]}'" in page.locator("#notice").inner_text()


@pytest.mark.parametrize(("scheme", "size"), LOOKS)
def test_the_dialog_says_what_read_only_means_and_has_a_link(reef, visit, scheme, size):
    page = visit(reef, color_scheme=scheme, viewport=size)
    page.click("#share-open")
    until(page, "document.getElementById('share-link').innerText.endsWith('?token=once')")
    told = page.locator("#share").inner_text()
    assert "They cannot change, pause or end a run" in told
    assert f"ssh -N -L {reef.port}:127.0.0.1:{reef.port} box" in told
    box = page.locator("#share").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= size["width"] and box["height"] <= size["height"]


def test_a_shared_link_opens_the_page_once_in_another_browser(stepping, start_python, visit, browser):
    viewer = start_python(WATCH, stepping.name)
    viewer.read()
    page = visit(SimpleNamespace(url=viewer.read()))
    page.click("#share-open")
    until(page, "document.getElementById('share-link').innerText.includes('?token=')")
    link = page.locator("#share-link").inner_text()
    colleague = visit(SimpleNamespace(url=link))
    assert colleague.locator("#run-name").inner_text() == stepping.name
    other = browser.new_context()
    assert other.request.get(link).status == 403  # it was used
    other.close()


def test_an_environment_that_does_not_exist_is_said(reef, visit):
    page = visit(reef)
    page.fill("#env-number", "5000")
    page.keyboard.press("Enter")
    until(page, "shoal.env === 63")
    assert page.locator("#notice").inner_text().startswith("There is no environment 5000: this run has 64")


def test_actions_are_counted_over_the_kept_frames(serve, visit):
    server = serve("vector")
    page = visit(server)
    page.wait_for_selector("#actions-card:visible")
    until(page, "shoal.frames > 20")
    page.wait_for_timeout(500)
    assert page.locator("#actions figcaption").inner_text() == "0 to 1"
    assert "frames of this environment" in page.locator("#actions-about").inner_text()
    pixels = decode_png(page.locator("#actions canvas").screenshot())
    assert len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)) > 2


@pytest.mark.parametrize(("scheme", "size"), LOOKS)
def test_a_grid_shows_up_to_64_environments(reef, visit, scheme, size):
    page = visit(reef, color_scheme=scheme, viewport=size)
    until(page, "shoal.frames > 10")
    page.select_option("#grid", "64")
    until(page, "document.querySelectorAll('#stage .thumb').length === 64")
    until(page, "shoal.thumbs.length >= 16")
    assert max(map(len, reef.watched)) == 16
    for env in range(7, 64, 8):  # only environments in view are watched
        page.locator(f".thumb[data-env='{env}']").scroll_into_view_if_needed()
        until(page, f"shoal.thumbs.includes({env})")
    until(page, "shoal.thumbs.length === 64")
    first = page.locator(".thumb[data-env='1']").bounding_box()
    assert first["width"] > 80 and 1.2 < first["width"] / first["height"] < 1.5
    page.locator(".thumb[data-env='9']").click()
    until(page, "shoal.env === 9 && document.querySelectorAll('#strip .thumb').length === 8")
    page.select_option("#grid", "16")
    until(page, "document.querySelectorAll('#stage .thumb').length === 16")
    page.locator("#theme").focus()
    page.keyboard.press("Escape")
    until(page, "document.querySelectorAll('#strip .thumb').length === 8")
