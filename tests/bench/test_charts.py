"""Pictures: the SVG as XML, the PNG as pixels."""

import math
import xml.etree.ElementTree as ElementTree

import pytest

from shoal_lab.bench import charts, drawing
from shoal_lab.bench.drawing import Box, Line, Picture, Text
from shoal_lab.bench.results import Point, Row, Sweep
from tests.bench.found import case, sweep

SVG = "{http://www.w3.org/2000/svg}"


def drawn(tmp_path, picture):
    drawing.write(tmp_path / "a.svg", picture)
    root = ElementTree.fromstring((tmp_path / "a.svg").read_text())
    assert root.tag == f"{SVG}svg"
    return root


def texts(root):
    return [element.text for element in root.iter(f"{SVG}text")]


def test_each_rival_has_a_bar_a_whisker_a_name_and_a_ratio(tmp_path):
    root = drawn(tmp_path, charts.bars([case()]))
    said = texts(root)
    for row in case().rows:
        assert row.name in said
    assert "90, 0.9 of the limit" in said
    assert "1, Shoal is 80.0x" in said
    bars = [rect for rect in root.iter(f"{SVG}rect") if rect.get("height") == "13.0"]
    assert len(bars) == 4
    ends = [path for path in root.iter(f"{SVG}path") if path.get("stroke") == "#1f2933"]
    assert len(ends) == 3 * 4  # the whisker and its two ends


def test_the_axis_is_logarithmic(tmp_path):
    shapes = charts.bars([case()]).shapes
    long = {shape.width for shape in shapes if isinstance(shape, Box) and shape.height == 13.0}
    ours, plain, slow, peer = sorted(long, reverse=True)[1], max(long), sorted(long)[1], min(long)
    per_decade = slow - peer  # from 1 to 10
    assert plain - slow == pytest.approx(per_decade)  # from 10 to 100
    assert plain - ours == pytest.approx(per_decade * math.log10(100 / 90))


def test_whiskers_reach_from_quartile_to_quartile(tmp_path):
    wide = case(rows=case().rows[:1])
    (whisker,) = [
        s for s in charts.bars([wide]).shapes if isinstance(s, Line) and s.points[0][1] == s.points[1][1]
    ]
    ticks = {s.text: s.x for s in charts.bars([wide]).shapes if isinstance(s, Text) and s.anchor == "middle"}
    (left, _), (right, _) = whisker.points
    assert left < right
    assert ticks["50"] < left and right < ticks["100"]


def test_every_shape_is_inside_the_picture():
    for picture in (charts.bars([case(), case()]), charts.lines([sweep(), sweep("b"), sweep("c")])):
        for shape in picture.shapes:
            points = shape.points if isinstance(shape, Line) else [(shape.x, shape.y)]
            for x, y in points:
                assert 0 <= x <= picture.width and 0 <= y <= picture.height


def test_a_sweep_has_a_line_for_each_rival_and_a_mark_where_it_saturates(tmp_path):
    root = drawn(tmp_path, charts.lines([sweep()]))
    thick = [path for path in root.iter(f"{SVG}path") if path.get("stroke-width") == "1.8"]
    assert len(thick) == 2
    assert all(path.get("d").count("L") == 3 for path in thick)
    assert len([path for path in root.iter(f"{SVG}path") if path.get("stroke-dasharray")]) == 1
    assert len(list(root.iter(f"{SVG}circle"))) == 8
    assert {"Shoal", "C loop", "Toys in C", "env steps/s by num_envs"} <= set(texts(root))
    assert {"1", "4", "16", "64"} <= set(texts(root)), "few points are named themselves"


def test_labels_of_lines_do_not_overlap():
    rows = tuple(Row(name, "shoal", (100.0 + i,)) for i, name in enumerate(("one", "two", "three")))
    close = Sweep("envs", "Toys", "num_envs", (Point(1, case(rows=rows)), Point(8, case(rows=rows))))
    said = [
        s.y for s in charts.lines([close]).shapes if isinstance(s, Text) and s.text in ("one", "two", "three")
    ]
    first, second, third = sorted(said)
    assert second - first >= 14 and third - second >= 14


def test_a_png_shows_the_same_picture(tmp_path):
    drawing.write(tmp_path / "a.png", charts.bars([case()]))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n")
    painted = drawing._paint(Picture(40, 20, [Box(10, 5, 10, 5, "#ff0000")], ""))
    assert painted.shape == (40, 80, 3)
    red = (painted == [255, 0, 0]).all(2)
    assert red.sum() == 20 * 10 and red[10:20, 20:40].all()
    dashed = drawing._paint(Picture(40, 20, [Line(((0, 10), (40, 10)), "#000000", dashed=True)], ""))
    row = (dashed == 0).all(2)[20]
    assert 0.4 < row.mean() < 0.8
    written = drawing._paint(Picture(40, 20, [Text(20, 10, "I", "#000000", "middle")], ""))
    columns = (written == 0).all(2).any(0).nonzero()[0]
    assert 30 <= columns.min() < columns.max() <= 50


def test_other_file_suffixes_raise(tmp_path):
    with pytest.raises(ValueError, match=r"end with \.svg or \.png, got .*a\.pdf"):
        drawing.write(tmp_path / "a.pdf", charts.bars([case()]))


def test_a_footer_is_wrapped_into_the_picture():
    text = " ".join(["word"] * 60)
    for picture in (charts.bars([case()], text), charts.lines([sweep()], text)):
        lines = [
            shape for shape in picture.shapes if isinstance(shape, Text) and shape.text.startswith("word")
        ]
        assert len(lines) > 1
        assert all(20 + len(line.text) * drawing.LETTER <= picture.width for line in lines)
        assert max(line.y for line in lines) < picture.height
