"""What `shoal bench` measures: each suite plans its cases, with about how long they take."""

__all__: list[str] = []
