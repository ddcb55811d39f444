"""The `shoal` command, as a user types it."""

import subprocess
import sys

import numpy as np
import pytest

import shoal
from shoal import cli
from shoal.cli import main
from shoal.memory import Layout, Segment, list_names

LAYOUT = Layout({"x": (np.float64, (4,))})


def shoal_command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "shoal", *arguments], capture_output=True, text=True, timeout=60
    )


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"shoal {shoal.__version__}\n"


def test_without_a_command_usage_is_shown_and_the_status_is_2(capsys):
    assert main([]) == 2
    assert "train CartPole or another environment" in capsys.readouterr().err


def test_the_module_runs_like_the_command():
    done = shoal_command("--version")
    assert (done.returncode, done.stdout) == (0, f"shoal {shoal.__version__}\n")


def test_clean_says_when_there_is_nothing(capsys, monkeypatch):
    monkeypatch.setattr(cli, "list_names", list)
    assert main(["clean"]) == 0
    assert capsys.readouterr().out == "no named segments\n"


def test_clean_keeps_the_living_and_removes_the_dead(capsys):
    script = (
        "import numpy as np, os, signal\n"
        "from shoal.memory import Layout, Segment\n"
        "s = Segment.named(Layout({'x': (np.float64, (4,))}), 'cli-dead')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == -9
    with Segment.named(LAYOUT, "cli-alive"):
        assert main(["clean", "--dry-run"]) == 0
        assert _outcomes(capsys) == {"cli-alive": "in use, kept", "cli-dead": "would be removed"}
        assert _alive() == {"cli-alive": True, "cli-dead": False}
        assert main(["clean"]) == 0
        assert _outcomes(capsys) == {"cli-alive": "in use, kept", "cli-dead": "removed"}
        assert _alive() == {"cli-alive": True}
    assert _alive() == {}


def _alive():
    """The names of this test; other programs of the user may have some too."""
    return {entry.name: entry.alive for entry in list_names() if entry.name.startswith("cli-")}


def _outcomes(capsys):
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("cli-")]
    return {line.split()[0]: line.split("  ")[-1].removeprefix("owner is dead, ") for line in lines}


def test_an_error_of_shoals_is_one_line_and_status_1(capsys):
    assert main(["demo", "--env", "Nope-v0"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("shoal demo: no environment 'Nope-v0'")
    assert error.count("\n") == 1


@pytest.mark.parametrize("number", ["0", "-3", "many"])
def test_a_bad_count_is_refused_by_name(number, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["demo", "--num-envs", number])
    assert stopped.value.code == 2
    assert "--num-envs" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["bench", "chaos"])
def test_a_command_of_shoal_lab_says_how_to_install_it_where_it_is_missing(command, capsys, monkeypatch):
    monkeypatch.setattr(cli.metadata, "entry_points", lambda **_: ())
    assert main([command, "--kills", "3"]) == 2
    said = capsys.readouterr().err
    assert f"`shoal {command}` comes with the package shoal-lab" in said and "pip install ./lab" in said
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "shoal-lab" in capsys.readouterr().out


def test_help_lists_the_commands_of_shoal_lab_without_loading_it(capsys, monkeypatch):
    monkeypatch.setattr(cli.metadata, "entry_points", None)  # a call would raise TypeError
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    assert "bench" in said and "chaos" in said
