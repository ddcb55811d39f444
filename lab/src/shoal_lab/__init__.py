"""Benchmarks and fault injection for Shoal: the commands `shoal bench` and `shoal chaos`."""

__all__: list[str] = []
