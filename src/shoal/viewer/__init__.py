"""The viewer: a web page of a running session."""

__all__: list[str] = []
