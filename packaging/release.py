"""Prepares a release in dist/ and stops before anything is uploaded: `make release`.

    state of the checkout  ->  source archive  ->  offline build of that archive  ->  wheels  ->  SHA256SUMS

docs/release.md has the whole list, with the steps that a person takes.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draft", action="store_true", help="go on although the checkout is not ready")
    parser.add_argument("--no-wheels", action="store_true", help="make and build the source archive only")
    args = parser.parse_args()
    version = read_version(ROOT)
    problems = find_problems(ROOT, version)
    for problem in problems:
        print(f"not ready: {problem}")
    if problems and not args.draft:
        return 1
    shutil.rmtree(DIST, ignore_errors=True)
    archive = make_archive(ROOT, DIST)
    print(f"{archive.name}: {archive.stat().st_size // 1024} KB", flush=True)
    build_offline(archive)
    print("the source archive builds offline, and the wheel of it imports", flush=True)
    status = 0
    if not args.no_wheels:
        status = subprocess.run([sys.executable, str(ROOT / "packaging" / "wheels.py")]).returncode
    names = sorted(path.name for path in DIST.iterdir() if path.suffix in (".gz", ".whl"))
    sums = [f"{hashlib.sha256((DIST / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (DIST / "SHA256SUMS").write_text("".join(sums))
    print(f"dist/ has {len(names)} files and SHA256SUMS; nothing was uploaded. docs/release.md has the rest")
    return status


def read_version(root: Path) -> str:
    found = re.search(r'^version = "(.+)"$', (root / "pyproject.toml").read_text(), re.MULTILINE)
    if found is None:
        sys.exit("pyproject.toml has no version")
    return found[1]


def find_problems(root: Path, version: str) -> list[str]:
    """Returns what must be done before this checkout can be released."""
    problems = []
    changed = subprocess.run(
        ["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True
    ).stdout
    if changed:
        problems.append(f"{len(changed.splitlines())} files are not committed")
    tags = subprocess.run(
        ["git", "tag", "--points-at", "HEAD"], cwd=root, capture_output=True, text=True
    ).stdout
    if f"v{version}" not in tags.split():
        problems.append(f"the last commit has no tag v{version}: git tag -a v{version}")
    heading = re.search(r"^## (.+)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if heading is None or not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", heading[1]):
        found = heading[1] if heading else "none"
        problems.append(
            f"the first heading of CHANGELOG.md must be '## {version} (YYYY-MM-DD)', found '{found}'"
        )
    for name in ("lab/pyproject.toml", "packaging/conda/recipe.yaml"):
        if f'"{version}"' not in (root / name).read_text():
            problems.append(f"{name} does not have the version {version}")
    return problems


def make_archive(root: Path, output: Path) -> Path:
    """Makes the source archive without fetching anything."""
    code = "import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))"
    output.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([sys.executable, "-c", code, str(output)], cwd=root, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"the source archive was not made:\n{done.stdout}{done.stderr}")
    return output / done.stdout.strip().splitlines()[-1]


def build_offline(archive: Path) -> None:
    """Builds a wheel from the unpacked archive alone, without an index, and imports it."""
    with tempfile.TemporaryDirectory(prefix="shoal-release-") as folder:
        place = Path(folder)
        with tarfile.open(archive) as packed:
            packed.extractall(place, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        (source,) = place.iterdir()
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        target = place / "installed"
        _run(
            [
                *pip,
                "install",
                "--no-index",
                "--no-build-isolation",
                "--no-deps",
                "--target",
                str(target),
                str(source),
            ]
        )
        _run([sys.executable, "-c", _TRY, str(target)], cwd=place)


_TRY = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
sys.path.insert(0, sys.argv[1])
import shoal
assert shoal.__file__.startswith(sys.argv[1])
with shoal.make_vec("CartPole-v1", 2) as envs:
    envs.reset()
"""


def _run(command: list[str], cwd: Path = ROOT) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
