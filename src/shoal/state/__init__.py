"""State export: environments publish their state, and other processes watch it."""

from shoal.draw import to_gif, to_png, write_gif, write_png
from shoal.state.attach import Session, attach, sessions
from shoal.state.drawing import render
from shoal.state.history import Curve, History, read_history
from shoal.state.recording import Recording
from shoal.state.snapshot import Category, Field, Snapshot

__all__ = [
    "Category",
    "Curve",
    "Field",
    "History",
    "Recording",
    "Session",
    "Snapshot",
    "attach",
    "read_history",
    "render",
    "sessions",
    "to_gif",
    "to_png",
    "write_gif",
    "write_png",
]
