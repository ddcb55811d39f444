"""State export: environments publish their state, and other processes watch it."""

from shoal.draw import to_png, write_png
from shoal.state.attach import Session, attach, sessions
from shoal.state.drawing import render
from shoal.state.history import Curve, History, read_history
from shoal.state.snapshot import Category, Field, Snapshot

__all__ = [
    "Category",
    "Curve",
    "Field",
    "History",
    "Session",
    "Snapshot",
    "attach",
    "read_history",
    "render",
    "sessions",
    "to_png",
    "write_png",
]
