"""The reference: every public name of Shoal with its signature and its docstring, as one page of Markdown."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

MODULES = {
    "shoal": "The names that most programs need. The other names of each module follow.",
    "shoal.vector": "Vector environments: [in C](vector.md) and [in worker processes](process.md).",
    "shoal.replay": "Replay buffers in shared memory: [Replay](replay.md).",
    "shoal.state": "State and sessions of running environments: [Observing a run](state.md).",
    "shoal.memory": "Named and typed arrays in one mapping: [Shared memory](memory.md).",
    "shoal.spaces": "Values of any Gymnasium space in shared memory.",
    "shoal.cluster": "Vector environments on the nodes of a Ray cluster: [Clusters](cluster.md).",
    "shoal.reference": "Two small programs that show how shared memory is used.",
    "shoal.errors": "All exceptions; [Faults and messages](faults.md) lists their messages.",
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
    """`name(arguments) -> result`, a line for each argument where one line would be too long."""
    try:
        found = inspect.signature(thing)
    except (ValueError, TypeError):
        return f"{name}(...)"
    shown: list[str] = []
    for one in found.parameters.values():
        if one.name in ("self", "cls"):
            continue
        if one.kind is inspect.Parameter.KEYWORD_ONLY and not any(text.startswith("*") for text in shown):
            shown.append("*")
        shown.append(argument(one))
    result = "" if inspect.isclass(thing) else returned(found)
    line = f"{name}({', '.join(shown)}){result}"
    return (
        line if len(line) <= 88 else "\n".join([f"{name}(", *(f"    {one}," for one in shown), f"){result}"])
    )


def argument(one: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(one.kind, "")
    text = stars + one.name
    if one.annotation is not one.empty:
        text += f": {annotation(one.annotation)}"
    if one.default is not one.empty:
        text += " = " + re.sub(r"<([\w.]+): .*>", r"\1", repr(one.default))  # an Enum's member by its name
    return text


def returned(found: inspect.Signature) -> str:
    return "" if found.return_annotation is found.empty else f" -> {annotation(found.return_annotation)}"


def annotation(given: Any) -> str:
    return given if isinstance(given, str) else inspect.formatannotation(given)


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
