"""Shared memory: segments, and the layouts of the arrays in them."""

from shoal.memory.layout import ArrayField, Layout
from shoal.memory.names import NameEntry, list_names
from shoal.memory.segment import Segment

__all__ = ["ArrayField", "Layout", "NameEntry", "Segment", "list_names"]
