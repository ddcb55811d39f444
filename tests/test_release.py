"""`make release` refuses a checkout that is not ready, and its source archive has all that a build needs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def load(name):
    spec = importlib.util.spec_from_file_location(f"packaging_{name}", ROOT / "packaging" / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release = load("release")
VERSION = release.read_version(ROOT)


@pytest.fixture
def checkout(tmp_path):
    """A small checkout that is ready."""
    for name in ("lab", "packaging/conda"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {VERSION} (2026-11-17)\n")
    for name in ("lab/pyproject.toml", "packaging/conda/recipe.yaml"):
        (tmp_path / name).write_text(f'version: "{VERSION}"\n')

    def git(*words):
        own = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", *own, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "all")
    git("tag", "-a", f"v{VERSION}", "-m", "release")
    assert release.find_problems(tmp_path, VERSION) == []
    return tmp_path


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("CHANGELOG.md", f"## {VERSION} (unreleased)\n", "the first heading of CHANGELOG.md must be"),
        ("CHANGELOG.md", "none\n", "found 'none'"),
        ("lab/pyproject.toml", 'version = "9.9"\n', "lab/pyproject.toml does not have the version"),
        ("packaging/conda/recipe.yaml", 'version: "9.9"\n', "packaging/conda/recipe.yaml does not have"),
        ("new.txt", "new", "1 files are not committed"),
    ],
)
def test_a_checkout_that_is_not_ready_is_refused(checkout, file, text, problem):
    (checkout / file).write_text(text)
    assert problem in "\n".join(release.find_problems(checkout, VERSION))


def test_a_commit_without_the_tag_is_refused(checkout):
    subprocess.run(["git", "tag", "-d", f"v{VERSION}"], cwd=checkout, check=True, capture_output=True)
    assert f"git tag -a v{VERSION}" in "\n".join(release.find_problems(checkout, VERSION))


def test_the_recipe_has_the_version_of_shoal():
    assert f'version: "{VERSION}"' in (ROOT / "packaging" / "conda" / "recipe.yaml").read_text()


def test_the_source_archive_has_all_files_of_the_build(tmp_path):
    archive = release.make_archive(ROOT, tmp_path)
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    wanted = ["CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE", "core/isa.c"]
    for folder in ("core", "include", "envs", "src/shoal", "compat"):
        files = [
            path for path in (ROOT / folder).rglob("*") if path.suffix in (".c", ".h", ".hpp", ".cpp", ".py")
        ]
        wanted += [str(path.relative_to(ROOT)) for path in files]
    assert [name for name in wanted if name not in names] == []
    assert not [name for name in names if name.endswith((".so", ".whl"))]


def test_a_python_that_is_not_there_is_named(tmp_path, monkeypatch, capsys):
    wheels = load("wheels")
    monkeypatch.setattr(wheels, "find_python", lambda version: None)
    monkeypatch.setattr("sys.argv", ["wheels.py", "--python", "3.10", "3.12", "--output", str(tmp_path)])
    assert wheels.main() == 1  # without the wheel of 3.12 most users have none
    said = capsys.readouterr().out
    assert "not built: CPython 3.10: there is no python3.10 with its headers" in said
    assert "not built: CPython 3.12" in said
