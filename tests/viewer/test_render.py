"""Snapshots drawn without a screen: the colours of known tiles and marks, odd inputs, and the files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.draw import mask_of
from shoal.state import Category, Field, Snapshot, painting, render, to_png, write_png
from tests.viewer.mock_server import PAGE
from tests.viewer.pictures import decode_png

SEA = (Category(0, "deep", "#102030"), Category(1, "reef", "#e08a72"), Category(-3, "rock", "#6e7683"))
KINDS = (Category(0, "fish", "#ffd166"), Category(7, "shark", "#ef476f"))
COLUMNS = ("kind", "r", "c", "hp", "hp_max", "dir")
UNKNOWN, STAGE = (0x8A, 0x8F, 0x98), (0x08, 0x0C, 0x0E)


def rgb(color):
    return tuple(int(color[at : at + 2], 16) for at in (1, 3, 5))


def snapshot(*world, step=(), **more):
    fields = {one.name: one for one in world}
    return Snapshot(3, 2, 17, 0, fields, {one.name: one for one in step}, **more)


def grid(data, categories=SEA, name="terrain"):
    return Field(name, np.asarray(data), "grid", categories=categories, stable=True)


def animals(rows, dtype=np.int32, categories=KINDS, columns=COLUMNS):
    data = np.array(rows, dtype).reshape(len(rows), len(columns))
    return Field("animals", data, "entities", columns=columns, categories=categories)


def at(pixels, row, column, scale):
    """The colour in the middle of a tile."""
    return tuple(pixels[int((row + 0.5) * scale), int((column + 0.5) * scale)])


def bare(shot, width=None, **more):
    return render(shot, width, legend=False, caption=False, **more)


def test_every_tile_has_the_colour_of_its_category():
    values = np.random.default_rng(0).choice([0, 1, -3], (12, 20)).astype(np.int8)
    pixels = bare(snapshot(grid(values)), 400)
    assert pixels.shape == (240, 400, 3) and pixels.dtype == np.uint8
    colors = {one.value: rgb(one.color) for one in SEA}
    for row in range(12):
        for column in range(20):
            tile = pixels[row * 20 : row * 20 + 20, column * 20 : column * 20 + 20].reshape(-1, 3)
            assert (tile == colors[values[row, column]]).all()


def test_a_value_without_a_category_is_grey():
    assert at(bare(snapshot(grid([[9, 0]])), 40), 0, 0, 20) == UNKNOWN


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.bool_])
def test_a_grid_without_categories_has_a_palette(dtype):
    pixels = bare(snapshot(grid(np.array([[0, 1]], dtype), ())), 40)
    assert at(pixels, 0, 0, 20) == rgb("#3d7ea6") and at(pixels, 0, 1, 20) == rgb("#e9a23b")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint16])
def test_wide_values_have_a_ramp_that_gets_lighter(dtype):
    values = np.linspace(0, 5000, 64).reshape(1, -1).astype(dtype)
    pixels = bare(snapshot(grid(values, ())), 64 * 16)
    light = [float(np.dot(at(pixels, 0, k, 16), (0.2126, 0.7152, 0.0722))) for k in range(64)]
    assert (np.diff(light) > 0).all()
    assert at(pixels, 0, 0, 16) == rgb("#14213d") and at(pixels, 0, 63, 16) == rgb("#ffe680")


def test_nan_in_a_grid_is_grey_and_the_rest_keeps_its_range():
    pixels = bare(snapshot(grid(np.array([[np.nan, 0.0, np.inf, 1.0]]), ())), 80)
    assert [at(pixels, 0, k, 20) for k in range(4)] == [UNKNOWN, rgb("#14213d"), UNKNOWN, rgb("#ffe680")]


def test_a_grid_above_another_is_transparent_without_a_category():
    items = grid([[5, 1]], (Category(5, "chest", "#ffffff"),), "items")
    pixels = bare(snapshot(grid([[0, 0]]), items), 40)
    assert at(pixels, 0, 0, 20) == (255, 255, 255) and at(pixels, 0, 1, 20) == rgb("#102030")


def test_entities_have_their_position_and_the_colour_of_their_kind():
    shot = snapshot(grid(np.zeros((10, 10), np.int8)), animals([[0, 2, 3, 9, 9, 1], [7, 8, 1, 9, 9, 1]]))
    pixels = bare(shot, 200)
    assert at(pixels, 2, 3, 20) == rgb("#ffd166") and at(pixels, 8, 1, 20) == rgb("#ef476f")
    assert at(pixels, 5, 5, 20) == rgb("#102030")


def test_entities_that_are_not_alive_are_not_drawn():
    shot = snapshot(grid(np.zeros((10, 10), np.int8)), animals([[0, -1, 3, 9, 9, 0]]))
    assert (bare(shot, 200) == rgb("#102030")).all()


@pytest.mark.parametrize(("facing", "ahead"), [(0, (-1, 0)), (1, (0, 1)), (2, (1, 0)), (3, (0, -1))])
def test_a_mark_points_where_it_faces(facing, ahead):
    shot = snapshot(grid(np.zeros((5, 5), np.int8)), animals([[0, 2, 2, 0, 0, facing]]))
    pixels = bare(shot, 500)  # a tile is 100 wide, a mark 28 to each side and 42 ahead
    middle, fish = np.array([250, 250]), rgb("#ffd166")
    assert tuple(pixels[tuple(middle + 35 * np.array(ahead))]) == fish
    assert tuple(pixels[tuple(middle - 35 * np.array(ahead))]) != fish


def test_the_health_bar_is_proportional_to_health():
    rows = [[0, 1, 1, 20, 100, 0], [0, 1, 3, 100, 100, 0]]
    pixels = bare(snapshot(grid(np.zeros((5, 5), np.int8)), animals(rows)), 250)
    low, full = rgb("#e5484d"), rgb("#46a758")
    long = [(pixels[50:100] == color).all(-1).any(0).sum() for color in (low, full)]
    assert long == [9, 43]  # 43 is all of it


def test_positions_can_be_x_and_y_without_a_grid():
    columns = ("x", "y")
    field = animals([[0.0, 0.0], [4.0, 2.0]], np.float32, (), columns)
    pixels = bare(snapshot(field), 480)
    rows, cols = np.nonzero((pixels == rgb("#3d7ea6")).all(-1))
    assert len(rows) and rows.min() < len(pixels) / 2 < rows.max() and cols.min() < 240 < cols.max()


def test_entities_with_positions_that_are_not_finite_are_not_drawn():
    rows = [[np.nan, 1, 1, np.nan, 5, np.nan], [0, np.nan, 1, 1, 1, 0], [0, 3, np.inf, 1, 1, 0]]
    pixels = bare(snapshot(grid(np.zeros((5, 5), np.int8)), animals(rows, np.float32)), 100)
    assert at(pixels, 1, 1, 20) == rgb("#ffd166")
    assert at(pixels, 3, 4, 20) == rgb("#102030")


def test_layers_choose_what_is_drawn():
    shot = snapshot(grid([[0, 1], [1, 1]]), animals([[7, 0, 0, 1, 1, 0]]))
    assert at(bare(shot, 40), 0, 0, 20) == rgb("#ef476f")
    assert at(bare(shot, 40, layers=["terrain"]), 0, 0, 20) == rgb("#102030")
    with pytest.raises(
        ValueError, match=r"layers has \['trees'\], but the world has \['animals', 'terrain'\]"
    ):
        render(shot, layers=["trees"])


@pytest.mark.parametrize("channels", [None, 1, 3, 4])
def test_images_are_drawn_unchanged(channels):
    shape = (8, 10) if channels is None else (8, 10, channels)
    data = np.random.default_rng(1).integers(0, 255, shape, np.uint8)
    pixels = bare(snapshot(Field("camera", data, "image")), 100)
    for row in range(8):
        for column in range(10):
            value = (
                np.broadcast_to(np.atleast_1d(data[row, column])[:3], 3)
                if channels != 4
                else data[row, column, :3]
            )
            assert at(pixels, row, column, 10) == tuple(value)


def test_without_a_world_the_environments_picture_is_drawn():
    frame = np.random.default_rng(1).integers(0, 255, (20, 30, 3), np.uint8)
    shot = snapshot(step=[Field("observation", np.zeros(4)), Field("frame", frame)])
    pixels = bare(shot, 60)
    assert (pixels[::2, ::2] == frame).all()


def test_without_a_picture_the_first_agents_observation_is_drawn():
    seen = np.random.default_rng(1).integers(0, 255, (2, 16, 16, 3), np.uint8)
    shot = snapshot(step=[Field("observation", seen), Field("reward", np.zeros(2))])
    assert (bare(shot, 32)[::2, ::2] == seen[0]).all()


def test_a_vector_is_drawn_as_bars_on_both_sides_of_zero():
    pixels = bare(snapshot(step=[Field("observation", np.array([1.0, -1.0, np.nan, 0.5]))]), 640, height=80)
    ink = (pixels == rgb("#3fbfc6")).all(-1)
    (zero,) = np.flatnonzero((pixels == rgb("#8b9aa3")).all(-1).all(0))
    right, left = ink[:20].any(0), ink[20:40].any(0)
    assert right[zero + 1 :].any() and not right[:zero].any() and left[:zero].any() and not left[zero:].any()
    assert not ink[40:60].any() and ink[60:].any(0).sum() == pytest.approx(right.sum() / 2, abs=1)


NAMES = ("cart position, m", "cart velocity, m/s", "angle", "spin")


def is_written(pixels, text, size=2):
    """Whether a text is somewhere in a picture, in the colour of text."""
    ink, wanted = (pixels == rgb("#e6edf0")).all(-1), mask_of(text, size)
    if ink.shape[0] < wanted.shape[0] or ink.shape[1] < wanted.shape[1]:
        return False
    windows = np.lib.stride_tricks.sliding_window_view(ink[:, : wanted.shape[1] + 40], wanted.shape)
    return bool((windows == wanted).all((-1, -2)).any())


def test_bars_have_their_names_and_values():
    seen = Field("observation", np.array([0.25, -1.5, np.nan, 0.0]), columns=NAMES)
    state = Field("state", np.zeros(4), "scalar", columns=("x", "v", "a", "s"))  # nothing to draw
    pixels = bare(snapshot(state, step=[seen]))
    for at, (name, value) in enumerate(zip(NAMES, ("0.25", "-1.5", "nan", "0"), strict=True)):
        row = pixels[at * 120 : (at + 1) * 120]
        assert is_written(row[:, :480], name) and is_written(row[:, 800:], value)
        assert not is_written(row, NAMES[at - 1])


def test_numbers_without_names_have_their_positions():
    pixels = bare(snapshot(step=[Field("observation", np.array([3.0, 4.0]))]), 320)
    assert is_written(pixels[:80, :40], "0") and is_written(pixels[80:, :40], "1")


def test_every_field_of_an_observation_is_named():
    seen = [Field("observation/speed", np.array([7.0])), Field("observation/arm", np.arange(2.0))]
    pixels = bare(snapshot(step=seen), 600)
    assert all(is_written(pixels, text) for text in ("speed", "arm 0", "arm 1"))


def test_without_an_observation_exported_numbers_are_named():
    pixels = bare(snapshot(Field("state", np.array([7.0, 2.0]), "scalar", columns=("x", "spin"))), 600)
    assert is_written(pixels, "x") and is_written(pixels, "spin")


@pytest.mark.parametrize("count", [1, 7, 64, 500])
@pytest.mark.parametrize(("width", "height"), [(16, 16), (40, 700), (900, 17), (161, 90), (640, 480)])
def test_bars_of_any_number_fit_into_any_size(count, width, height):
    names = tuple(f"a long name of number {at}" for at in range(count))
    for columns in ((), names):
        seen = Field("observation", np.linspace(-1, 1, count), columns=columns)
        pixels = bare(snapshot(step=[seen]), width, height=height)
        assert pixels.shape == (height, width, 3)
        assert (pixels == rgb("#3fbfc6")).all(-1).any()


def test_too_many_numbers_have_the_name_of_their_field():
    pixels = bare(snapshot(step=[Field("observation", np.ones(300))]), 400, height=200)
    ink = (pixels[:16] == rgb("#8b9aa3")).all(-1)
    says = mask_of("observation [300]", 1)
    assert (ink[4 : 4 + says.shape[0], 8 : 8 + says.shape[1]] == says).all()


@pytest.mark.parametrize(("wide", "expected"), [(600, 600), (1200, 1200), (84, 924), (30, 960)])
def test_an_environments_own_picture_is_enlarged_by_whole_numbers(wide, expected):
    frame = np.random.default_rng(1).integers(0, 255, (20, wide, 3), np.uint8)
    state = Field("state", np.zeros(2), "scalar")
    pixels = render(snapshot(state, step=[Field("frame", frame, "image")]), legend=False, caption=False)
    assert pixels.shape == (20 * expected // wide, expected, 3)
    each = expected // wide
    assert (pixels == frame.repeat(each, 0).repeat(each, 1)).all()


def test_the_legend_names_every_category_and_the_caption_has_episode_and_tick():
    shot = snapshot(grid([[0, 1]]), Field("light", np.float32(np.nan), "scalar"))
    plain, whole = bare(shot, 640), render(shot, 640)
    strip = whole[len(plain) : len(plain) + 24]
    assert all((strip == rgb(one.color)).all(-1).sum() == 14 * 14 for one in SEA)
    says = mask_of("env 3   episode 2   tick 17   light nan", 2)
    foot = whole[-24:]
    ink = (foot == rgb("#e6edf0")).all(-1)
    assert (ink[5 : 5 + says.shape[0], 12 : 12 + says.shape[1]] == says).all()


def test_the_caption_has_the_error():
    shot = replace(
        snapshot(grid([[0, 1]])), error="export_state() raised ValueError: no such tile " + "x" * 900
    )
    calm, whole = render(replace(shot, error="")), render(shot)
    assert len(whole) == len(calm) + 3 * 24
    says = mask_of("export_state() raised ValueError: no such tile", 2)
    ink = (whole[len(calm) :] == rgb("#e6edf0")).all(-1)
    assert (ink[5 : 5 + says.shape[0], 12 : 12 + says.shape[1]] == says).all()


def test_a_given_height_is_kept():
    shot = snapshot(grid(np.zeros((4, 40), np.int8)))
    assert render(shot, 200, 300).shape == (300, 200, 3)
    assert render(shot, 200, 40).shape == (40, 200, 3)
    pixels = bare(shot, 200, height=100)
    assert (
        (pixels[:40] == STAGE).all()
        and (pixels[41:59] == rgb("#102030")).all()
        and (pixels[60:] == STAGE).all()
    )


def test_a_huge_map_is_sampled():
    values = np.zeros((3000, 4000), np.int8)
    values[:, 2000:] = 1
    pixels = bare(snapshot(grid(values)), 400)
    assert pixels.shape == (300, 400, 3)
    assert (pixels[:, :200] == rgb("#102030")).all() and (pixels[:, 200:] == rgb("#e08a72")).all()


@pytest.mark.parametrize(
    "world",
    [
        [],
        [grid([[1]])],
        [grid(np.zeros((0, 5), np.int8))],
        [grid(np.zeros((2, 3, 4), np.int8))],
        [grid(np.full((3, 3), np.nan), ())],
        [animals([])],
        [grid([[1, 0]]), animals([])],
        [Field("animals", np.zeros((3, 2)), "entities", columns=("a", "b"))],
        [Field("odd", np.zeros((3, 2)), "hologram")],
        [Field("light", np.array([]), "scalar"), Field("many", np.full(5, np.nan), "scalar")],
        [Field("camera", np.zeros((4, 4), np.float32), "image")],
    ],
    ids=[
        "nothing",
        "1x1",
        "no rows",
        "3-d",
        "all nan",
        "nobody",
        "nobody on a map",
        "no place",
        "role",
        "scalars",
        "float image",
    ],
)
def test_unusual_worlds_are_drawn(world):
    pixels = render(snapshot(*world), 120)
    assert pixels.shape[1:] == (120, 3) and len(pixels) >= 16


@pytest.mark.parametrize(("width", "height"), [(0, None), (15, None), (100, 3), (-5, 100)])
def test_an_invalid_size_raises(width, height):
    with pytest.raises(ValueError, match=f"at least 16 by 16 pixels, not {width} by {height}"):
        render(snapshot(grid([[1]])), width, height)


def test_a_png_has_the_same_pixels(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (37, 53, 3), np.uint8)
    assert (decode_png(to_png(pixels)) == pixels).all()
    write_png(tmp_path / "a.png", pixels[::2])  # not contiguous
    assert (decode_png((tmp_path / "a.png").read_bytes()) == pixels[::2]).all()


@pytest.mark.parametrize(
    "bad", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8)]
)
def test_an_array_that_is_not_a_picture_raises(bad):
    with pytest.raises(ValueError, match=r"a picture must be uint8 \[height, width, 3\], got"):
        to_png(bad)


def test_wrong_types_raise_and_are_named():
    with pytest.raises(TypeError, match=r"render draws a Snapshot, .* got int"):
        render(3)
    with pytest.raises(TypeError, match=r"a picture must be an array, .* got str"):
        write_png("never.png", "x")


def test_every_letter_looks_different():
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:-+/_()[]%#=? "
    assert len({mask_of(letter).tobytes() for letter in letters}) == len(letters)
    assert (mask_of("é") == mask_of("?")).all() and (mask_of("abc") == mask_of("ABC")).all()
    assert mask_of("ab", 3).shape == (21, 33)


def test_the_page_has_the_same_colours():
    text = (Path(PAGE) / "colors.js").read_text()
    found = {color for color in re.findall(r"#[0-9a-f]{6}", text)}
    ours = np.concatenate([painting._PALETTE, painting._RAMP, painting._UNKNOWN[None]])
    assert found == {f"#{r:02x}{g:02x}{b:02x}" for r, g, b in ours}
