"""Finds the source files of the package: in src/shoal, and in compat, which is installed as shoal.compat."""

from pathlib import Path

import shoal
import shoal.compat

ROOT = Path(__file__).parents[1]


def find_sources() -> dict[Path, Path]:
    """Returns the Python files of the package in the checkout: path in the package -> file."""
    return _find(ROOT / "src" / "shoal", ROOT / "compat")


def find_modules() -> dict[Path, Path]:
    """Returns the Python files of the installed package: path in the package -> file."""
    return _find(Path(shoal.__file__).parent, Path(shoal.compat.__file__).parent)


def _find(package: Path, compat: Path) -> dict[Path, Path]:
    found = {path.relative_to(package): path for path in package.rglob("*.py")}
    found |= {Path("compat") / path.relative_to(compat): path for path in compat.rglob("*.py")}
    return dict(sorted(found.items()))
