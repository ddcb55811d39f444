"""Writes a new C environment: one complete, playable file to change, and a README with the commands."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["new"]

# template.c and template.md beside this file are valid as they are; only this name is replaced in them.
_PLACEHOLDER = "template_env"


def new(name: str, directory: Path) -> list[Path]:
    """Writes `directory/name/name.c` and its README.md, and returns both paths.

    Raises ValueError if `name` is not a C identifier, and FileExistsError if the directory exists.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ValueError(
            f"the name of an environment must be letters, digits and _, beginning with a letter; got {name!r}"
        )
    target = Path(directory) / name
    try:
        target.mkdir()
    except FileExistsError:
        raise FileExistsError(f"{target} exists already; choose another name, or remove it") from None
    written = [target / f"{name}.c", target / "README.md"]
    for template, path in zip(("template.c", "template.md"), written, strict=True):
        path.write_text(_fill_template(Path(__file__).with_name(template).read_text(), name))
    return written


def _fill_template(text: str, name: str) -> str:
    """Returns a template's text with `name` filled in as a word, as a macro and as a type."""
    text = text.replace(_PLACEHOLDER.upper(), name.upper())
    text = text.replace(_camel(_PLACEHOLDER), _camel(name))
    return text.replace(_PLACEHOLDER, name)


def _camel(name: str) -> str:
    joined = "".join(word[:1].upper() + word[1:] for word in name.split("_"))
    return joined.capitalize() if joined.isupper() else joined  # names in capitals are constants of the file
