"""Other libraries' interfaces over Shoal's environments: one module each, which imports its library."""

__all__: list[str] = []
