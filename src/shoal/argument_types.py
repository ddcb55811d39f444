"""Types of command-line arguments: each parses one text or raises an error that says what was expected."""

from __future__ import annotations

import argparse

__all__ = ["png", "port", "positive", "seconds", "whole"]


def whole(text: str) -> int:
    """A whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, got {text!r}")
    return int(text)


def port(text: str) -> int:
    """A TCP port."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 65535, got {text!r}")
    return int(text)


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def png(text: str) -> str:
    """The name of a .png file."""
    if not text.lower().endswith(".png"):
        raise argparse.ArgumentTypeError(f"must be the name of a .png file, got {text!r}")
    return text


def movie(text: str) -> str:
    """The name of a .gif, .webm or .mp4 file."""
    if not text.lower().endswith((".gif", ".webm", ".mp4")):
        raise argparse.ArgumentTypeError(f"must be the name of a .gif, .webm or .mp4 file, got {text!r}")
    return text


def seconds(text: str) -> float:
    """A time in seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {text!r}")
    return value
