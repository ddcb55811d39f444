"""Where peers are looked for, and how they are installed."""

import subprocess
import sys

import pytest

from shoal.errors import ShoalError
from shoal_lab.bench import peers


@pytest.fixture
def nothing_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    return tmp_path / "shoal" / "peers"


def test_installed_peers_take_part_and_missing_ones_are_named(nothing_installed, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "stable_baselines3" or None)
    said = []
    assert peers.find(None, {}, said.append) == {"stable_baselines3": sys.executable}
    assert said == [
        "not installed, left out: gymnasium, envpool, pufferlib, tianshou, torchrl, cpprb "
        "(--install installs them)"
    ]


def test_a_requested_peer_must_be_installed(nothing_installed):
    with pytest.raises(
        ShoalError,
        match=r"not installed here: envpool, sb3\. Run with --install --against envpool,sb3, .*envpool=PATH",
    ):
        peers.find(["envpool", "sb3"], {}, print)


def test_an_unknown_peer_raises_and_known_peers_are_listed():
    for against, pythons in ((["gymnasum"], {}), (None, {"gymnasum": sys.executable})):
        with pytest.raises(
            ShoalError, match="unknown peer 'gymnasum'; peers are gymnasium, envpool, pufferlib, sb3"
        ):
            peers.find(against, pythons, print)


def test_a_given_python_is_checked(nothing_installed):
    assert peers.find(["gymnasium"], {"gymnasium": sys.executable}, print) == {"gymnasium": sys.executable}
    with pytest.raises(ShoalError, match="--python gymnasium=/no/python: No such file"):
        peers.find(["gymnasium"], {"gymnasium": "/no/python"}, print)
    with pytest.raises(ShoalError, match="cannot import pufferlib: ModuleNotFoundError"):
        peers.find(["pufferlib"], {"pufferlib": sys.executable}, print)


def test_installing_makes_a_virtual_environment_that_is_found_later(nothing_installed):
    commands, said = [], []

    def run(command, **_):
        commands.append(command)
        (nothing_installed / "cpprb").mkdir(exist_ok=True)

    peers.install(["cpprb"], said.append, run)
    home = nothing_installed / "cpprb"
    assert commands[0] == [sys.executable, "-m", "venv", str(home)]
    assert commands[1][0] == str(home / "bin" / "python") and commands[1][-2:] == ["install", "cpprb"]
    assert peers.find(["cpprb"], {}, print) == {"cpprb": str(home / "bin" / "python")}
    peers.install(["cpprb"], said.append, run)
    assert len(commands) == 2 and said[-1].startswith("cpprb is installed in")


def test_a_peer_that_cannot_be_installed_does_not_stop_the_others(nothing_installed):
    said = []

    def run(command, **_):
        name = "envpool" if "envpool" in command[-1] + command[0] else "cpprb"
        (nothing_installed / name).mkdir(exist_ok=True)
        if "install" in command and name == "envpool":
            raise subprocess.CalledProcessError(
                1, command, stderr="noise\nERROR: No matching distribution\nmore"
            )

    peers.install(["envpool", "cpprb"], said.append, run)
    assert "envpool could not be installed: ERROR: No matching distribution" in said
    assert set(peers.find(None, {}, lambda text: None)) == {"cpprb"}


def test_files_written_by_an_imported_library_are_removed(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "untidy.py").write_text("open('left', 'w')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path / "here")
    assert peers.check_import(sys.executable, "untidy") is None
    assert list((tmp_path / "here").iterdir()) == []
