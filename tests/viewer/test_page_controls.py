"""The viewer's page in a real browser: its keys, its numbers, and what it asks of the run."""

# ruff: noqa: F811 (fixtures are imported, and named again as arguments)

import time

import numpy as np
import pytest

from tests.viewer.browsing import browser, drawn, freeze, reef, rgb, serve, until, visit  # noqa: F401
from tests.viewer.pictures import decode_png
from tests.viewer.worlds import KINDS, field

ACCENT = rgb("#0e7c86")  # of the light theme


@pytest.mark.parametrize(("typed", "shown"), [("99", "63"), ("-3", "0"), ("7.9", "7"), ("", "0")])
def test_the_number_box_shows_the_current_environment(reef, visit, typed, shown):
    page = visit(reef, "#env=5")
    page.fill("#env-number", typed)
    page.keyboard.press("Enter")
    until(page, f"shoal.env === {shown}")
    assert page.evaluate("document.activeElement.id") == "env-number"
    assert page.locator("#env-number").input_value() == shown


@pytest.mark.parametrize("focus", ["#scrub", "#live", "#tab-inspect", "#zoom-in", ".layer input"])
def test_keys_work_wherever_the_focus_is(reef, visit, focus):
    page = visit(reef)
    until(page, "shoal.frames > 20")
    before = page.evaluate("[shoal.zoom, shoal.hidden]")
    page.locator(focus).first.focus()
    page.keyboard.press(" ")
    assert page.evaluate("shoal.paused")
    tick = page.evaluate("shoal.tick")
    for key, at in [("ArrowLeft", -1), ("ArrowLeft", -2), ("ArrowRight", -1), ("Shift+ArrowLeft", -11)]:
        page.keyboard.press(key)
        assert page.evaluate("shoal.tick") == tick + at
    page.keyboard.press(" ")
    assert not page.evaluate("shoal.paused")
    assert page.evaluate("[shoal.zoom, shoal.hidden]") == before  # the space bar pressed nothing else
    assert page.locator("#tab-overview").get_attribute("aria-selected") == "true"
    page.keyboard.press("]")
    until(page, "shoal.env === 1")


def test_text_typed_into_a_field_is_not_a_command(reef, visit):
    page = visit(reef, "#tab=entities")
    page.locator("#table-filter").press_sequentially("g t f")
    assert page.locator("#table-filter").input_value() == "g t f"
    assert page.evaluate("!shoal.paused") and page.locator("#lines").get_attribute("aria-pressed") == "false"


def test_a_tab_is_chosen_with_enter(reef, visit):
    page = visit(reef)
    page.locator("#tab-inspect").focus()
    page.keyboard.press("Enter")
    assert page.locator("#inspect").is_visible()


def test_selecting_in_the_table_moves_the_view_only_if_the_entity_is_not_visible(reef, visit):
    page = visit(reef, "#tab=entities")
    world = freeze(reef, page)
    before = page.evaluate("shoal.zoom")
    page.locator("#table-body tr").nth(3).click()
    assert page.evaluate("shoal.selection.index") == 3 and page.evaluate("shoal.zoom") == before
    row, column = world.rows[3, 1:3]
    away = f"{(column + 24) % 48},{(row + 24) % 48}"
    page.goto(reef.url + f"#tab=entities&zoom=40&at={away}")
    until(page, "shoal.zoom.scale === 40")
    page.locator("#table-body tr").nth(3).click()
    x, y = page.evaluate(f"shoal.toCanvas({row}, {column})")
    assert [x, y] == pytest.approx(page.evaluate("[stage.clientWidth / 2, stage.clientHeight / 2]"), abs=1)
    assert page.evaluate("shoal.zoom.scale") == 40


def test_another_environment_is_fitted_unless_the_view_is_zoomed_in(reef, visit):
    page = visit(reef)
    whole = page.evaluate("shoal.zoom")

    def drag():
        page.locator("#stage").hover(position={"x": 300, "y": 300})
        page.mouse.down()
        page.mouse.move(480, 420)
        page.mouse.up()

    drag()
    assert not page.evaluate("shoal.zoom.fitted")
    page.keyboard.press("]")
    until(page, "shoal.env === 1 && shoal.tick !== null && shoal.zoom.fitted")
    assert page.evaluate("shoal.zoom") == pytest.approx(whole)
    page.keyboard.press("+")
    drag()
    near = page.evaluate("shoal.zoom")
    page.keyboard.press("[")
    until(page, "shoal.env === 0 && shoal.tick !== null")
    assert page.evaluate("shoal.zoom") == near


def longest_bar(page):
    return int((drawn(page) == ACCENT).all(-1).sum(1).max())


def test_bars_keep_their_scale_over_time(serve, visit):
    server = serve("vector")
    state = {"value": 4.0}
    server.world(0).fields = lambda: [
        field("observation", np.array([state["value"], 0, 0], np.float32), "step")
    ]
    page = visit(server, color_scheme="light")
    page.wait_for_timeout(200)
    long = longest_bar(page)
    state["value"] = 1.0
    page.wait_for_timeout(300)
    assert longest_bar(page) == pytest.approx(long / 4, abs=2) and long > 300


def test_a_single_value_is_a_number(serve, visit):
    server = serve("vector")
    server.world(0).fields = lambda: [
        field("observation", np.int64(14), "step"),
        field("action", np.int64(2), "step"),
    ]
    page = visit(server, "#tab=agent", color_scheme="light")
    page.wait_for_timeout(300)
    pixels = drawn(page)
    assert not (pixels == ACCENT).all(-1).any()
    assert (pixels == rgb("#152027")).all(-1).sum() > 200  # the number, in the colour of text
    assert page.locator("#agent-observation .single").inner_text() == "14"
    assert page.locator("#agent-observation canvas").count() == 0


def test_thumbnails_show_the_whole_picture(serve, visit):
    server = serve("frames")
    picture = np.zeros((40, 200, 3), np.uint8)
    picture[:, :40], picture[:, -40:] = (255, 0, 0), (0, 0, 255)
    for env in range(8):
        server.world(env).fields = lambda: [field("frame", picture, "step")]
    page = visit(server)
    until(page, "shoal.frames > 15")
    thumb = decode_png(page.locator(".thumb[data-env='0'] canvas").screenshot())[..., :3].astype(int)
    middle = thumb[thumb.shape[0] // 2]
    assert (middle[4:12] == (255, 0, 0)).all() and (middle[-12:-4] == (0, 0, 255)).all()


def test_slow_frames_go_to_the_chosen_environment_first(serve, visit):
    server = serve("vector")
    server.slow = 0.2
    page = visit(server)
    assert server.watched[0] == [0]
    start, frames = time.monotonic(), page.evaluate("shoal.frames")
    page.wait_for_timeout(8000)
    got = page.evaluate("shoal.frames") - frames
    assert got > 0.72 * (time.monotonic() - start) / server.slow  # four fifths, and some for a busy machine
    assert {env for envs in server.watched for env in envs} >= set(range(6))


def test_fast_frames_leave_time_for_all_thumbnails_at_once(reef, visit):
    page = visit(reef)
    until(page, "shoal.frames > 20")
    deadline = time.monotonic() + 15
    while max(map(len, reef.watched)) < 7:
        assert time.monotonic() < deadline, reef.watched
        page.wait_for_timeout(100)


def test_the_mean_return_has_the_number_of_episodes_as_its_title(reef, visit):
    page = visit(reef)
    until(page, "document.getElementById('n-return').innerText !== '–'")
    last = page.evaluate("shoal.curve('return').slice(-4)")  # of 31 episodes each: the last hundred and more
    mean = sum(one["mean"] for one in last) / 4
    assert float(page.locator("#n-return").inner_text()) == pytest.approx(mean, rel=1e-3)
    assert page.locator("#n-return").get_attribute("title") == "of the last 124 episodes"


def test_a_kind_is_shown_by_its_name_and_no_workers_as_threads(serve, visit):
    server = serve("reef", size=48, count=60, agents=4)
    server.workers = 0
    page = visit(server, "#select=world/animals:1&tab=agent")
    world = freeze(server, page)
    page.wait_for_timeout(300)
    assert page.locator("#entity-values dd").first.inner_text() == KINDS[world.rows[1, 0]][1]
    page.click("#tab-overview")
    assert "Workers\nthreads" in page.locator("#facts").inner_text()


def test_the_table_hints_at_hidden_columns(reef, visit):
    page = visit(reef, "#tab=entities")
    page.wait_for_selector("#table-more:visible")
    page.evaluate("document.getElementById('table-box').scrollLeft = 10000")
    page.wait_for_selector("#table-more", state="hidden")


def test_transparent_values_of_an_overlay_are_not_in_the_legend(serve, visit):
    server = serve("vector")
    over = np.zeros((12, 12), np.int8)
    over[3, 3:7] = 2
    server.world(0).fields = lambda: [
        field("ground", np.ones((12, 12), np.int8), role="grid"),
        field("paint", over, role="grid"),
    ]
    page = visit(server)
    page.wait_for_selector(".legend-group")
    groups = page.locator(".legend-group")
    page.wait_for_timeout(400)
    assert groups.nth(0).locator("li").all_inner_texts() == ["1\n144"]
    assert groups.nth(1).locator("li").all_inner_texts() == ["2\n4"]
