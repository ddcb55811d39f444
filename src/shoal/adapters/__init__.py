"""Shoal's environments with the interfaces of other libraries. Each module imports its library."""

__all__: list[str] = []
