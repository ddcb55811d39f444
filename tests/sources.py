"""Finds the source files of the package, also behind src/shoal/compat, a link that Path.rglob leaves out."""

import os
from pathlib import Path


def find_files(folder: Path, *suffixes: str) -> list[Path]:
    """The files below a folder that have one of these suffixes, in order; links to folders are followed."""
    return sorted(
        Path(place) / name
        for place, _, names in os.walk(folder, followlinks=True)
        for name in names
        if Path(name).suffix in suffixes
    )
