"""The screenshots in the documentation come from tests/viewer/screenshots.py, which still makes them."""

# ruff: noqa: F811 (fixtures are imported, and named again as arguments)

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.viewer.browsing import browser  # noqa: F401
from tests.viewer.pictures import decode_png
from tests.viewer.screenshots import PROGRAM, SHOTS, read_signature, sign

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"


def check(data, name):
    """The picture is signed, has the size of its shot, and is as bright as its theme."""
    assert read_signature(data) == f"{PROGRAM} {name}", "make screenshots"
    assert struct.unpack(">II", data[16:24]) == SHOTS[name].pixels
    pixels = decode_png(data)[..., :3]
    ground = np.median(pixels[: pixels.shape[0] // 20], axis=(0, 1))  # of the header
    assert (ground > 240).all() if SHOTS[name].scheme == "light" else (ground < 40).all()
    assert len(np.unique(pixels[::7, ::7].reshape(-1, 3), axis=0)) > 20  # something is drawn


def test_every_screenshot_has_a_program_and_every_program_a_screenshot():
    assert {path.stem for path in PICTURES.glob("viewer_*.png")} == set(SHOTS)
    assert {(shot.scheme, shot.ratio) for shot in SHOTS.values()} == {
        (scheme, ratio) for scheme in ("light", "dark") for ratio in (1, 2)
    }


@pytest.mark.parametrize("name", SHOTS)
def test_a_screenshot_of_the_documentation_was_made_by_the_program(name):
    check((PICTURES / f"{name}.png").read_bytes(), name)


@pytest.mark.parametrize("name", SHOTS)
def test_a_screenshot_is_shown_in_the_documentation(name):
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert any(f"pictures/{name}.png" in page.read_text() for page in pages)


def test_a_picture_that_was_not_made_by_the_program_has_no_signature():
    data = (PICTURES / "env_cartpole.png").read_bytes()
    assert read_signature(data) == "" and read_signature(sign(data, "x")) == f"{PROGRAM} x"
    decode_png(sign((PICTURES / "viewer_light.png").read_bytes(), "x"))  # its checksums are right


@pytest.mark.timeout(400)
def test_the_program_makes_every_screenshot(browser, tmp_path):
    """In real runs, which are shorter here; a page that says anything on its console fails."""
    command = [sys.executable, "-m", "tests.viewer.screenshots", str(tmp_path), "--seconds", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stderr[-2000:]
    for name in SHOTS:
        check((tmp_path / f"{name}.png").read_bytes(), name)
