"""A case of ours that raises fails `shoal bench` and is named; the other cases are measured all the same."""

import json

import pytest

from shoal.cli import main
from shoal.errors import BuildError
from shoal_lab.bench import command, measure, sweep
from shoal_lab.bench.compile import SOURCES
from shoal_lab.bench.interpreter import PeerError
from shoal_lab.bench.measure import Bench, Pace, Planned, Rival, name_errors
from shoal_lab.bench.suites import memory, process, startup
from tests.bench import found


def broken(*_, **__):
    raise RuntimeError("this case is broken")


@pytest.fixture
def fake(monkeypatch):
    """Suites and sweeps that cost nothing; one of them can be broken."""

    def make(broken_one=None):
        def suite(name):
            run = broken if name == broken_one else lambda: found.case(suite=name)
            return lambda bench, **_: [Planned("toys", 1.0, run)]

        def one_sweep(name):
            return broken if f"sweep {name}" == broken_one else lambda *_: found.sweep(name)

        monkeypatch.setattr(command, "SUITES", {name: suite(name) for name in command.SUITES})
        monkeypatch.setattr(sweep, "SWEEPS", {name: one_sweep(name) for name in sweep.SWEEPS})

    return make


def test_smoke_runs_every_suite_and_every_sweep(fake, capsys):
    fake()
    assert main(["bench", "--smoke", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert all(f"{name}: Toys" in out for name in ("native", "process", "replay", "startup", "memory"))
    assert all(f"sweep {name}: Toys" in out for name in ("envs", "bytes", "threads", "workers", "replay"))
    assert "failed" not in err and "--smoke leaves peers out" in err


def test_smoke_prints_that_its_numbers_mean_nothing_and_gives_no_advice(fake, capsys, tmp_path):
    fake()
    target = tmp_path / "a.json"
    warning = "--smoke only checks that the benchmarks run: its numbers mean nothing"
    assert main(["bench", "--smoke", "--quiet", "--json", str(target)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [lines[0], lines[-1]] == [warning] * 2
    assert not any("->" in line or "Saturated" in line for line in lines)
    assert all(one["words"] == [] and one["saturates_at"] is None for one in _read(target)["sweeps"])
    assert main(["bench", "--mine", "CartPole-v1", "--smoke", "--quiet", "--json", str(target)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [lines[0], lines[-1]] == [warning] * 2
    assert not any(line.startswith("use: ") for line in lines) and _read(target)["advice"] is None
    assert main(["bench", "--quiet", "--against", ""]) == 0
    assert warning not in capsys.readouterr().out


def _read(path):
    return json.loads(path.read_text())


def test_smoke_of_one_suite_runs_only_that_suite(fake, capsys):
    fake()
    assert main(["bench", "replay", "--smoke", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "replay: Toys" in out and "native: Toys" not in out and "sweep" not in out.partition("\n")[2]


@pytest.mark.parametrize("mode", [[], ["--smoke"], ["--full"]])
@pytest.mark.parametrize("name", command.SUITES)
def test_a_suite_that_raises_fails_the_command_and_the_others_still_run(fake, name, mode, capsys, tmp_path):
    fake(name)
    assert main(["bench", "--quiet", "--against", "", "--json", str(tmp_path / "a.json"), *mode]) == 1
    out, err = capsys.readouterr()
    assert f"failed: {name}: toys: RuntimeError: this case is broken" in err
    assert [line for line in out.splitlines() if line.endswith("Toys, num_envs=8")] == [
        f"{other}: Toys, num_envs=8" for other in command.SUITES if other != name
    ]
    failures = json.loads((tmp_path / "a.json").read_text())["failures"]
    assert failures == [f"{name}: toys: RuntimeError: this case is broken"]


@pytest.mark.parametrize("name", sweep.SWEEPS)
def test_a_sweep_that_raises_fails_the_command_and_the_others_still_run(fake, name, capsys):
    fake(f"sweep {name}")
    assert main(["bench", "sweep", "--smoke", "--quiet"]) == 1
    out, err = capsys.readouterr()
    assert f"failed: sweep {name}: RuntimeError: this case is broken" in err
    assert out.count(": Toys in C") == 4


def test_a_sweep_without_a_point_fails(fake, monkeypatch, capsys):
    empty = sweep.Sweep("envs", "Toys", "num_envs", (), ("stopped before 1: no memory",))
    monkeypatch.setattr(sweep, "SWEEPS", {"envs": lambda *_: empty})
    assert main(["bench", "sweep", "--quiet"]) == 1
    assert "failed: sweep envs: no point was measured; stopped before 1: no memory" in capsys.readouterr().err


def test_a_suite_fails_if_the_process_of_shoals_rivals_fails(monkeypatch, capsys):
    monkeypatch.setenv("SHOAL_SESSIONS", "maybe")  # which every vector environment refuses
    assert main(["bench", "native", "process", "startup", "memory", "--smoke", "--quiet"]) == 1
    err = capsys.readouterr().err
    for case in (
        "native: CartPole-v1, num_envs=8: Shoal",
        "native: Pixels-v0, num_envs=256",
        "process: Environments that do nothing, num_envs=8: Shoal, ",
        "startup: Starting 1,024 environments in C: Shoal",
        "startup: Starting 32 environments in processes: Shoal",
        "memory: Memory of 32 environments in processes: Shoal",
    ):
        assert f"failed: {case}" in err
    assert "SHOAL_SESSIONS must be on or off, found 'maybe'" in err


def test_round_trips_that_cannot_start_fail_their_case(monkeypatch, capsys):
    monkeypatch.setattr(process, "PingPong", broken)
    bench = Bench({}, smoke=True)
    trips = process.plan(bench)[-1]
    assert bench.go([trips], print, "process") == []
    assert bench.failures == [f"process: {trips.title}: RuntimeError: this case is broken"]


def test_c_code_that_does_not_compile_is_a_failure_and_no_compiler_is_a_note(monkeypatch):
    def refused():
        raise BuildError("loops.c did not compile")

    monkeypatch.setattr(measure, "Loops", refused)
    bench = Bench({}, smoke=True)
    bench.go([Planned("toys", 1, lambda: bench.loops)], print, "native")
    assert bench.failures == ["native: toys: BuildError: loops.c did not compile"] and bench.notes == []
    monkeypatch.setenv("CC", "no-such-compiler")
    assert (SOURCES / "pingpong.c").exists()
    without = Bench({}, smoke=True)
    without.go([process.plan(without)[-1]], lambda case: None, "process")
    assert without.failures == [] and without.notes[0].startswith("without round trips: ")


def test_a_rival_of_shoal_that_fails_while_timed_is_a_failure():
    def fails(calls):
        raise PeerError("it ended with status -11")

    for name, role in (("Shoal", "shoal"), ("bare loop", "limit")):
        rivals = [Rival(name, role, 1, name_errors(name, fails)), Rival("Peer", "peer", 1, lambda calls: 1.0)]
        bench = Bench({})
        bench.begin("toys", 1, "native")
        case = bench.timed("native", "toys", "s", rivals, Pace(2, None), lambda n, s: s)
        assert [row.name for row in case.rows] == ["Peer"]
        assert bench.failures == [f"native: toys: {name}: it ended with status -11"] and bench.notes == []


class Ending:
    """Of an interpreter: what it does when it is asked to end."""

    version = "1"

    def __init__(self, *_):
        pass

    def make(self, *_):
        raise PeerError("MemoryError: no memory")

    def memory_bytes(self):
        return 0

    def drop(self):
        raise PeerError("OSError: it did not close")

    def close(self):
        return -9


def test_rivals_that_do_not_close_and_processes_that_do_not_end_are_failures(monkeypatch):
    monkeypatch.setattr(measure, "Interpreter", Ending)
    bench = Bench({"peer": "python"}, smoke=True)
    bench.begin("toys", 1, "memory")
    assert memory._measure_added(bench, "shoal", "process", 1, "Shoal") == ()
    assert memory._measure_added(bench, "peer", "process", 1, "Peer") == ()
    with bench.roster("process"):
        pass
    bench.close()
    what = "which did not close what it made: OSError: it did not close"
    assert bench.failures == [
        "memory: toys: Shoal: MemoryError: no memory",
        f"memory: toys: shoal, {what}",
        "process: the process of Shoal's rivals ended with status -9",
    ]
    assert bench.notes == ["without Peer: MemoryError: no memory", f"without peer, {what}"]


def test_a_peer_that_fails_at_its_first_start_does_not_end_the_suite():
    def fails(calls):
        raise PeerError("it ended with status 1")

    rivals = [
        Rival("Peer", "peer", 1, name_errors("Peer", fails)),
        Rival("Shoal", "shoal", 1, lambda calls: 1.0),
    ]
    startup._warm_up(rivals)
    bench = Bench({})
    case = startup._time_rivals(bench, "toys", rivals, Pace(1, None), "")
    assert [row.name for row in case.rows] == ["Shoal"] and bench.failures == []


def test_smoke_and_full_exclude_each_other(capsys):
    assert main(["bench", "--smoke", "--full"]) == 1
    assert "leave out one of them" in capsys.readouterr().err
