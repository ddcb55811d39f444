"""The reference: every public name of Shoal with its signature and its docstring, as one page of Markdown."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

MODULES = {
    "shoal": "What most programs need; the rest of each module follows.",
    "shoal.vector": "Environments that step together: [in C](vector.md), [in worker processes](process.md).",
    "shoal.replay": "Experience in shared memory: [Replay](replay.md).",
    "shoal.state": "A run, seen from outside: [Looking into a run](state.md).",
    "shoal.memory": "Named, typed arrays in one mapping: [Shared memory](memory.md).",
    "shoal.spaces": "Values of any Gymnasium space in shared memory.",
    "shoal.reference": "Two small programs that show what shared memory is about.",
    "shoal.errors": "Every exception; [what you will see](faults.md) lists their messages.",
}


def reference() -> str:
    """The page."""
    lines = ["# API reference", ""]
    described: dict[int, str] = {}
    for module, sentence in MODULES.items():
        lines += [f"## {module}", "", sentence, ""]
        for name, thing in public(module):
            if id(thing) in described:
                anchor = described[id(thing)].replace(".", "").lower()
                lines += [f"- `{module}.{name}` is [{described[id(thing)]}](#{anchor})", ""]
                continue
            described[id(thing)] = f"{module}.{name}"
            lines += entry(f"{module}.{name}", name, thing)
    return "\n".join(lines)


def public(module: str) -> Iterator[tuple[str, Any]]:
    """Classes and functions of a module, by name."""
    loaded = importlib.import_module(module)
    for name in loaded.__all__:
        thing = getattr(loaded, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            yield name, thing


def entry(path: str, name: str, thing: Any) -> list[str]:
    kind = "class" if inspect.isclass(thing) else "function"
    lines = [f"### {path}", ""]
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        bases = ", ".join(f"`{base.__name__}`" for base in thing.__bases__)
        return [*lines, f"An exception; a kind of {bases}.", "", docstring(thing), ""]
    lines += ["```python", signature(name, thing), "```", "", docstring(thing), ""]
    if kind == "class":
        for member, value in members(thing):
            lines += [f"#### {name}.{member}", ""]
            if not isinstance(value, property):
                lines += ["```python", signature(member, value), "```", ""]
            lines += [docstring(value), ""]
    return lines


def members(thing: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that have a docstring of their own, inherited ones of ours included."""
    names = {
        name: None
        for kind in reversed(thing.__mro__)
        if kind.__module__.startswith("shoal")
        for name in vars(kind)
    }
    for name in names:
        value = inspect.getattr_static(thing, name)
        value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if name.startswith("_") or not (inspect.isfunction(value) or isinstance(value, property)):
            continue
        if inspect.getdoc(value):
            yield name, value


def signature(name: str, thing: Any) -> str:
    """`name(arguments) -> result`, a line for each argument where one would be too long."""
    try:
        found = inspect.signature(thing)
    except (ValueError, TypeError):
        return f"{name}(...)"
    drop = [p for p in found.parameters.values() if p.name not in ("self", "cls")]
    text = f"{name}{found.replace(parameters=drop)}"
    text = re.sub(r"'([\w.\[\], |]+)'(?=[,)=\s]|$)", r"\1", text)  # annotations are strings there
    text = re.sub(r"<(\w+)\.(\w+): [^>]*>", r"\1.\2", text)
    if len(text) <= 88:
        return text
    shown = [str(p) for p in drop]
    stars = [at for at, p in enumerate(drop) if p.kind is inspect.Parameter.KEYWORD_ONLY]
    if stars and not any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in drop):
        shown.insert(stars[0], "*")
    shown = [
        re.sub(r"<(\w+)\.(\w+): [^>]*>", r"\1.\2", re.sub(r": '([^']*)'", r": \1", one)) for one in shown
    ]
    result = text[text.rindex(")") + 1 :] if ") -> " in text else ""
    return "\n".join([f"{name}(", *(f"    {one}," for one in shown), f"){result}"])


def docstring(thing: Any) -> str:
    """The docstring as Markdown: examples as blocks, arguments as a list."""
    text = inspect.getdoc(thing) or ""
    parts = re.split(r"\n(?=Args:\n)", text, maxsplit=1)
    blocks = []
    for block in parts[0].split("\n\n"):
        if block.lstrip().startswith(">>>"):
            block = f"```pycon\n{textwrap.dedent(block)}\n```"
        elif block.startswith("    "):
            block = f"```text\n{textwrap.dedent(block)}\n```"
        blocks.append(block)
    if len(parts) > 1:
        blocks.append(arguments(parts[1]))
    return "\n\n".join(blocks)


def arguments(section: str) -> str:
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return "\n".join(f"- **`{name}`**: {' '.join(words.split())}" for name, words in found)
