"""The simulation behind docs/cluster.md agrees with figures computed by hand; the page quotes its output."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def model():
    spec = importlib.util.spec_from_file_location(
        "cluster_model", ROOT / "lab" / "benchmarks" / "cluster_model.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["cluster_model"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["cluster_model"]


def test_few_nodes_are_limited_by_their_own_speed(model):
    found = model.simulate(model.Case(nodes=4, size=1e6, make_s=0.1, link=1e9), 2_000)
    assert found.delivered == pytest.approx(40, rel=0.03) and found.busy == pytest.approx(1, abs=0.02)
    assert found.link == pytest.approx(0.04, rel=0.1)


def test_many_nodes_are_limited_by_the_learners_link(model):
    found = model.simulate(model.Case(nodes=200, size=1e6, make_s=0.1, link=1e9), 4_000)
    assert found.delivered == pytest.approx(1_000, rel=0.01) and found.link == pytest.approx(1, abs=0.01)
    assert found.busy == pytest.approx(0.5, abs=0.02)
    assert found.age_s == pytest.approx(2 * 200 / 1_000, rel=0.05)  # all in flight, at that rate


def test_a_slow_learner_fills_its_store_with_one_rollout_of_each_node(model):
    found = model.simulate(model.Case(nodes=50, size=1e6, make_s=0.1, link=1e9, learn_s=0.01), 4_000)
    assert found.delivered == pytest.approx(100, rel=0.01)
    assert found.store / 1e6 == pytest.approx(51, abs=1)


def test_fewer_rollouts_in_flight_are_younger(model):
    case = {"nodes": 200, "size": 1e6, "make_s": 0.1, "link": 1e9}
    ages = [model.simulate(model.Case(**case, max_in_flight=n), 4_000).age_s for n in (1, 2)]
    assert ages[0] == pytest.approx(ages[1] / 2, rel=0.1)


def test_weights_are_sent_by_the_learner_alone_or_forwarded_by_nodes(model):
    assert model.broadcast_s(7, 1e9, 1e9) == (3.0, 7.0)


def test_the_page_quotes_every_line_of_the_output(model):
    page = (ROOT / "docs" / "cluster.md").read_text().splitlines()
    assert [line for line in model.tables() if line not in page] == []
