"""A new environment compiles without a warning, is a plug-in, and can be played without Python."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from shoal.native.build import build, include_directory
from shoal.native.template import new
from tests.native.conftest import REAL

SQUARED = Path(__file__).resolve().parents[2] / "envs" / "squared" / "squared.c"
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"]

needs_compiler = pytest.mark.skipif(REAL is None, reason="no C compiler: install gcc or clang")


def play(source, macro, keys, directory, seconds=0):
    """Compiles the program in `source`, types `keys` at that time and returns what it printed."""
    clock, program = directory / "clock.c", directory / "program"
    clock.write_text(f"#include <time.h>\ntime_t time(time_t *out) {{ (void)out; return {seconds}; }}\n")
    command = [
        REAL,
        *STRICT,
        f"-D{macro}",
        f"-I{include_directory()}",
        str(source),
        str(clock),
        "-o",
        str(program),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    played = subprocess.run([program], input=keys, capture_output=True, text=True, timeout=10)
    assert played.returncode == 0
    assert played.stderr == ""
    return played.stdout


def boards(printed, height):
    """The boards a program printed, each as lines of cells, and the line printed below each."""
    lines = printed.splitlines()
    pages = [lines[i : i + height + 1] for i in range(0, len(lines), height + 1)]
    return [([line.split() for line in page[:height]], page[height]) for page in pages]


def column(board, sign):
    return next(line.index(sign) for line in board if sign in line)


def test_a_new_environment_is_two_files_in_a_directory_of_its_name(tmp_path):
    written = new("my_env", tmp_path)
    assert written == [tmp_path / "my_env" / "my_env.c", tmp_path / "my_env" / "README.md"]
    assert sorted((tmp_path / "my_env").iterdir()) == sorted(written)


@needs_compiler
@pytest.mark.parametrize("name", ["my_env", "x", "Pong2", "EMPTY", "bALL", "int", "a_b", "snake__case_"])
def test_it_compiles_without_a_warning_both_ways(name, tmp_path):
    source, _ = new(name, tmp_path)
    for extra in ([], [f"-D{name.upper()}_MAIN"]):
        command = [REAL, *STRICT, *extra, f"-I{include_directory()}", "-fsyntax-only", str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "template" not in source.read_text().lower()


@needs_compiler
def test_it_is_a_plugin_of_that_name(tmp_path, cache):
    library = ctypes.CDLL(str(build(new("my_env", tmp_path)[0])))
    entry = (ctypes.c_void_p * 2).in_dll(library, "shoal_entry")
    assert ctypes.string_at(entry[1]) == b"MyEnv-v0"


@needs_compiler
def test_it_can_be_played_and_won_by_typing(tmp_path):
    source, _ = new("my_env", tmp_path)
    # The ball is 7 lines above the paddle: whatever its column, one of these catches it.
    rounds = {keys: "x" + keys + "x" * (7 - len(keys)) for keys in ("", "a", "d", "aa", "dd")}
    typed = "\n".join(rounds.values()) + "\n"
    shown = boards(play(source, "MY_ENV_MAIN", typed.removeprefix("x"), tmp_path), 8)
    assert len(shown) == 1 + len(typed.replace("\n", "")) - 1
    for start, keys in zip(range(0, len(shown), 8), rounds, strict=True):
        (first, note), (last, result) = shown[start], shown[start + 7]
        assert first[0].count("o") == 1
        assert note == ""
        assert first[7] == list("..=..")
        paddle = 2 + keys.count("d") - keys.count("a")
        caught = paddle == column(first, "o")
        assert last[7][column(first, "o")] == "o"
        assert last[7].count("=") == (0 if caught else 1)
        assert result.startswith(f"reward {1 if caught else -1};")


@needs_compiler
def test_the_paddle_stays_on_the_board(tmp_path):
    source, _ = new("my_env", tmp_path)
    for key, edge in (("a", 0), ("d", 4)):
        board, _ = boards(play(source, "MY_ENV_MAIN", key * 6, tmp_path), 8)[6]
        assert board[7][edge] == "="


@needs_compiler
def test_the_program_shows_the_board_and_ends_at_the_end_of_input(tmp_path):
    source, _ = new("my_env", tmp_path)
    assert len(boards(play(source, "MY_ENV_MAIN", "", tmp_path), 8)) == 1


def test_the_readme_names_the_three_commands_for_this_environment(tmp_path):
    text = new("my_env", tmp_path)[1].read_text()
    for part in (
        "shoal build my_env.c",
        "shoal check my_env.c",
        'shoal.make_vec("my_env.c"',
        "-DMY_ENV_MAIN",
    ):
        assert part in text
    assert "template" not in text.lower()


@pytest.mark.parametrize("name", ["", "1st", "my-env", "my env", "../up", "a/b", "naïve", "_x", "x\n", "a.c"])
def test_name_that_is_not_a_c_identifier_is_an_error(name, tmp_path):
    with pytest.raises(ValueError, match="letters, digits and _"):
        new(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_exists_is_left_alone(tmp_path):
    (tmp_path / "my_env").mkdir()
    (tmp_path / "my_env" / "my_env.c").write_text("precious")
    with pytest.raises(FileExistsError) as refused:
        new("my_env", tmp_path)
    assert str(refused.value) == f"{tmp_path / 'my_env'} exists already; choose another name, or remove it"
    assert (tmp_path / "my_env" / "my_env.c").read_text() == "precious"
    assert len(list((tmp_path / "my_env").iterdir())) == 1


@needs_compiler
@pytest.mark.parametrize("seconds", range(6))
def test_squared_can_be_played_to_the_goal_and_over_the_edge(seconds, tmp_path):
    ((start, note),) = boards(play(SQUARED, "SQUARED_MAIN", "", tmp_path, seconds), 11)
    assert note == ""
    assert start[5][5] == "A"
    (goal,) = [(i, j) for i in range(11) for j in range(11) if start[i][j] == "*"]
    down, right = goal[0] - 5, goal[1] - 5
    way = ("s" * down or "w" * -down) + ("d" * right or "a" * -right)
    off = "d" * 6 if right <= 0 else "a" * 6
    for keys, reward in ((way, 1), (off, -1)):
        shown = boards(play(SQUARED, "SQUARED_MAIN", f"{keys}\nx\nq", tmp_path, seconds), 11)
        assert [note for _, note in shown[: len(keys)]] == [""] * len(keys)
        assert shown[len(keys)][1].startswith(f"reward {reward};")
        again, still = shown[len(keys) + 1 :]
        assert again == still
        assert again[0][5][5] == "A"
