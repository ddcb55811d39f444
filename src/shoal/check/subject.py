"""The environment to check: a compiled plug-in and its options."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from shoal import _core
from shoal.compat.puffer import prepare
from shoal.cuda.build import find_source
from shoal.errors import BuildError, ShoalError
from shoal.native.build import build
from shoal.native.plugin import PluginInfo, bundled, load
from shoal.vector import make_vec

__all__ = [
    "CALL_LIMIT_S",
    "CheckDoubt",
    "CheckFailed",
    "Region",
    "Subject",
    "Target",
    "Watched",
    "find_mistake",
    "prepare_subject",
]

CALL_LIMIT_S = 10
SOURCES = (".c", ".cc", ".cpp")
LIBRARIES = (".so", ".dylib")


class CheckFailed(ShoalError):
    """The plug-in violates the contract; the message says how."""


class CheckDoubt(CheckFailed):
    """A finding that may be right: it is reported as a warning."""


class Region(NamedTuple):
    """The addresses of one array of a plug-in, to explain a sanitizer's report."""

    array: str
    environments: str
    begin: int
    end: int


@dataclass(frozen=True)
class Target:
    """The device to compare with the CPU."""

    device: str
    """ "cuda", "cuda:N" or "emulated"."""
    source: str
    flags: list[str]
    """For the compiler of the emulated device."""
    library: str
    """The kernels of the emulated device, to find lines in."""
    uses_libm: bool


@dataclass(frozen=True)
class Subject:
    """A plug-in, the options to check it with, and the time limit of one call."""

    library: Path
    options: dict[str, Any] = field(default_factory=dict)
    report_regions: Callable[[list[Region]], None] | None = None
    call_limit_s: int = CALL_LIMIT_S
    target: Target | None = None

    @property
    def libraries(self) -> list[Path]:
        """The files that have code of the plug-in."""
        return [self.library] if self.target is None else [Path(self.target.library), self.library]

    def make(self, num_envs: int = 37, **keywords: Any) -> Watched:
        """Makes environments, on one thread unless `num_threads` says otherwise."""
        envs = self.watch(make_vec, "init")(
            self.library, num_envs, session=None, **{"num_threads": 1, **keywords}, **self.options
        )
        return Watched(envs, self)

    def describe(self) -> PluginInfo:
        info: PluginInfo = self.watch(load, "describe")(self.library, self.options)
        return info

    def watch(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Wraps a function so that, in the process of the checks, a call that takes too long is reported."""

        def call(*args: Any, **keywords: Any) -> Any:
            _core.watch_call(name, self.call_limit_s)
            try:
                return function(*args, **keywords)
            finally:
                _core.watch_call("", 0)

        return call


class Watched:
    """A vector environment whose calls have a time limit (`Subject.watch`)."""

    def __init__(self, envs: Any, subject: Subject) -> None:
        self._envs, self._subject = envs, subject

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._envs, name)
        return self._subject.watch(value, name) if callable(value) else value


def find_mistake(env: str, asan: bool, device: str = "cpu") -> str | None:
    """Returns what is wrong with the arguments, before anything is built; None if nothing is."""
    path = Path(env)
    if path.is_dir():
        example = next(iter(sorted(path.glob("*.c"))), path / "NAME.c")
        return f"{env} is a directory; give the source file in it, such as {example}"
    if device != "cpu" and re.fullmatch(r"emulated|cuda(:\d+)?", device) is None:
        return f'the device must be "cpu", "cuda", "cuda:N" or "emulated", got {device!r}'
    if device != "cpu" and (env.startswith("puffer:") or path.suffix in (*SOURCES[1:], *LIBRARIES)):
        try:
            find_source(path, env)
        except BuildError as error:
            return str(error)
    if env.startswith("puffer:") or path.suffix in SOURCES:
        return None
    is_bundled = env.removeprefix("shoal/") in bundled()
    if not is_bundled and path.suffix not in LIBRARIES:
        ids = ", ".join(sorted(bundled()))
        return (
            f"{env!r} is not a C file, not a compiled library and not the id of a bundled environment ({ids})"
        )
    if asan and device == "cpu":
        return f"--asan needs the source file to compile it with AddressSanitizer; {env} is compiled already"
    return None


def prepare_subject(env: str, options: dict[str, Any], flags: Sequence[str]) -> Subject:
    """Returns the subject; an environment that is given as source is compiled with extra flags."""
    if env.startswith("puffer:"):
        ready = prepare(env.removeprefix("puffer:"), options, flags=flags)
        library, options = ready.library, {"settings": ready.settings}
    elif Path(env).suffix in SOURCES:
        library = build(env, flags=flags)
    else:
        library = bundled().get(env.removeprefix("shoal/"), Path(env).absolute())
    return Subject(library, options, call_limit_s=CALL_LIMIT_S)
