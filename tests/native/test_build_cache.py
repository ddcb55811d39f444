"""Libraries lie where nobody else can put one, or in a directory of this process."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from shoal.native.build import build
from tests.native.conftest import REAL, answer

pytestmark = pytest.mark.skipif(REAL is None, reason="no C compiler: install gcc or clang")


def test_the_cache_belongs_to_its_user_alone(source, cache):
    build(source)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_without_the_variable_the_cache_is_in_the_home_directory(source, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for value in ("", "relative/cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert build(source).parent == tmp_path / "home" / ".cache" / "shoal"


def assert_built_in_private(source, cache):
    library = build(source)
    assert cache.resolve() not in library.parents
    assert answer(library) == 1
    assert stat.S_IMODE(library.parent.stat().st_mode) == 0o700
    assert build(source) == library


def test_unwritable_cache_is_not_used(source, cache):
    cache.parent.write_text("a file where the cache should be")
    assert_built_in_private(source, cache)


def test_a_cache_that_others_may_enter_is_not_used(source, cache):
    cache.mkdir(parents=True)
    cache.chmod(0o755)
    assert_built_in_private(source, cache)


def test_a_cache_of_another_user_is_not_used(source, cache, monkeypatch):
    cache.mkdir(parents=True, mode=0o700)
    real = Path.stat

    def of_another(path, **options):
        status = list(real(path, **options))
        status[stat.ST_UID] += path.name == "shoal"
        return os.stat_result(status)

    monkeypatch.setattr(Path, "stat", of_another)
    assert_built_in_private(source, cache)


def test_cache_in_a_directory_that_others_can_write_is_not_used(source, cache):
    cache.parent.mkdir()
    cache.parent.chmod(0o777)
    assert_built_in_private(source, cache)
    cache.parent.chmod(0o1777)
    assert build(source).parent == cache


def test_a_link_in_place_of_a_library_is_not_followed(source, cache, tmp_path):
    library = build(source)
    library.rename(tmp_path / "elsewhere.so")
    library.symlink_to(tmp_path / "elsewhere.so")
    assert build(source) == library
    assert not library.is_symlink()


def test_damaged_record_of_headers_is_replaced(source, cache):
    library = build(source)
    (record,) = cache.glob("*.json")
    good = record.read_text()
    for damaged in ("", "[]", "{}", '{"names": [], "files": 3}', good.replace("my_env.c", "gone.c")):
        record.write_text(damaged)
        assert build(source) == library
        assert record.read_text() == good


def test_a_library_made_under_a_lax_umask_is_found_again(source, compiler):
    before = os.umask(0o002)
    try:
        first = build(source, compiler=str(compiler.path))
        runs = compiler.runs()
        assert build(source, compiler=str(compiler.path)) == first
        assert compiler.runs() == runs
    finally:
        os.umask(before)


def test_private_directory_is_removed_by_its_process_but_not_by_a_forked_child(source, run_python):
    script = """
import os, sys
from shoal.native.build import build
os.environ["XDG_CACHE_HOME"] = "/dev/null"
library = build(sys.argv[1])
if os.fork() == 0:
    sys.exit(0)
os.wait()
assert library.exists()
print(library)
"""
    library = Path(run_python(script, source).strip())
    deadline = time.monotonic() + 5
    while library.parent.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not library.parent.exists()


def test_unused_libraries_are_removed(source, cache):
    text = source.read_text()
    first = build(source)
    old = time.time() - 100 * 86400
    for file in cache.iterdir():
        os.utime(file, (old, old))
    assert build(source) == first and first.stat().st_mtime > old + 86400  # it is in use
    source.write_text(text.replace("= 1", "= 2"))
    second = build(source)
    assert first.exists() and second.exists()
    os.utime(first, (old, old))
    mine = cache / "notes.txt"
    mine.write_text("not ours")
    os.utime(mine, (old, old))
    source.write_text(text.replace("= 1", "= 3"))
    third = build(source)
    assert not first.exists() and second.exists() and third.exists() and mine.exists()
    source.write_text(text)
    assert answer(build(source)) == 1  # it is made again
