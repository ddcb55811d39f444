"""State export: what environments publish of themselves, and how others look at it."""

from shoal.state.attach import Session, attach, sessions
from shoal.state.snapshot import Category, Field, Snapshot

__all__ = ["Category", "Field", "Session", "Snapshot", "attach", "sessions"]
