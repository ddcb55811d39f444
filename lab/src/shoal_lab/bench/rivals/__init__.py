"""Who takes part, by library; no module here imports Shoal's native parts unless a rival of Shoal is made."""

__all__: list[str] = []
