"""Finds peers: in this Python, in a Python given by an option, or in their own virtual environment.

With `--install`, each peer gets a virtual environment in the user's cache, because some pin versions that
others cannot use. Later runs find it there.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import ShoalError

__all__ = ["PEERS", "Peer", "check_import", "environments", "find", "install"]


@dataclass(frozen=True)
class Peer:
    """A library as `--against` names it."""

    module: str
    packages: tuple[str, ...]
    suites: tuple[str, ...]


PEERS = {
    "gymnasium": Peer("gymnasium", ("gymnasium",), ("native", "process", "startup", "memory")),
    "envpool": Peer("envpool", ("envpool", "gymnasium"), ("native", "startup")),
    "pufferlib": Peer("pufferlib", ("pufferlib",), ("native", "process", "startup", "memory")),
    "sb3": Peer("stable_baselines3", ("stable-baselines3",), ("process", "replay", "startup", "memory")),
    "tianshou": Peer("tianshou", ("tianshou",), ("process", "replay", "startup", "memory")),
    "torchrl": Peer("torchrl", ("torchrl", "gymnasium"), ("process", "replay", "startup", "memory")),
    "cpprb": Peer("cpprb", ("cpprb",), ("replay", "startup", "memory")),
}


def environments() -> Path:
    """Returns the directory with a virtual environment for each installed peer."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "shoal" / "peers"


def _find_python(name: str) -> Path | None:
    """Returns the Python of a peer's environment, or None if its installation did not finish."""
    directory = environments() / name
    return directory / "bin" / "python" if (directory / "installed").exists() else None


def find(
    against: Sequence[str] | None, pythons: Mapping[str, str], say: Callable[[str], None]
) -> dict[str, str]:
    """Returns the Python of each peer, by module. Raises ShoalError if a peer in `against` is missing."""
    for name in [*(against or ()), *pythons]:
        if name not in PEERS:
            raise ShoalError(f"unknown peer {name!r}; peers are {', '.join(PEERS)}")
    found, missing = {}, []
    for name, peer in PEERS.items():
        if against is not None and name not in against:
            continue
        own = _find_python(name)
        if name in pythons:
            found[peer.module] = _check_python(name, peer, pythons[name])
        elif importlib.util.find_spec(peer.module) is not None:
            found[peer.module] = sys.executable
        elif own is not None:
            found[peer.module] = str(own)
        else:
            missing.append(name)
    if missing and against is not None:
        raise ShoalError(
            f"not installed here: {', '.join(missing)}. Run with --install --against {','.join(missing)}, "
            f"which installs them in {environments()}, or give a Python that has them: "
            f"--python {missing[0]}=PATH"
        )
    if missing:
        say(f"not installed, left out: {', '.join(missing)} (--install installs them)")
    return found


def _check_python(name: str, peer: Peer, python: str) -> str:
    try:
        wrong = check_import(python, peer.module)
    except OSError as error:
        raise ShoalError(f"--python {name}={python}: {error.strerror}") from None
    if wrong is not None:
        raise ShoalError(f"--python {name}={python} cannot import {peer.module}: {wrong}")
    return python


def _environment_with_bytecode() -> dict[str, str]:
    """Returns the environment variables without the one that forbids caching bytecode."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def check_import(python: str, modules: str) -> str | None:
    """Imports modules in a new Python process; returns None or the error.

    The process runs in a temporary directory, because some libraries write files into the current one.
    """
    python = os.path.abspath(python) if os.sep in python else python
    with tempfile.TemporaryDirectory(prefix="shoal-peer-") as directory:
        command = [python, "-c", f"import {modules}"]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=directory, env=_environment_with_bytecode()
        )
    return (
        None
        if done.returncode == 0
        else (done.stderr.strip().splitlines() or ["it failed without a message"])[-1]
    )


def install(
    names: Sequence[str], say: Callable[[str], None], run: Callable[..., object] | None = None
) -> None:
    """Installs each peer in its own virtual environment; reports failures and continues with the others."""
    run = run or subprocess.run
    for name in names:
        directory = environments() / name
        if _find_python(name) is not None:
            say(f"{name} is installed in {directory}")
            continue
        say(f"installing {', '.join(PEERS[name].packages)} in {directory}")
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        pip = [str(directory / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        try:
            run([sys.executable, "-m", "venv", str(directory)], check=True, capture_output=True, text=True)
            run([*pip, "install", *PEERS[name].packages], check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            wrong = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "")
            say(f"{name} could not be installed: {wrong}")
            continue
        (directory / "installed").touch()
