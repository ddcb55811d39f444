"""The viewer's page in a real browser: it shows the state and its controls work."""

# ruff: noqa: F811 (fixtures are imported, and named again as arguments)

import numpy as np
import pytest

from tests.viewer.browsing import FISH, GROUND, browser, drawn, freeze, reef, serve, tile, until, visit  # noqa: F401
from tests.viewer.worlds import KINDS, TERRAIN, WINDOW


def test_every_tile_has_the_colour_of_its_category(reef, visit):
    page = visit(reef, "#hide=world/animals")
    world, pixels = freeze(reef, page), drawn(page)
    for row in range(world.size):
        for column in range(0, world.size - 3):  # the buttons are over the last ones
            assert tuple(pixels[tile(page, row, column)]) == tuple(GROUND[world.terrain[row, column]])


def test_every_entity_is_drawn_at_its_position(reef, visit):
    page = visit(reef)
    world, pixels = freeze(reef, page), drawn(page)
    places = {(r, c): kind for kind, r, c in world.rows[:, :3]}  # the last one at a place is seen
    near = [(r, c) for r, c in places if c < 44]
    alone = [at for at in near if sum(abs(at[0] - r) < 3 and abs(at[1] - c) < 3 for r, c in places) == 1]
    assert len(alone) > 8
    for row, column in alone:
        assert tuple(pixels[tile(page, row, column)]) == tuple(FISH[places[row, column]])


def test_the_ground_is_painted_once_and_again_after_a_change(reef, visit):
    page = visit(reef, "#hide=world/animals")
    until(page, "shoal.frames > 10")
    assert page.evaluate("shoal.paints") == 1
    reef.worlds[0].terrain[5, 6] = 7 - reef.worlds[0].terrain[5, 6]
    until(page, "shoal.paints === 2")
    world = freeze(reef, page)
    assert tuple(drawn(page)[tile(page, 5, 6)]) == tuple(GROUND[world.terrain[5, 6]])


def test_environments_are_chosen_by_number_key_and_thumbnail(reef, visit):
    page = visit(reef)
    page.fill("#env-number", "63")
    page.keyboard.press("Enter")
    until(page, "shoal.env === 63 && shoal.tick !== null")
    page.locator("#marks").focus()
    page.keyboard.press("[")
    until(page, "shoal.env === 62")
    page.click(".thumb[data-env='58']")
    until(page, "shoal.env === 58 && shoal.tick !== null")
    until(page, "new URLSearchParams(location.hash.slice(1)).get('env') === '58'")
    for _ in range(100):  # the others are looked at now and then
        if max(map(len, reef.watched)) > 1:
            break
        page.wait_for_timeout(50)
    world = freeze(reef, page)
    assert tuple(drawn(page)[tile(page, 20, 1)]) in {tuple(GROUND[world.terrain[20, 1]]), *map(tuple, FISH)}
    assert all(len(envs) <= 8 for envs in reef.watched) and max(map(len, reef.watched)) > 1
    assert [58] in reef.watched  # most of the time the others are not watched


def test_a_number_beyond_the_last_environment_chooses_the_last(reef, visit):
    page = visit(reef)
    page.fill("#env-number", "5000")
    page.keyboard.press("Enter")
    until(page, "shoal.env === 63")


def test_the_view_pauses_while_the_run_continues_and_past_frames_can_be_shown(reef, visit):
    page = visit(reef)
    until(page, "shoal.frames > 20")
    page.locator("#marks").focus()
    page.keyboard.press(" ")
    tick, frames = page.evaluate("[shoal.tick, shoal.frames]")
    assert page.locator("#badge").inner_text() == "View paused. The run continues."
    until(page, f"shoal.frames > {frames + 5}")
    assert page.evaluate("[shoal.tick, shoal.paused]") == [tick, True]
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("shoal.tick") == tick - 1
    page.locator("#scrub").focus()
    page.keyboard.press("Home")
    until(page, f"shoal.tick < {tick - 10}")
    page.click("#live")
    until(page, f"shoal.tick > {tick + 5} && !shoal.paused")
    assert page.locator("#badge").is_hidden()


def test_a_past_frame_shows_its_own_entities(reef, visit):
    page = visit(reef)
    then = freeze(reef, page)
    tick, rows = then.tick, then.rows.copy()
    reef.hold = False
    until(page, f"shoal.tick > {tick + 15}")
    page.locator("#marks").focus()
    page.keyboard.press(" ")
    while page.evaluate("shoal.tick") > tick:
        page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(200)
    pixels = drawn(page)
    places = {(r, c): kind for kind, r, c in rows[:, :3]}
    alone = [at for at in places if sum(abs(at[0] - r) < 3 and abs(at[1] - c) < 3 for r, c in places) == 1]
    for row, column in [at for at in alone if at[1] < 44 and at[0] > 4]:
        assert tuple(pixels[tile(page, row, column)]) == tuple(FISH[places[row, column]])


def test_a_link_opens_the_same_view_again(reef, visit):
    page = visit(reef, "#env=3")
    page.locator("#stage").hover(position={"x": 300, "y": 300})
    page.mouse.wheel(0, -600)
    page.mouse.down()
    page.mouse.move(420, 350)
    page.mouse.up()
    page.click("#tab-entities")
    page.locator("#table-body tr").nth(2).click()
    page.keyboard.press("t")
    page.keyboard.press("g")
    page.click("#tab-overview")
    page.locator(".layer", has_text="terrain").locator("input").uncheck()
    page.click("#copy-link")
    page.wait_for_timeout(500)  # frames come and go, and it can still be read
    said = page.locator("#notice").inner_text()
    assert said.startswith(("Link copied", "The link is in the address bar"))
    others = "works in this browser; others need the link that shoal watch printed"
    assert said.endswith(others) and page.locator("#copy-link").get_attribute("title").endswith(others)
    link, state = page.evaluate("[location.hash, [shoal.env, shoal.zoom, shoal.selection, shoal.hidden]]")
    again = visit(reef, link)
    env, zoom, selection, hidden = again.evaluate("[shoal.env, shoal.zoom, shoal.selection, shoal.hidden]")
    assert [env, selection, hidden] == [3, {"key": "world/animals", "index": 2}, ["world/terrain"]]
    assert [env, selection, hidden] == [state[0], state[2], state[3]]
    assert zoom == pytest.approx(state[1], abs=0.01) and not zoom["fitted"]
    assert again.evaluate("document.documentElement.dataset.theme") == "dark"
    assert again.locator("#lines").get_attribute("aria-pressed") == "true"


def test_the_theme_follows_the_system_and_can_be_switched(reef, visit):
    for scheme, color in [("light", (0xE9, 0xED, 0xEF)), ("dark", (0x08, 0x0C, 0x0E))]:
        page = visit(reef, color_scheme=scheme)
        assert tuple(drawn(page)[-3, 3]) == color
    page.click("#theme")
    until(page, "document.documentElement.dataset.theme === 'light'")
    page.wait_for_timeout(100)
    assert tuple(drawn(page)[-3, 3]) == (0xE9, 0xED, 0xEF)


def test_the_table_holds_few_rows_sorts_and_selects(serve, visit):
    server = serve("reef", size=128, count=3000, agents=4)
    page = visit(server, "#tab=entities")
    world = freeze(server, page)
    page.wait_for_selector("#table-body tr")
    assert page.locator("#table-body tr").count() < 80
    page.locator("#table-head button", has_text="hp").first.click()
    shown = page.locator("#table-body tr td:nth-child(5)").all_inner_texts()
    assert list(map(int, shown)) == sorted(world.rows[:, 3], reverse=True)[: len(shown)]
    page.locator("#table-body tr").nth(3).click()
    assert page.evaluate("shoal.selection.index") == np.argsort(-world.rows[:, 3], kind="stable")[3]
    page.fill("#table-filter", "shark")
    assert f"{(world.rows[:, 0] == 1).sum()} of 3,000" == page.locator("#table-count").inner_text()


def test_a_selected_agent_shows_its_observation(reef, visit):
    page = visit(reef, "#select=world/animals:1&tab=agent")
    world = freeze(reef, page)
    page.wait_for_timeout(300)
    r, c = world.rows[1, 1:3]
    seen = page.evaluate("""() => [...document.querySelectorAll(".channels canvas")].map((canvas) =>
        [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data])""")
    assert len(seen) == 3
    window = np.array(seen[0]).reshape(WINDOW, WINDOW, 4)[..., :3]
    around = np.pad(world.terrain, WINDOW // 2, mode="wrap")[r : r + WINDOW, c : c + WINDOW]
    assert (window == GROUND[around]).all()
    assert page.locator("#agent-title").inner_text() == "Agent 1"
    page.goto(reef.url + "#select=world/animals:40&tab=agent")  # an entity, but no agent
    page.wait_for_selector("#agent-none:visible")
    assert page.locator("#agent-some").is_hidden() and page.locator("#entity-title").inner_text().endswith(
        " 40"
    )


def test_hovering_shows_tile_category_and_entity(reef, visit):
    page = visit(reef)
    world = freeze(reef, page)
    row, column = world.rows[-1, 1:3]
    y, x = tile(page, row, column)
    page.locator("#marks").hover(position={"x": x, "y": y})
    said = page.locator("#hover").inner_text()
    assert f"row {row}, column {column}" in said and TERRAIN[world.terrain[row, column]][1] in said
    assert KINDS[world.rows[-1, 0]][1] in said and f"of {world.rows[-1, 4]} hp" in said


def test_the_inspector_measures_every_field(reef, visit):
    page = visit(reef, "#tab=inspect")
    world = freeze(reef, page)
    page.locator(".field", has_text="animals").locator("summary").click()
    page.locator(".field", has_text="animals").locator("select").select_option("hp")
    told = page.locator(".field", has_text="animals").locator("dd").all_inner_texts()
    hp = world.rows[:, 3]
    assert told[:2] == [str(hp.min()), str(hp.max())] and float(told[2]) == pytest.approx(hp.mean(), rel=1e-3)
    assert "int8 [48, 48] · grid" in page.locator(".field", has_text="terrain").inner_text()


def test_the_page_reconnects_after_a_lost_connection(reef, visit):
    page = visit(reef, expect_lost=True)
    until(page, "shoal.frames > 5")
    reef.hang_up()
    until(page, "document.getElementById('status').dataset.state === 'lost'")
    frames = page.evaluate("shoal.frames")
    until(page, "document.getElementById('status').dataset.state === 'live'")
    until(page, f"shoal.frames > {frames + 5}")


def test_the_page_shows_the_end_of_the_run(reef, visit):
    page = visit(reef)
    reef.run = "ended"
    page.wait_for_selector("#badge:visible")
    assert "ended" in page.locator("#badge").inner_text()
    assert page.locator("#status").inner_text() == "Run ended"


def test_a_new_run_of_the_name_is_shown_live_without_old_frames(reef, visit):
    page = visit(reef)
    until(page, "shoal.frames > 20")
    page.locator("#marks").focus()
    page.keyboard.press(" ")
    reef.run = "ended"
    page.wait_for_selector("#badge:visible")
    reef.worlds.clear()
    reef.run, reef.started = "stepping", reef.started + 5
    until(page, "document.getElementById('status').dataset.state === 'live'")
    assert page.locator("#notice").inner_text() == "A new run of reef-run"
    assert page.evaluate("shoal.frames < 20 && !shoal.paused") and page.locator("#badge").is_hidden()
    until(page, "shoal.frames > 20 && document.getElementById('notice').hidden")


def test_a_page_opened_after_the_end_shows_no_error(reef, visit):
    reef.silent, reef.run = True, "ended"
    page = visit(reef, empty=True)
    until(page, "document.getElementById('status').dataset.state === 'ended'")
    assert page.locator("#notice").get_attribute("data-bad") == "false"
    assert "was not watched before" in page.locator("#notice").inner_text()


def test_an_idle_run_explains_why_there_is_no_frame(reef, visit):
    reef.silent, reef.run = True, "idle"
    page = visit(reef, empty=True)
    until(page, "document.getElementById('status').dataset.state === 'idle'")
    said = "Nothing to show yet: the run has not stepped since this page was opened"
    assert page.locator("#notice").inner_text() == said and page.locator("#notice").is_visible()
    reef.silent, reef.run = False, "stepping"
    until(page, "shoal.tick !== null")
    assert page.locator("#notice").is_hidden()


def test_a_plain_environment_shows_its_picture_action_and_reward(serve, visit):
    server = serve("frames")
    page = visit(server)
    world = freeze(server, page)
    picture, pixels = np.frombuffer(world.fields()[-1]["data"], np.uint8).reshape(400, 600, 3), drawn(page)
    cart = np.argwhere((picture == (20, 20, 24)).all(-1)).mean(0).astype(int) + (5, 0)  # below the pole
    for row, column in [(20, 20), (390, 20), (200, 100), tuple(cart)]:
        assert tuple(pixels[tile(page, row, column)]) == tuple(picture[row, column])
    assert f"action {world.tick % 2} · reward 1" in page.locator("#told").inner_text()


def test_an_environment_without_world_and_picture_shows_its_observation_as_bars(serve, visit):
    server = serve("vector")
    page = visit(server, color_scheme="light")
    freeze(server, page)
    assert (drawn(page) == (0x0E, 0x7C, 0x86)).all(-1).sum() > 1000
