"""Tests the core and the wheel for arm64 on an x86-64 machine, with Debian's qemu-user: `make test-arm64`.

    apt-get, with package lists of its own  ->  build/arm64: qemu, the arm64 Python 3.11, its libraries
    tests/core/run.sh, compiled by zig      ->  the C tests of the core, under qemu
    wheels.py: the wheel of CPython 3.11    ->  this file with --smoke prints the same lines on both machines

Nothing is installed outside build/, and root is not needed. qemu translates instructions and passes system
calls on to this machine's kernel. Two things are not tested, and need an arm64 machine:

1. The memory order of arm64: translated code has that of x86-64, and the error of qemu that ONE_CORE names.
2. Robust futexes and futex_waitv, which qemu does not have. Worker processes work without them: the parent
   then learns of a death from a pidfd.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import wheels
from wheels import QUIET, ROOT, Failed, run

BUILD = ROOT / "build" / "arm64"
SYSTEM = BUILD / "system"
LAUNCHER = BUILD / "python"
PYTHON = "3.11"  # the one of Debian 12
PACKAGES = (f"python{PYTHON}-minimal", f"libpython{PYTHON}-stdlib", "libstdc++6")
ONE_CORE = ("gate_order", "gates", "tickets", "pool", "pool_steps", "flow")
"""C tests that fail if a wake-up is lost. On several cores, qemu 7.2 can run a sequentially consistent load
(ldar) before an earlier such store (stlr), so both sides of a wake-up miss the other. arm64 cannot."""
LIMIT_S = 600  # of one C test, and of the smoke test


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--prepare", action="store_true", help="fetch what is missing into build/, test nothing"
    )
    parser.add_argument(
        "--smoke", action="store_true", help="use the shoal of this Python and print checksums"
    )
    parser.add_argument("--wheel", type=Path, help=f"test this wheel of CPython {PYTHON}, build none")
    args = parser.parse_args()
    if args.smoke:
        smoke()
        return 0
    begin = time.monotonic()
    try:
        qemu, compiler = prepare()
        if args.prepare:
            return 0
        test_core(qemu, compiler)
        test_wheel(qemu, args.wheel or build_wheel())
    except Failed as error:
        print("failed:", str(error).splitlines()[-1] if args.prepare else error)
        return 1
    print(f"arm64: all tests passed, in {(time.monotonic() - begin) / 60:.1f} minutes")
    return 0


# ---- What is needed: qemu, an arm64 Python, a compiler for arm64


def prepare() -> tuple[Path, Path]:
    """Fetches what is missing; returns qemu and the C compiler."""
    if platform.machine() in ("aarch64", "arm64"):
        raise Failed("this machine is arm64, where make wheels tests the wheels itself")
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise Failed("this system has no apt-get and dpkg to fetch qemu and an arm64 Python with")
    interpreter = wheels.find_python(PYTHON)
    if interpreter is None:
        raise Failed(f"there is no python{PYTHON} with its headers to build the wheel with")
    found = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    qemu = Path(found or BUILD / "qemu" / "usr" / "bin" / "qemu-aarch64-static")
    if found is None:
        unpack(("qemu-user-static",), run(["dpkg", "--print-architecture"]).strip(), BUILD / "qemu")
    unpack(PACKAGES, "arm64", SYSTEM)
    binaries = wheels.make_environment(interpreter, wheels.BUILD / f"python-{PYTHON}", wheels.TOOLS)
    return qemu, wheels.write_programs(binaries, "aarch64") / "cc"


def unpack(packages: tuple[str, ...], architecture: str, directory: Path) -> None:
    """Unpacks Debian packages with their dependencies; the package lists of this system stay as they are."""
    mark = directory / ".packages"
    if mark.is_file() and mark.read_text() == "\n".join(packages):
        return
    print(f"fetching {', '.join(packages)} for {architecture}", flush=True)
    shutil.rmtree(directory, ignore_errors=True)
    apt = BUILD / f"apt-{architecture}"
    for part in ("lists/partial", "archives/partial"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()  # nothing is installed, so apt-get fetches every dependency
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "",
        "Dir::State": apt,
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt,
        "Debug::NoLocking": "true",
    }
    command = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in settings.items())]
    run([*command, "update"])
    run([*command, "install", "--yes", "--download-only", "--no-install-recommends", *packages])
    for archive in sorted((apt / "archives").glob("*.deb")):
        run(["dpkg", "-x", str(archive), str(directory)])
    shutil.rmtree(apt)
    mark.write_text("\n".join(packages))


# ---- The core


def test_core(qemu: Path, compiler: Path) -> None:
    names = sorted(path.name for path in (ROOT / "tests" / "core").glob("test_*.c"))
    on_one = [f"test_{name}.c" for name in ONE_CORE]
    launcher = f"timeout --signal=KILL {LIMIT_S} {os.path.relpath(qemu, ROOT)} -L {SYSTEM.relative_to(ROOT)}"
    run_programs(compiler, launcher, [name for name in names if name not in on_one])
    run_programs(compiler, f"taskset --cpu-list {max(os.sched_getaffinity(0))} {launcher}", on_one)
    print(f"core: {len(names)} C programs passed, {len(on_one)} of them on one core", flush=True)


def run_programs(compiler: Path, launcher: str, names: list[str]) -> None:
    variables = {
        **os.environ,
        "CC": str(compiler),
        "OUT": str(BUILD / "core"),
        "LAUNCHER": launcher,
        "TESTS": " ".join(f"tests/core/{name}" for name in names),
    }
    if subprocess.run([str(ROOT / "tests" / "core" / "run.sh")], env=variables).returncode != 0:
        raise Failed("a C test of the core, see above")


# ---- The wheel


def build_wheel() -> Path:
    interpreter = wheels.find_python(PYTHON)
    assert interpreter is not None  # prepare() has found it
    return wheels.build(interpreter, PYTHON, "aarch64", BUILD).path


def test_wheel(qemu: Path, wheel: Path) -> None:
    """Installs the wheel with its dependencies; the smoke test must print what it prints on this machine."""
    packages = BUILD / "packages"
    shutil.rmtree(packages, ignore_errors=True)
    command = [sys.executable, "-m", "pip", *QUIET, "install", "--target", str(packages)]
    command += ["--only-binary=:all:", f"--python-version={PYTHON}"]
    command += [f"--platform=manylinux_2_{minor}_aarch64" for minor in (28, 27, 17)]
    run([*command, str(wheel)])
    # A launcher that is also sys.executable, because the kernel cannot start an arm64 program by itself.
    LAUNCHER.write_text(
        f'#!/bin/sh\nexport PYTHONHOME="{SYSTEM}/usr" PYTHONPATH="{packages}"\n'
        f'exec "{qemu}" -L "{SYSTEM}" -0 "{LAUNCHER}" "{SYSTEM}/usr/bin/python{PYTHON}" "$@"\n'
    )
    LAUNCHER.chmod(0o755)
    print(f"testing {wheel.name}", flush=True)
    here, there = run_smoke(Path(sys.executable)), run_smoke(LAUNCHER)
    print(there, end="")
    if here != there:
        raise Failed(f"arm64 prints other lines than {platform.machine()}, which prints:\n{here}")


def run_smoke(python: Path) -> str:
    """Returns what smoke() prints with this Python, and the messages of qemu about crashes."""
    command = ["timeout", "--signal=KILL", str(LIMIT_S), str(python), "-W", "ignore", __file__, "--smoke"]
    done = subprocess.run(command, cwd=BUILD, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise Failed(f"the smoke test with {python.name} ends with status {done.returncode}:\n{done.stdout}")
    return done.stdout


def smoke() -> None:
    """Uses the shoal of this Python; prints nothing that depends on the machine."""
    import gymnasium
    import numpy as np

    import shoal
    from shoal.native.describe import list_envs

    def make_cartpole() -> Any:
        return gymnasium.make("CartPole-v1")

    for name in list_envs():
        print(f"{name}: {run_steps(shoal.make_vec(name, 8), 200)}")
    for context in (None, "fork", "forkserver", "spawn"):
        envs = shoal.make_vec(make_cartpole, 2, context=context, num_workers=2)
        print(f"worker processes, context={context}: {run_steps(envs, 50)}")
    buffer = shoal.ReplayBuffer(100, {"obs": (np.float32, (4,)), "action": (np.int64, ())})
    for push in range(30):
        buffer.extend({"obs": np.full((8, 4), push, np.float32), "action": 8 * push + np.arange(8)})
    batch = buffer.sample(64)
    assert (batch["obs"] == batch["action"][:, None] // 8).all(), "a sampled row was never pushed"
    print(f"ReplayBuffer: {len(buffer)} rows of {buffer.total_pushed}, {len(batch['obs'])} sampled")
    buffer.close()


def run_steps(envs: Any, steps: int) -> str:
    """Returns a checksum of everything that the environments return."""
    total = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict | tuple):
            for part in value.values() if isinstance(value, dict) else value:
                add(part)
        else:
            total.update(value.tobytes())

    add(envs.reset(seed=1)[0])
    envs.action_space.seed(2)
    for _ in range(steps):
        add(envs.step(envs.action_space.sample())[:4])
    envs.close()
    return total.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
