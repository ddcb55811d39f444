"""Recorded episodes in the page: the list, the replay, and the export."""

# ruff: noqa: F811 (fixtures are imported, and named again as arguments)

import threading
from types import SimpleNamespace

import numpy as np
import pytest

import shoal
from tests.viewer.browsing import browser, drawn, serve, until, visit  # noqa: F401
from tests.viewer.pictures import decode_gif

LOOKS = [
    (scheme, size)
    for scheme in ("light", "dark")
    for size in ({"width": 1280, "height": 900}, {"width": 390, "height": 844})
]
EPISODES = {"best": (3, 500.0, 160), "worst": (1, 9.0, 24), "newest": (5, 87.5, 88)}
WATCH = """
import sys
from shoal.cli import main
main(["watch", sys.argv[1], "--no-browser"])
"""
STAGE = "(({ top, bottom }) => [top, bottom])(document.getElementById('stage').getBoundingClientRect())"
STATUS = "document.getElementById('status').innerText"


@pytest.fixture
def carts(serve):
    server = serve("frames")
    server.recordings = dict(EPISODES)
    return server


def saved(page, button):
    with page.expect_download() as waiting:
        page.click(button)
    with open(waiting.value.path(), "rb") as file:
        return waiting.value.suggested_filename, file.read()


@pytest.mark.parametrize(("scheme", "size"), LOOKS)
def test_the_recorded_episodes_are_listed_and_replayed_in_every_theme_and_size(carts, visit, scheme, size):
    page = visit(carts, color_scheme=scheme, viewport=size)
    page.wait_for_selector(".recording")
    lines = [one.split("\n") for one in page.locator(".recording").all_inner_texts()]
    assert [line[0] for line in lines] == ["Best", "Worst", "Newest"]
    assert lines[0][1] == "return 500 · 160 steps"
    assert lines[0][2].startswith("environment 43, episode 4,003, ") and lines[0][2].endswith(" ago")
    about = "Of 14 whole episodes of random environments, recorded in the last ten minutes."
    assert page.locator("#recordings-about").inner_text().startswith(about)
    page.click("[data-kind=best] button")
    until(page, "shoal.replay !== null && shoal.episode === 4003")
    told = "Replay: best recorded episode, return 500, 160 steps of environment 43"
    assert page.locator("#badge").inner_text() == told and page.evaluate(STATUS) == "Replay"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    until(page, "shoal.replay.playing === false")  # it has come to its end
    assert page.evaluate("shoal.tick") == 160
    until(page, "document.getElementById('when').innerText === 'tick 160 of 160'")
    top, bottom = page.evaluate(STAGE)
    assert top >= 0 and bottom <= size["height"] + 1  # a small page has scrolled to it


def test_a_replay_is_paused_scrubbed_stepped_and_played_again(carts, visit):
    page = visit(carts)
    page.wait_for_selector(".recording")
    page.click("[data-kind=best] button")
    until(page, "shoal.replay?.index > 2")
    page.keyboard.press(" ")
    assert page.evaluate("shoal.replay.playing") is False
    at = page.evaluate("shoal.tick")
    page.wait_for_timeout(500)
    assert page.evaluate("shoal.tick") == at and page.evaluate("shoal.frames") == 21
    first = drawn(page)
    page.keyboard.press("ArrowRight")
    assert page.evaluate("shoal.tick") == at + 8
    page.wait_for_timeout(100)
    assert (drawn(page) != first).any()
    page.locator("#scrub").fill("20")
    until(page, "shoal.tick === 160")
    assert page.locator("#pause").get_attribute("aria-label") == "Play"
    page.click("#pause")  # from the beginning
    until(page, "shoal.tick === 8 && shoal.replay.playing")
    page.locator("#scrub").fill("0")
    assert page.evaluate("shoal.tick") == 0 and page.evaluate("shoal.replay.playing") is False


@pytest.mark.parametrize("how", ["Live", "Escape", "environment"])
def test_the_live_view_comes_back_after_a_replay(carts, visit, how):
    page = visit(carts, "#env=2")
    page.wait_for_selector(".recording")
    before = page.evaluate("shoal.zoom")
    page.click("[data-kind=worst] button")
    until(page, "shoal.replay !== null")
    if how == "Live":
        page.click("#live")
    elif how == "Escape":
        page.keyboard.press("Escape")
    else:
        page.keyboard.press("]")
    env = 3 if how == "environment" else 2
    until(page, f"shoal.replay === null && shoal.env === {env} && shoal.episode < 4000 && !shoal.paused")
    assert page.locator("#badge").is_hidden() and page.evaluate(STATUS) == "Live"
    tick = page.evaluate("shoal.tick")
    until(page, f"shoal.tick !== {tick}")
    assert page.evaluate("shoal.zoom") == before


def test_a_whole_replayed_episode_is_exported(carts, visit):
    page = visit(carts)
    page.wait_for_selector(".recording")
    page.click("[data-kind=worst] button")
    until(page, "shoal.replay !== null")
    page.click("#export-open")
    assert page.locator("#export-seconds").is_hidden()
    assert "whole replayed episode" in page.locator("#export-note").inner_text()
    name, data = saved(page, "#export-gif")
    frames, delays = decode_gif(data)
    assert name == "frames-run-env41-episode4001.gif" and len(frames) == 4  # ticks 0, 8, 16 and 24
    assert all(4 <= delay <= 25 for delay in delays)
    assert all((one != other).any() for one, other in zip(frames, frames[1:], strict=False))
    name, data = saved(page, "#export-webm")
    assert name.endswith("-episode4001.webm") and data[:4] == b"\x1a\x45\xdf\xa3"
    is_there = page.evaluate("MediaRecorder.isTypeSupported('video/mp4')")
    assert page.locator("#export-mp4").is_visible() == is_there
    if is_there:
        assert saved(page, "#export-mp4")[1][4:8] == b"ftyp"


def test_a_recording_that_is_gone_and_a_run_that_cannot_be_recorded_are_told(carts, visit):
    page = visit(carts)
    page.wait_for_selector(".recording")
    carts.gone = {5}
    carts.problem = "another viewer records this run at the moment"
    page.click("[data-kind=newest] button")
    until(page, "document.getElementById('notice').innerText.includes('no longer kept')")
    assert page.evaluate("shoal.replay") is None
    until(page, "document.getElementById('recordings-about').innerText.includes('another viewer records')")


def test_another_run_ends_the_replay_and_empties_the_list(carts, visit):
    page = visit(carts)
    page.wait_for_selector(".recording")
    page.click("[data-kind=best] button")
    until(page, "shoal.replay !== null")
    carts.recordings = {}
    carts.started += 100
    until(page, "shoal.replay === null && document.querySelectorAll('.recording').length === 0")
    assert page.locator("#recordings-card").is_hidden()
    until(page, "shoal.tick !== null && !shoal.paused")


def test_episodes_of_a_real_fast_run_are_recorded_and_replayed(
    name, tmp_path, monkeypatch, start_python, visit
):
    monkeypatch.setenv("SHOAL_SESSION_DIR", str(tmp_path / "s"))
    going = True
    with shoal.make_vec("CartPole-v1", 8, session=name) as envs:

        def step():
            envs.reset(seed=1)
            rng = np.random.default_rng(0)
            while going:
                envs.step(rng.integers(0, 2, 8))

        stepping = threading.Thread(target=step)
        stepping.start()
        try:
            viewer = start_python(WATCH, name)
            assert name in viewer.read()
            page = visit(SimpleNamespace(url=viewer.read()))
            page.wait_for_selector(".recording")
            page.locator(".recording button").first.click()
            until(page, "shoal.replay !== null && !shoal.replay.playing")
        finally:
            going = False
            stepping.join()
        about = page.evaluate("shoal.replay.about")
        assert about["return"] == about["length"] == page.evaluate("shoal.tick") > 5
        page.locator("#scrub").fill("0")
        assert page.evaluate("shoal.tick") == 0
        assert len(decode_gif(bytes(page.evaluate(GIF)))[0]) == len(about["frames"])


GIF = "shoal.gif(0).then((blob) => blob.arrayBuffer()).then((data) => [...new Uint8Array(data)])"
