"""State export: what environments publish of themselves, and how others look at it."""

from shoal.state.drawing import render, to_png, write_png
from shoal.state.snapshot import Category, Field, Snapshot

__all__ = ["Category", "Field", "Snapshot", "render", "to_png", "write_png"]
