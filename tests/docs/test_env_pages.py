"""docs/envs and docs/environments.md are what the plug-ins say: `make env-pages` writes them."""

import importlib.util
import sys
import zlib

import numpy as np
import pytest

from shoal.native.plugin import bundled
from tests.docs.pages import ROOT


def load_program(name):
    """A program of docs/site as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


environments, env_pictures = load_program("environments"), load_program("env_pictures")


def read_png(data):
    """The bytes of all rows, whatever the compressor was."""
    parts, at = [], 8
    while at < len(data):
        size, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if kind == b"IDAT":
            parts.append(data[at + 8 : at + 8 + size])
        at += 12 + size
    return np.frombuffer(zlib.decompress(b"".join(parts)), np.uint8)


def test_every_page_is_what_the_plug_in_says():
    for path, text in environments.pages().items():
        assert path.read_text() == text, f"{path.name} is out of date: make env-pages"


def test_there_is_a_page_for_every_environment_and_no_other():
    pages = {path.stem for path in (ROOT / "docs" / "envs").glob("*.md")}
    assert pages == {path.stem for path in bundled().values()}
    assert pages == {path.name for path in (ROOT / "envs").iterdir() if path.is_dir()}


@pytest.mark.parametrize("name", sorted(bundled()))
def test_the_picture_of_an_environment_is_up_to_date(name):
    path = ROOT / "docs" / "pictures" / environments.picture(name)
    drawn, kept = env_pictures.draw(name), path.read_bytes()
    assert np.array_equal(read_png(drawn), read_png(kept)), "make env-pages"


@pytest.mark.parametrize("name", sorted(bundled()))
def test_a_page_has_every_part(name):
    text = (ROOT / "docs" / "envs" / f"{environments.stem(name)}.md").read_text()
    for part in ("Observation", "Action", "Reward", "End of an episode", "Agents", "Options"):
        assert f"\n## {part}\n" in text
    assert f"../pictures/{environments.picture(name)}" in text
