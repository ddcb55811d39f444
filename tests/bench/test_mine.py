"""The user's own environment: how it is found, that every backend steps it, and what is advised."""

import re
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal_lab.bench import mine
from shoal_lab.bench.measure import Bench, Pace
from shoal_lab.bench.results import Row
from tests.bench import toys_of_mine
from tests.bench.found import case

TOYS = "tests.bench.toys_of_mine"


def test_a_factory_is_found_by_its_module_and_name():
    assert mine.load(f"{TOYS}:make") is toys_of_mine.make


def test_a_module_in_the_current_directory_is_found(tmp_path, monkeypatch):
    (tmp_path / "beside_me.py").write_text("from shoal_lab.bench.toys import Still as make\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/usr/lib/nothing"] + __import__("sys").path)
    assert mine.load("beside_me:make").__name__ == "Still"


def test_bundled_and_compiled_environments_need_no_factory(tmp_path):
    assert mine.load("CartPole-v1") == "CartPole-v1"
    source = tmp_path / "a.c"
    source.touch()
    assert mine.load(str(source)) == str(source)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("make", "--mine must be module:factory .*got 'make'"),
        (f"{TOYS}:", "must be module:factory"),
        ("no_such_module_here:make", "No module named 'no_such_module_here'; modules are imported from "),
        (f"{TOYS}:other", f"the module {TOYS} has no 'other'"),
        (f"{TOYS}:NUMBER", "NUMBER must be a function or a class, found int"),
        (f"{TOYS}:make_nothing", "it must make a gymnasium.Env, but made object"),
        ("nowhere/my_env.c", "the file does not exist"),
    ],
)
def test_a_bad_environment_raises_a_clear_error(text, message):
    with pytest.raises(ShoalError, match=message):
        mine.load(text)


def test_every_backend_is_tried():
    python = mine.list_configurations(toys_of_mine.make, 4)
    assert [o["num_workers"] for o in python.values()] == [1, 2, 4, 8, 3]
    assert python["3 workers + caller"]["caller_steps"]
    native = mine.list_configurations("CartPole-v1", 4)
    assert [o.get("num_threads") for o in native.values()] == [1, 2, 4, None]
    assert native["4 workers, processes"] == {"backend": "process", "num_workers": 4}


def test_a_python_environment_is_stepped_with_every_configuration(monkeypatch):
    monkeypatch.setattr(mine, "cores", lambda: [0, 1])
    found = mine._case(Bench({}), toys_of_mine.make, 2, Pace(1, None))
    names = {row.name for row in found.rows}
    assert names == {
        "1 worker",
        "2 workers",
        "1 worker + caller",
        "Gymnasium sync",
        "it alone, on every core",
    }
    assert found.shoal.median == max(row.median for row in found.rows if row.role == "shoal")
    advice = mine.advise(f"{TOYS}:make", toys_of_mine.make, {2: found})
    assert re.match(r"shoal\.make_vec\(make, num_envs=2, num_workers=\d", advice.call)


def test_a_c_environment_is_stepped_on_threads_in_processes_and_from_c(monkeypatch):
    monkeypatch.setattr(mine, "cores", lambda: [0])
    found = mine._case(Bench({}), "CartPole-v1", 3, Pace(1, None))
    assert {row.name for row in found.rows} == {"1 thread", "1 worker, processes", "its step, called from C"}


def rates(best, other, sync=None, limit=None):
    rows = [Row("2 workers", "shoal", (best,)), Row("1 worker", "shoal", (other,))]
    rows += [] if sync is None else [Row("Gymnasium sync", "peer", (sync,))]
    rows += [] if limit is None else [Row("it alone, on every core", "limit", (limit,))]
    return case(rows=tuple(rows))


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(mine, "cores", lambda: [0, 1])


def test_the_fewest_environments_near_the_best_are_advised(two_cores):
    cases = {8: rates(50.0, 40.0), 32: rates(95.0, 40.0), 128: rates(100.0, 40.0)}
    advice = mine.advise("m:make", toys_of_mine.make, cases)
    assert advice.num_envs == 32
    assert advice.call == "shoal.make_vec(make, num_envs=32, num_workers=2)"
    assert advice.facts()["num_workers"] == 2 and advice.facts()["num_threads"] is None
    assert "2.38 times the next best way (1 worker)" in advice.reasons[1]


def test_an_environment_too_fast_for_processes_gets_that_advice(two_cores):
    light = mine.advise("m:make", toys_of_mine.make, {8: rates(50.0, 40.0, sync=200.0, limit=1000.0)})
    assert any("SyncVectorEnv, without processes, is 4.00 times faster" in reason for reason in light.reasons)
    assert any("communication" in reason for reason in light.reasons)
    heavy = mine.advise("m:make", toys_of_mine.make, {8: rates(190.0, 40.0, sync=100.0, limit=200.0)})
    assert not any("SyncVectorEnv" in reason or "communication" in reason for reason in heavy.reasons)
    assert any("95% of what the cores could do" in reason for reason in heavy.reasons)


def test_an_environment_that_the_c_host_does_not_support_is_measured_without_a_limit():
    """examples/my_env.c has two fields of observation; the host of benchmarks has room for one."""
    bench = Bench({}, smoke=True)
    source = str(Path(__file__).parents[2] / "examples" / "my_env.c")
    (case,) = bench.go(mine.plan(bench, source), lambda case: None)
    assert bench.failures == [] and case.limit is None and case.shoal is not None
    assert re.fullmatch(
        r"without a limit: my_env\S*\.so does not have one observation, one action and one agent",
        bench.notes[0],
    )
    with pytest.raises(ValueError, match=r"cartpole\.so has actions of more than one field"):
        bench.loops.plugin(mine.library("CartPole-v1"), np.array([{"a": 1}, {"a": 2}]))
