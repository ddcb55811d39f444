"""Workers get the program's registry of Gymnasium environments.

    program                                  worker
    pickle_registry() ----in its plan---->   Registry.enter(): the same ids with the same specs
                                             importing a package that registers an id again does not
                                             replace its spec

1. A package registers its environments when it is imported, and a worker imports it again. Therefore a
   registration that an import makes never replaces a spec of the program.
2. It adds an id that the program does not have, unless the program has imported the same module: then the
   program has deleted that id.
3. A call of gymnasium.register that is not part of an import, such as one in an env_fn, works as usual.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NoReturn

import gymnasium
from gymnasium.envs import registration
from gymnasium.envs.registration import EnvSpec

from shoal.errors import WorkerError
from shoal.process.mail import dumps

__all__ = ["Registry", "keep_registry", "pickle_registry"]

_OWN = "shoal/"
"""Every process registers these itself; they cost too much to pickle."""
_CALLERS = ("shoal.process.chunks", "shoal.process.worker")
"""Modules whose frames are below everything that environments do."""

_pickled_here: dict[str, bytes | str] = {}
"""This process's registry when it was last pickled. A worker forked later need not unpickle these specs."""


@dataclass(frozen=True, slots=True)
class Registry:
    """The program's registry, as it is sent to workers."""

    specs: dict[str, bytes | str]
    """For every id its pickled spec (bytes), or the reason why it cannot be pickled (str)."""
    modules: frozenset[str]
    """The modules that the program has imported, without the standard library."""

    def enter(self) -> None:
        """Replaces this process's registry by the program's, and protects it from imports."""
        registry = gymnasium.registry
        if not _pickled_here:
            pickle_registry()
        for name in [name for name in registry if self._has_deleted(name)]:
            del registry[name]
        guard = _Guard({name: registry.get(name) for name in self.specs}, self.modules)
        changed = {name: data for name, data in self.specs.items() if not _is_here(name, data)}
        guard.specs.update(dict.fromkeys(changed))
        _install(guard)
        for name, data in changed.items():  # unpickling imports what the specs refer to
            spec, is_whole = _restore(name, data)
            registry[name] = spec
            if is_whole:
                guard.specs[name] = spec
            else:
                del guard.specs[name]
                guard.stand_ins.add(name)
        _pickled_here.clear()
        _pickled_here.update(self.specs)

    def _has_deleted(self, name: str) -> bool:
        """Whether the program has deleted this id."""
        if name in self.specs or name.startswith(_OWN):
            return False
        spec = gymnasium.registry[name]
        entry_point: Any = spec.entry_point or spec.vector_entry_point
        module = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
        package = str(module).partition(":")[0].partition(".")[0]
        return package in self.modules or package in ("__main__", "__mp_main__")


def pickle_registry() -> Registry:
    """Returns this process's registry, pickled for workers."""
    specs: dict[str, bytes | str] = {}
    for name, spec in list(gymnasium.registry.items()):
        if name.startswith(_OWN):
            continue
        try:
            specs[name] = dumps(spec)
        except Exception as error:
            specs[name] = f"{type(error).__name__}: {error}"
    _pickled_here.clear()
    _pickled_here.update(specs)
    standard = sys.stdlib_module_names
    modules = frozenset(name for name in list(sys.modules) if name.partition(".")[0] not in standard)
    return Registry(specs, modules)


@contextlib.contextmanager
def keep_registry() -> Iterator[None]:
    """While the caller makes environments itself, treats its imports like those of a worker."""
    if _entered is not None:
        yield
        return
    before = getattr(_caller, "guard", None)
    _install(None)
    _caller.guard = _Guard(dict(gymnasium.registry), frozenset())
    try:
        yield
    finally:
        _caller.guard = before


@dataclass(slots=True)
class _Guard:
    """Decides what an import may register."""

    specs: dict[str, EnvSpec | None]
    """The program's specs; None for one that is being unpickled."""
    modules: frozenset[str]
    stand_ins: set[str] = field(default_factory=set)
    """Ids of the program whose specs could not be sent here."""

    def admit(self, name: str, module: str) -> bool:
        """Whether the import of that module may register that id."""
        if name in self.specs:
            spec = self.specs[name]
            if spec is not None:  # a module may delete an id before it registers it
                gymnasium.registry.setdefault(name, spec)
            return False
        if name in self.stand_ins:
            gymnasium.registry.pop(name, None)
            return True
        return module not in self.modules


_entered: _Guard | None = None
"""The guard of a worker."""
_caller = threading.local()
"""The guard of a thread that makes environments in the program itself."""


def _install(guard: _Guard | None) -> None:
    """Replaces gymnasium.register by a function that asks the guard."""
    global _entered
    _entered = guard
    original = registration.register
    if hasattr(original, "asks_guard"):
        return

    @functools.wraps(original)
    def register(id: str, *args: Any, **kwargs: Any) -> None:
        guard = getattr(_caller, "guard", None) or _entered
        module = None if guard is None else _find_importer(sys._getframe(1))
        if guard is None or module is None or guard.admit(_find_full_id(id), module):
            original(id, *args, **kwargs)

    register.asks_guard = True  # type: ignore[attr-defined]
    for module in (gymnasium, gymnasium.envs, registration):
        if getattr(module, "register", None) is original:
            module.register = register  # type: ignore[attr-defined]


def _find_importer(frame: FrameType | None) -> str | None:
    """Returns the innermost module that is being imported; None if the call is not part of an import."""
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if name in _CALLERS:
            return None
        if frame.f_code.co_name == "<module>":
            module = sys.modules.get(str(name))
            if module is not None and vars(module) is frame.f_globals:
                return str(name)
        frame = frame.f_back
    return None


def _find_full_id(id: str) -> str:
    namespace, name, version = registration.parse_env_id(id)
    if registration.current_namespace is not None:
        namespace = registration.current_namespace
    return registration.get_env_id(namespace, name, version)


def _is_here(name: str, data: bytes | str) -> bool:
    """Whether this process has that spec already. Two specs that cannot be pickled count as equal."""
    here = _pickled_here.get(name)
    return here == data or (isinstance(here, str) and isinstance(data, str))


def _restore(name: str, data: bytes | str) -> tuple[EnvSpec, bool]:
    """Returns the program's spec and True, or a stand-in that raises an error when it is made and False."""
    if isinstance(data, bytes):
        try:
            return pickle.loads(data), True
        except Exception as error:
            data = f"{type(error).__name__}: {error}"
    return EnvSpec(name, entry_point=functools.partial(_refuse, name, data)), False


def _refuse(name: str, why: str, **options: Any) -> NoReturn:
    raise WorkerError(
        f"{name} is registered in the program, but its spec cannot be sent to a worker process: {why}. "
        'Register it inside the env_fn, or use context="fork"'
    )
