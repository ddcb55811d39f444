"""Writes recordings as GIF, or with ffmpeg as WebM and MP4, for `shoal watch --record FILE`."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shoal.draw import Pixels, to_gif
from shoal.errors import ShoalError
from shoal.state.drawing import render
from shoal.state.recording import Recording

__all__ = ["ENDINGS", "check_movie", "write_movie"]

ENDINGS = (".gif", ".webm", ".mp4")
_WIDTH = 600
_CODECS = {
    ".webm": ["-c:v", "libvpx-vp9", "-b:v", "2M"],
    ".mp4": ["-c:v", "libx264", "-crf", "20", "-movflags", "+faststart"],
}


def check_movie(path: str) -> None:
    """Raises ShoalError if a movie cannot be written here, before anything is recorded."""
    if Path(path).suffix.lower() != ".gif" and shutil.which("ffmpeg") is None:
        raise ShoalError(f"cannot write {path}: ffmpeg is not installed; install it, or write a .gif file")
    if not Path(path).absolute().parent.is_dir():
        raise ShoalError(f"cannot write {path}: its directory does not exist")


def write_movie(path: str, recording: Recording) -> None:
    """Writes a recording; the ending of the path chooses the format. It replaces an older file at once."""
    pictures = _draw(recording)
    # About four seconds, whatever the speed of the run.
    seconds = min(0.25, max(0.04, 4 / len(pictures)))
    target = Path(path).absolute()
    ending = target.suffix.lower()
    temporary = target.with_name(f".{target.stem}-{os.getpid()}{ending}")
    try:
        if ending == ".gif":
            temporary.write_bytes(to_gif(pictures, seconds))
        else:
            _run_ffmpeg(str(temporary), pictures, seconds, path)
        os.replace(temporary, target)
    except OSError as error:
        raise ShoalError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _draw(recording: Recording) -> list[Pixels]:
    """Returns pictures of one size: worlds that grow would change it."""
    if not recording.snapshots:
        raise ShoalError(f"{recording!r} has nothing to draw")
    pictures = [render(one, *_size_of(recording), legend=False) for one in recording.snapshots]
    height = max(len(one) for one in pictures)
    return [np.pad(one, ((0, height - len(one)), (0, 0), (0, 0))) for one in pictures]


def _size_of(recording: Recording) -> tuple[int]:
    """The width: about 600 pixels, and a multiple of the width of the environment's own picture."""
    first = recording.snapshots[0]
    frame = first.step.get("frame")
    if frame is None or first.world and any(one.role for one in first.world.values()):
        return (_WIDTH,)
    wide = frame.data.shape[1]
    return (max(16, wide * max(1, _WIDTH // wide)),)


def _run_ffmpeg(path: str, pictures: Sequence[Pixels], seconds: float, name: str) -> None:
    height, width = pictures[0].shape[:2]
    command = ["ffmpeg", "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    command += ["-s", f"{width}x{height}", "-r", f"{1 / seconds:.3f}", "-i", "-"]
    # Most players need an even size and this format of pixels.
    command += ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p"]
    command += [*_CODECS[Path(path).suffix], path]
    data = b"".join(one.tobytes() for one in pictures)
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    if done.returncode != 0:
        why = done.stderr.decode(errors="replace").strip().splitlines()
        raise ShoalError(f"ffmpeg cannot write {name}: {why[-1] if why else f'status {done.returncode}'}")
