"""Parts of the viewer's page in a real browser: its files, its layout, its decoding and its history."""

# ruff: noqa: F811 (fixtures are imported, and named again as arguments)

from typing import Any

import numpy as np
import pytest

from tests.viewer.browsing import GROUND, browser, freeze, reef, serve, tile, until, visit  # noqa: F401
from tests.viewer.pictures import decode_gif, decode_png


def saved(page: Any, button: str) -> bytes:
    with page.expect_download() as download:
        page.click(button)
    return download.value.path().read_bytes()


def test_pictures_and_videos_of_the_view_are_saved(reef, visit):
    page = visit(reef, "#hide=world/animals")
    until(page, "shoal.frames > 25")
    world = freeze(reef, page)
    page.click("#export-open")
    page.fill("#export-seconds", "1")
    size = page.evaluate("[stage.clientHeight, stage.clientWidth]")
    png = decode_png(saved(page, "#export-png"))
    assert list(png.shape[:2]) == size
    frames, delays = decode_gif(saved(page, "#export-gif"))
    assert 8 <= len(frames) <= 12 and all(5 <= delay <= 30 for delay in delays)
    part = frames[0].shape[1] / size[1]
    for row, column in np.argwhere(world.terrain[:44, 3:] >= 0)[::37]:
        y, x = tile(page, row, column)
        color = tuple(GROUND[world.terrain[row, column]])
        assert tuple(png[y, x][:3]) == color
        assert tuple(frames[-1][int(y * part), int(x * part)]) == color
    assert page.locator("#export-webm").is_enabled()
    assert saved(page, "#export-webm")[:4] == b"\x1a\x45\xdf\xa3"


def test_a_gif_of_many_colours_is_read_back(serve, visit):
    """Noise fills LZW's tables, and has more colours than a palette. The lower half stays the same."""
    page = visit(serve("vector"))
    given, made = page.evaluate("""async () => {
        const { GifWriter } = await import("/gif.js"), gif = new GifWriter(150, 90), given = [];
        for (let k = 0; k < 2; k++) {
            const pixels = new Uint8ClampedArray(150 * 90 * 4);
            for (let i = 0; i < pixels.length; i++) {
                const noise = (i * 2654435761 + (i < pixels.length / 2 ? k * 1e6 : 0)) >>> 13;
                pixels[i] = i % 4 === 3 ? 255 : noise & 255;
            }
            gif.add(pixels, 0.1);
            given.push([...pixels]);
        }
        return [given, [...new Uint8Array(await gif.finish().arrayBuffer())]];
    }""")
    frames, delays = decode_gif(bytes(made))
    assert delays == [10, 10] and (frames[0][45:] == frames[1][45:]).all()
    for frame, wanted in zip(frames, given, strict=True):
        wanted = np.array(wanted).reshape(90, 150, 4)[..., :3]
        assert np.abs(frame[:45].astype(int) - wanted[:45]).mean() < 16
        assert np.abs(frame[45:].astype(int) - wanted[45:]).mean() < 16


@pytest.mark.parametrize("width", [380, 820, 1900])
def test_nothing_overflows_and_every_control_has_a_name(reef, visit, width):
    page = visit(reef, viewport={"width": width, "height": 760})
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    nameless = page.evaluate("""() => [...document.querySelectorAll("button, input, select")]
        .filter((one) => !(one.textContent.trim() || one.ariaLabel || one.labels?.length))
        .map((one) => one.outerHTML)""")
    assert nameless == []
    assert page.evaluate("stage.clientHeight") > 250


def test_text_of_the_run_is_never_parsed_as_html(serve, visit):
    server = serve("vector")
    server.name = "<img src=x onerror=alert(1)><b>bold</b>"
    page = visit(server)
    assert page.locator("#run-name").inner_text() == server.name
    assert page.locator("header b").count() == 0


def test_fields_are_decoded_by_their_type(serve, visit):
    page = visit(serve("vector"))
    arrays = {"<i8": [-1, 2**52], "<u8": [2**53, 7], "<f2": [1.5, -0.25], "|b1": [1, 0], "<i2": [-300, 300]}
    for dtype, values in arrays.items():
        raw = np.array(values, dtype).tobytes()
        got = page.evaluate(
            """async ([dtype, raw]) => {
            const { readFrame } = await import("/fields.js");
            const fields = [{ name: "a", part: "world", dtype, shape: [2] }];
            const buffer = new Uint8Array([...Array(16).fill(9), ...raw]).buffer;
            const head = { schema: 1, fields, changed: [[0, 8, raw.length]] };
            return [...readFrame(head, buffer, 8, null).world.get("a").data];
        }""",
            [dtype, list(raw)],
        )
        assert got == values


def test_a_frame_without_fields_needs_the_schema_it_names(serve, visit):
    page = visit(serve("vector"))
    got = page.evaluate("""async () => {
        const { readFrame } = await import("/fields.js");
        const buffer = new Uint8Array([1, 2, 3, 4]).buffer, at = (offset) => [[0, offset, 2]];
        const fields = [
            { name: "a", part: "world", dtype: "|u1", shape: [2] },
            { name: "b", part: "step", dtype: "|u1", shape: [1] },
        ];
        const first = readFrame({ schema: 1, fields, changed: [...at(0), [1, 3, 1]] }, buffer, 0, null);
        const read = (head, last) => {
            const frame = readFrame(head, buffer, 0, last);
            const values = (part) => [...part.values()].map((one) => [...one.data]);
            return frame && [values(frame.world), values(frame.step)];
        };
        return [
            read({ schema: 1, changed: at(1) }, first),
            read({ schema: 2, changed: at(1) }, first),
            read({ schema: 1, changed: at(1) }, null),
            read({ schema: 2, fields: fields.slice(0, 1), changed: at(2) }, first),
        ];
    }""")
    assert got == [[[[2, 3]], [[4]]], None, None, [[[3, 4]], []]]


def test_history_stays_within_its_budget_and_counts_shared_fields_once(serve, visit):
    page = visit(serve("vector"))
    kept, total, held = page.evaluate("""async () => {
        const { History } = await import("/history.js"), history = new History(10_000, 1000);
        const terrain = { bytes: 5000 };
        for (let i = 0; i < 100; i++) {
            const world = new Map([["terrain", terrain], ["animals", { bytes: 500 }]]);
            history.push({ world, step: new Map(), bytes: 500 + (i ? 0 : 5000), time: i });
        }
        const sum = history.frames.reduce((sum, one) => sum + one.bytes, 0);
        return [history.frames.length, history.bytes, sum];
    }""")
    assert kept == 10 and total == held == 10_000


def test_a_large_world_is_drawn_in_the_time_between_two_frames(serve, visit):
    page = visit(serve("reef"))
    until(page, "shoal.timing.count > 40")
    assert page.evaluate("shoal.timing.mean") < 50


def test_a_grid_above_another_is_transparent_without_a_category(serve, visit):
    page = visit(serve("vector"))
    got = page.evaluate("""async () => {
        const { painter } = await import("/colors.js");
        const data = new Int8Array([0, 1, 5]), grid = (categories) => ({ dtype: "|i1", data, categories });
        const named = [[5, "chest", "#ffffff"]];
        return [painter(grid(named), true), painter(grid(named)), painter(grid([]), true)]
            .map((color) => [0, 1, 5].map((value) => color(value) >>> 24));
    }""")
    assert got == [[0, 0, 255], [255, 255, 255], [0, 255, 255]]
