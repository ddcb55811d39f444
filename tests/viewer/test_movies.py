"""Recordings as files: the GIF writer, ffmpeg, and the command."""

import os
import shutil
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import shoal
from shoal.cli import main
from shoal.errors import ShoalError
from shoal.state import Field, Recording, Snapshot, to_gif, write_gif
from shoal.viewer.movies import check_movie, write_movie
from tests.viewer.fakes import plain, small
from tests.viewer.pictures import decode_gif

FFMPEG = """#!/bin/sh
# Keeps what it was given: the arguments, and the number of bytes.
for last; do :; done
echo "$@" >"$GIVEN"
wc -c >>"$GIVEN"
[ -z "$FAIL" ] || { echo "first line" >&2; echo "$FAIL" >&2; exit 1; }
echo movie >"$last"
"""


def noise(count, colors, size=(30, 41)):
    rng = np.random.default_rng(count)
    table = rng.integers(0, 256, (colors, 3), dtype=np.uint8)
    return [table[rng.integers(0, colors, size)] for _ in range(count)]


def test_a_gif_of_few_colours_is_exact():
    pictures = noise(5, 255)
    pictures[3] = pictures[2].copy()  # nothing changes
    pictures[4][:10] = pictures[3][:10]
    frames, delays = decode_gif(to_gif(pictures, 0.04))
    assert delays == [4] * 5
    for one, other in zip(frames, pictures, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_gif_of_many_pixels_uses_every_width_of_codes():
    pictures = noise(2, 200, size=(200, 300))  # the table of codes is full many times
    frames, _ = decode_gif(to_gif(pictures))
    assert all((one == other).all() for one, other in zip(frames, pictures, strict=True))


def test_a_gif_of_many_colours_is_near_the_pictures():
    x, y = np.meshgrid(np.arange(128), np.arange(96))
    picture = np.stack([2 * x, 2 * y, (x + y) % 256], -1).astype(np.uint8)
    picture[:, :20] = (7, 9, 11)  # most frequent, so exact
    (frame,), _ = decode_gif(to_gif([picture]))
    assert (frame[:, :20] == (7, 9, 11)).all()
    apart = abs(frame.astype(int) - picture).max(-1)
    assert apart.mean() < 16 and len(np.unique(frame.reshape(-1, 3), axis=0)) <= 255


@pytest.mark.parametrize(
    ("pictures", "seconds", "why"),
    [
        ([], 0.1, "at least one"),
        ([np.zeros((4, 4), np.uint8)], 0.1, "uint8"),
        ([np.zeros((4, 4, 3))], 0.1, "uint8"),
        ([np.zeros((4, 4, 3), np.uint8), np.zeros((4, 5, 3), np.uint8)], 0.1, "one size"),
        ([np.zeros((0, 4, 3), np.uint8)], 0.1, "1 to 65535"),
        ([np.zeros((4, 4, 3), np.uint8)], 0.0, "seconds must be"),
        ([np.zeros((4, 4, 3), np.uint8)], float("nan"), "seconds must be"),
    ],
)
def test_pictures_that_cannot_be_a_gif_raise(pictures, seconds, why):
    with pytest.raises(ValueError, match=why):
        to_gif(pictures, seconds)


def recording(make=plain, count=6):
    return Recording(2, 8, 5.0, count - 1, tuple(make(2, 8, tick) for tick in range(count)))


@pytest.mark.parametrize("make", [plain, small])
def test_a_recording_is_written_as_a_gif(make, tmp_path):
    path = tmp_path / "episode.GIF"
    write_movie(str(path), recording(make))
    frames, delays = decode_gif(path.read_bytes())
    assert len(frames) == 6 and delays == [25] * 6 and 580 <= frames[0].shape[1] <= 600
    assert all((one != other).any() for one, other in zip(frames, frames[1:], strict=False))
    assert os.listdir(tmp_path) == ["episode.GIF"]


def test_a_world_that_grows_has_pictures_of_one_size(tmp_path):
    def grow(env, episode, tick):
        ground = Field("ground", np.zeros((4 + tick, 8), np.int8), "grid")
        return Snapshot(env, episode, tick, tick, {"ground": ground})

    write_movie(str(tmp_path / "a.gif"), recording(grow))
    assert len(decode_gif((tmp_path / "a.gif").read_bytes())[0]) == 6


@pytest.fixture
def ffmpeg(tmp_path, monkeypatch):
    """A program of that name; returns what it was given."""
    program = tmp_path / "bin" / "ffmpeg"
    program.parent.mkdir()
    program.write_text(FFMPEG)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("GIVEN", str(tmp_path / "given"))
    return lambda: (tmp_path / "given").read_text().split("\n")


@pytest.mark.parametrize("ending", ["webm", "mp4"])
def test_ffmpeg_gets_every_pixel_and_makes_the_file(ffmpeg, tmp_path, ending):
    path = tmp_path / "out" / f"episode.{ending}"
    path.parent.mkdir()
    write_movie(str(path), recording())
    given = ffmpeg()
    (size,) = [word for word in given[0].split() if "x" in word and word.replace("x", "").isdigit()]
    width, height = map(int, size.split("x"))
    assert int(given[1]) == 6 * 3 * width * height and "yuv420p" in given[0]
    assert path.read_text() == "movie\n" and os.listdir(path.parent) == [path.name]


def test_an_error_of_ffmpeg_is_told_and_leaves_no_file(ffmpeg, tmp_path, monkeypatch):
    monkeypatch.setenv("FAIL", "Unknown encoder 'libx264'")
    (tmp_path / "out").mkdir()
    with pytest.raises(ShoalError, match=r"ffmpeg cannot write .*episode.mp4: Unknown encoder 'libx264'"):
        write_movie(str(tmp_path / "out" / "episode.mp4"), recording())
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="machine: no ffmpeg")
def test_a_real_ffmpeg_makes_videos(tmp_path):
    for ending, begin in (("webm", b"\x1a\x45\xdf\xa3"), ("mp4", b"ftyp")):
        path = tmp_path / f"a.{ending}"
        write_movie(str(path), recording(small))
        assert begin in path.read_bytes()[:12]


def test_what_cannot_be_written_is_told_before_anything_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ShoalError, match="ffmpeg is not installed; install it, or write a .gif"):
        check_movie(str(tmp_path / "a.mp4"))
    check_movie(str(tmp_path / "a.gif"))
    with pytest.raises(ShoalError, match="directory does not exist"):
        check_movie(str(tmp_path / "none" / "a.gif"))
    (tmp_path / "taken.gif").mkdir()
    with pytest.raises(ShoalError, match="cannot write"):
        write_movie(str(tmp_path / "taken.gif"), recording())
    assert os.listdir(tmp_path) == ["taken.gif"]
    with pytest.raises(ShoalError, match="nothing to draw"):
        write_movie(str(tmp_path / "a.gif"), replace(recording(), snapshots=()))


def test_write_gif_writes_a_file(tmp_path):
    write_gif(tmp_path / "a.gif", noise(2, 5))
    assert len(decode_gif((tmp_path / "a.gif").read_bytes())[0]) == 2


# -- the command --------------------------------------------------------------------------------------


@pytest.fixture
def run(name, tmp_path, monkeypatch):
    """CartPoles that are stepped some hundred times a second; the name of the session."""
    monkeypatch.setenv("SHOAL_SESSION_DIR", str(tmp_path / "s"))
    going = True
    with shoal.make_vec("CartPole-v1", 4, session=name) as envs:

        def step():
            envs.reset(seed=1)
            while going:
                envs.step(envs.action_space.sample())
                time.sleep(0.001)  # whoever records needs the processor too

        stepping = threading.Thread(target=step)
        stepping.start()
        yield name
        going = False
        stepping.join()


def test_the_command_writes_the_next_episode(run, tmp_path, capsys):
    path = str(tmp_path / "a.gif")
    assert main(["watch", run, "--record", path, "--env", "2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{path}: environment 2, episode ") and "recorded" not in out
    steps = int(out.split()[-2])
    assert f"return {steps}, {steps} steps" in out
    frames, _ = decode_gif((tmp_path / "a.gif").read_bytes())
    assert 2 <= len(frames) <= steps + 1  # fewer on a busy machine


@pytest.mark.parametrize("keep", ["best", "worst"])
def test_the_command_writes_the_best_or_the_worst_of_several(run, tmp_path, capsys, keep):
    path = str(tmp_path / "a.gif")
    assert main(["watch", run, "--record", path, "--keep", keep, "--timeout", "3"]) == 0
    out = capsys.readouterr().out
    assert f"the {keep} of " in out and int(out.split(" recorded")[0].split()[-1]) >= 1


def test_the_command_refuses_what_is_not_possible(run, tmp_path, capsys):
    assert main(["watch", run, "--keep", "best"]) == 1
    assert "add --record FILE" in capsys.readouterr().err
    assert main(["watch", run, "--record", str(tmp_path / "a.gif"), "--env", "99"]) == 1
    assert "environment 99 is out of range" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["watch", run, "--record", "a.avi"])
    assert "must be the name of a .gif, .webm or .mp4 file, got 'a.avi'" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--keep", "worst"]])
def test_the_command_says_if_no_episode_ends_in_time(name, tmp_path, monkeypatch, capsys, more):
    monkeypatch.setenv("SHOAL_SESSION_DIR", str(tmp_path / "s"))
    with shoal.make_vec("CartPole-v1", 4, session=name) as envs:
        envs.reset(seed=0)
        assert main(["watch", name, "--record", str(tmp_path / "a.gif"), "--timeout", "0.2", *more]) == 1
    told = capsys.readouterr().err
    which = "no environment has begun" if more else "environment 0 has not begun"
    assert which in told and "within 0.2 s; wait longer with --timeout" in told
    assert not (tmp_path / "a.gif").exists()
