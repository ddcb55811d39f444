"""Every command that a page shows is run, in a short form of it, or is named below with the reason why not.

A benchmark has a short form of its own, `--smoke`. `make TARGET` is not run: the target must exist, and the
commands of ours in its recipe are run like those of a page.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from tests.conftest import Child
from tests.docs.commands import documented, dry_run, recipe, shown
from tests.docs.pages import ROOT
from tests.lenience import PROGRAM_S

SHORT = {
    "shoal demo": "shoal demo --steps 2000",
    "shoal demo --env Pendulum-v1 --watch": "shoal demo --env Pendulum-v1 --watch --steps 2000",
    "shoal new": "shoal new another_env",
    "shoal check": "shoal check CartPole-v1",
    "shoal check my_env.c": "shoal check my_env.c",
    "shoal check --asan FILE.c": "shoal check --asan my_env.c",
    "shoal check --asan catch/catch.c": "shoal check --asan my_env.c",
    "shoal check --device cuda": "shoal check --device cuda my_env.c",
    "shoal check --device cuda FILE.c": "shoal check --device cuda my_env.c",
    "shoal check --device cuda --asan FILE.c": "shoal check --device cuda --asan my_env.c",
    "shoal build": "shoal build my_env.c",
    "shoal build --puffer PufferLib/pufferlib/ocean/breakout": "shoal build --puffer PUFFER/walk",
    "shoal bench --against envpool --install": "shoal bench native --envs 8 --against gymnasium --smoke",
    "shoal bench --json run.json --plot run.svg": "shoal bench memory --json run.json --plot run.svg --smoke",
    "shoal bench sweep": "shoal bench sweep --only workers bytes --smoke",
    "shoal bench sweep --plot growth.svg": "shoal bench sweep --only envs --plot growth.svg --smoke",
    "shoal chaos": "shoal chaos --kills 1",
    "shoal chaos --kills 100 --seed 0": "shoal chaos --kills 1",
    "shoal chaos --kills N --seed S": "shoal chaos --kills 1",
    "shoal chaos --kills 10000 --seed 1": "shoal chaos --kills 1",
    "shoal chaos --kills 10000 --seed 1 --record build/chaos/seed-1.jsonl": (
        "shoal chaos --only ring --kills 10 --record seed-1.jsonl"
    ),
    "shoal chaos --only ring --kills 5000": "shoal chaos --only ring --kills 10",
    "shoal chaos --soak 60": "shoal chaos --soak 0.01 --chart soak.svg",
    "shoal chaos --soak 60 --chart soak.svg": "shoal chaos --soak 0.01 --chart soak.svg",
    "shoal envs": "shoal envs",
    "shoal info": "shoal info CartPole-v1",
    "shoal info ENV": "shoal info CartPole-v1",
    "shoal ps": "shoal ps",
    "shoal top [NAME]": "shoal top --seconds 0.1 reef",
    "shoal metrics [NAME]": "shoal metrics reef",
    "shoal metrics --tensorboard DIR NAME": "shoal metrics --tensorboard board run.history",
    "shoal watch": "shoal watch --png out.png",
    "shoal watch --png": "shoal watch --png out.png",
    "shoal watch [NAME]": "shoal watch --png out.png reef",
    "shoal watch reef": "shoal watch --png out.png reef",
    "shoal watch catch": "shoal watch --png out.png reef",
    "shoal watch pasture": "shoal watch --png out.png reef",
    "shoal watch trained": "shoal watch --png out.png reef",
    "shoal watch --png out.png [NAME]": "shoal watch --png out.png reef",
    "shoal watch --host": "shoal watch --host 127.0.0.1 --png out.png reef",
    "shoal doctor": "shoal doctor",
    "shoal clean": "shoal clean --dry-run",
    "shoal --version": "shoal --version",
    "python docs/site/build.py build/docs": "python docs/site/build.py site",
}
"""A documented command, and the form of it that takes seconds. Those of `shoal bench` and lab/benchmarks/
that are not here are run with --smoke."""

NOT_RUN = {
    "shoal build --device cuda FILE.c": "needs ziglang; tests/cuda/test_build.py runs it",
    "shoal build --device cuda my_env.c -o ptx": "needs ziglang; tests/cuda/test_build.py runs it",
    "shoal watch FILE": "runs until Ctrl-C; tests/viewer/test_history_commands.py runs it",
    "shoal watch --record out.gif [NAME]": "waits for a whole episode; tests/viewer/test_movies.py runs it",
    "shoal watch --history FILE [NAME]": "runs until Ctrl-C; tests/viewer/test_history_commands.py runs it",
    "shoal chaos --against gymnasium": "a minute: a peer's hang must last before it is called one",
    "shoal chaos --against gymnasium --kills 5": "a minute: a peer's hang must last before it is called one",
    "shoal demo --cluster": "needs Ray; tests/cluster/test_learner.py runs it in make test-cluster",
    "python lab/benchmarks/cluster.py": "needs Ray; tests/cluster runs it in make test-cluster",
    "python lab/benchmarks/gpu.py": "needs a GPU",
    "python lab/benchmarks/puffer.py .../pufferlib/ocean --one-thread --envs 64": "needs PufferLib",
    "python -m tests.docs.faults": "writes docs/faults.md; tests/docs/test_faults.py makes the same tables",
    "python docs/site/environments.py": "writes docs/envs; tests/docs/test_env_pages.py makes the same pages",
    "python -m venv peers && peers/bin/pip install envpool": "fetches EnvPool",
    "python -m venv puffer && puffer/bin/pip install numpy gymnasium gym==0.23 pettingzoo": "fetches much",
}
"""Why a documented command is not run here."""

DOCUMENTED = documented()
MAKES = [command for command in DOCUMENTED if re.match(r"(?:\w+=\S+ )*make\b", command)]
IN_RECIPES = {command: make for make in MAKES for command in recipe(make)}
OURS = {command: pages for command, pages in DOCUMENTED.items() if command not in MAKES} | {
    command: [make] for command, make in IN_RECIPES.items()
}


def short_form(command: str) -> str | None:
    """What is run for a documented command; None if there is nothing."""
    if command in SHORT or re.fullmatch(r"shoal info \w+-v\d", command):
        return SHORT.get(command, command)
    if command in NOT_RUN or not command.startswith(("shoal bench", "python lab/benchmarks/")):
        return None
    return re.sub(" --(full|quick|smoke)", "", command) + " --smoke"


RUN = list(dict.fromkeys(form for command in OURS if (form := short_form(command)) is not None))


def test_every_documented_command_is_run_or_has_a_reason_not_to_be():
    """Examples are run by tests/test_readme.py, all of them and as they are."""
    unknown = {
        command: pages
        for command, pages in OURS.items()
        if short_form(command) is None
        and command not in NOT_RUN
        and not (command.startswith("python examples/") and (ROOT / command.split()[1]).exists())
    }
    assert not unknown, "give each a short form in SHORT, or a reason in NOT_RUN"


def test_no_entry_is_of_a_command_that_no_page_shows():
    assert set(SHORT) | set(NOT_RUN) <= set(OURS), "remove those that are gone"
    assert not set(SHORT) & set(NOT_RUN)


def test_every_benchmark_is_documented_and_has_the_short_form():
    scripts = {path.name: path.read_text() for path in (ROOT / "lab" / "benchmarks").glob("*.py")}
    programs = {name for name, text in scripts.items() if "__main__" in text}
    assert programs == {name for name, text in scripts.items() if '"--smoke"' in text}
    named = {
        Path(command.split()[1]).name for command in OURS if command.startswith("python lab/benchmarks/")
    }
    assert programs == named


@pytest.fixture(scope="module")
def folder(tmp_path_factory, own_sessions):
    """A folder with what the commands refer to, beside a run called reef."""
    made = tmp_path_factory.mktemp("commands")
    shutil.copy(ROOT / "examples" / "my_env.c", made / "my_env.c")
    (made / "my_module.py").write_text(
        "from shoal_lab.bench.toys import Still\n\n\ndef make_env():\n    return Still()\n"
    )
    run = Child(
        "import time, shoal\n"
        "envs = shoal.make_vec('Reef-v0', 2, session='reef')\n"
        "actions = envs.reset(seed=0) and envs.action_space.sample()\n"
        "print('there', flush=True)\n"
        "while True:\n"
        "    envs.step(actions)\n"
        "    time.sleep(0.02)\n"  # the commands need the cores
    )
    assert run.read() == "there"
    with shoal.attach("reef") as session:
        session.history().save(made / "run.history")
    yield made
    run.clear()


@pytest.mark.parametrize("command", RUN)
def test_a_documented_command_runs(command, folder):
    program, *arguments = command.replace("PUFFER", str(ROOT / "tests" / "puffer" / "ocean")).split()
    programs = Path(sys.executable).parent
    if program == "python":
        arguments[0] = str(ROOT / arguments[0])
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(folder / ".cache"),
        "BROWSER": "true",
    }
    process = subprocess.Popen(
        [str(programs / program), *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            said, _ = process.communicate(timeout=PROGRAM_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # with all it started
            raise
    assert process.returncode == 0, f"$ {command}\n{said}"


def test_commands_are_found_in_every_place_where_a_page_shows_them():
    page = """Type `shoal ps`, or `make test-puffer
SRC=...`; `examples/aliasing.py` and `envs.step` are no commands of the shell.

    make asan      the C tests; make tsan: under ThreadSanitizer
    python lab/benchmarks/native.py --quick   # a comment
    shoal bench replay --full        some minutes

```sh
$ shoal chaos --kills 100     # some minutes
```

```console
$ shoal followed elsewhere
```
"""
    assert list(shown(page)) == [
        "shoal chaos --kills 100",
        "make asan",
        "make tsan",
        "python lab/benchmarks/native.py --quick",
        "shoal bench replay --full",
        "shoal ps",
        "make test-puffer SRC=...",
        "python examples/aliasing.py",
    ]


@pytest.mark.parametrize("make", MAKES)
def test_a_documented_target_of_make_exists(make):
    status, said = dry_run(make)
    assert status == 0, said


def test_continuous_integration_calls_targets_of_make_alone():
    lines = [line.partition("#")[0].strip() for line in (ROOT / ".ci" / "run").read_text().splitlines()]
    commands = [line for line in lines if line and not line.startswith(("set ", "cd ", "export "))]
    assert commands and all(command.startswith("make ") for command in commands)
    assert {"check", "test", "test-cluster"} <= {target for line in commands for target in line.split()[1:]}
    for command in commands:
        status, said = dry_run(command)
        assert status == 0, said


def test_a_target_that_does_not_exist_is_an_error_and_recipes_are_read():
    assert dry_run("make no-such-target")[0] != 0
    assert recipe("make learn") == ["python lab/benchmarks/learn.py"]
