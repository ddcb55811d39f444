"""The cluster for the tests: two nodes, shared by all tests because it takes seconds to start."""

import importlib.util

import pytest

from shoal.cluster import SimulatedCluster

WITHOUT_RAY = {"test_engine.py", "test_messages.py", "test_model.py", "test_runner.py"}


def pytest_collection_modifyitems(items):
    if importlib.util.find_spec("ray") is None:
        skip = pytest.mark.skip(reason="ray is not installed: make test-cluster")
        for item in items:
            if "cluster" in item.path.parts and item.path.name not in WITHOUT_RAY:
                item.add_marker(skip)
    for item in items:
        if "cluster" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore"))  # all of them come from Ray


@pytest.fixture(scope="session")
def cluster():
    with SimulatedCluster(nodes=2, num_cpus=2, object_store_bytes=96 << 20) as made:
        yield made
