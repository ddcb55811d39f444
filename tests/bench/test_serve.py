"""A peer's Python: it needs no Shoal, and what is asked of it is answered."""

import io
import json
import sys

import pytest

from shoal_lab.bench import interpreter
from shoal_lab.bench.interpreter import Interpreter, PeerError
from shoal_lab.bench.serve import serve


def asked(*requests, makers=None):
    out = io.StringIO()
    dropped = []
    serve(map(json.dumps, requests), out, makers or {}, lambda: dropped.append(1))
    return [json.loads(line) for line in out.getvalue().splitlines()], dropped


def test_serve_makes_times_and_drops_rivals():
    makers = {"Toy": lambda n, more: (n + more, lambda calls: calls * 0.5)}
    answers, dropped = asked(
        {"make": "Toy", "arguments": [3, 4]},
        {"burst": 0, "calls": 6},
        {"drop": True},
        {"burst": 0, "calls": 1},
        makers=makers,
    )
    assert answers[:3] == [{"made": 0, "steps": 7}, {"seconds": 3.0}, {}]
    assert answers[3]["error"].startswith("IndexError")
    assert dropped == [1]


def test_an_error_is_sent_as_an_answer():
    answers, _ = asked({"load": "no_such_library_here"}, {"make": "Nobody", "arguments": []})
    assert answers[0] == {"error": "ModuleNotFoundError: No module named 'no_such_library_here'"}
    assert answers[1] == {"error": "KeyError: 'Nobody'"}


@pytest.fixture
def opened():
    made = []

    def make(*arguments):
        made.append(Interpreter(*arguments))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("group", ["native", "process", "replay"])
def test_a_peer_is_served_without_loading_shoal(group, tmp_path, monkeypatch, opened):
    probe = (
        "import sys\n__version__ = str([m for m in ('shoal._core', 'shoal.vector') if m in sys.modules])\n"
    )
    (tmp_path / "probe_of_shoal.py").write_text(probe)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert opened(sys.executable, "probe_of_shoal", group).version == "[]"


def test_gymnasium_runs_there_with_every_start_method(opened):
    gymnasium = opened(sys.executable, "gymnasium", "process")
    steps, burst = gymnasium.make("Gymnasium async", ["Still"], 2)
    assert steps == 2 and burst(2) > 0
    assert gymnasium.make("Gymnasium start", 1, "spawn")[1](1) > 0
    gymnasium.drop()


def test_shoal_and_its_limits_are_served_like_peers(opened):
    shoal = opened(sys.executable, "shoal", "replay")
    for maker in ("Shoal", "NumPy ring", "bare C gather"):
        assert shoal.make(maker, "sample", 500, [4], "float32")[1](3) > 0
    for operation in ("push", "extend", "prioritized", "step"):
        assert shoal.make("Shoal", operation, 500, [4], "float32")[1](3) > 0
    shoal.drop()


def test_a_missing_python_is_named():
    with pytest.raises(PeerError, match="/no/such/python: No such file"):
        Interpreter("/no/such/python", "gymnasium", "native")


def test_a_missing_library_is_named():
    with pytest.raises(PeerError, match="No module named 'no_such_library_here'"):
        Interpreter(sys.executable, "no_such_library_here", "native")


def test_a_peer_that_hangs_is_killed(tmp_path, monkeypatch):
    (tmp_path / "sleepy_peer.py").write_text("import time\ntime.sleep(100)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(interpreter, "ANSWER_TIMEOUT_S", 0.3)
    with pytest.raises(PeerError, match=r"no answer within 0\.3 s; the process was killed"):
        Interpreter(sys.executable, "sleepy_peer", "native")


def test_the_exit_status_of_a_dead_peer_is_reported(tmp_path, monkeypatch):
    (tmp_path / "dying_peer.py").write_text("import os\nos._exit(7)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(PeerError, match="the process ended with status 7"):
        Interpreter(sys.executable, "dying_peer", "native")
