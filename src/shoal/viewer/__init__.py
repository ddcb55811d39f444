"""Looks into a running session from a process of its own: a web page, and the same in text."""

__all__: list[str] = []
