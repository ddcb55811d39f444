"""Environments that were written for other libraries, compiled unmodified."""

__all__: list[str] = []
