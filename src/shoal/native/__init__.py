"""C environments: building, loading and describing plug-ins."""

__all__: list[str] = []
