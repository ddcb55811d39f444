"""Side-by-side measurements of Shoal, its peers and what the machine can do at most: `shoal bench`."""

__all__: list[str] = []
