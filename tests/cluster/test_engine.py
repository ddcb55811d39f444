"""Shoal without Ray: everything else works, and making a fleet raises an error that names the package."""

import socket
import subprocess
import sys

import pytest

from shoal.cluster import Fleet, SimulatedCluster, engine
from shoal.errors import ShoalError


@pytest.fixture
def without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)


@pytest.mark.parametrize("made", [lambda: Fleet("CartPole-v1"), SimulatedCluster, lambda: Fleet.attach("a")])
def test_without_ray_the_error_says_what_to_install(made, without_ray):
    with pytest.raises(ShoalError, match=r'not installed: pip install "ray\[default\]'):
        made()


def test_importing_the_cluster_package_does_not_import_ray():
    script = "import sys, shoal.cluster; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"num_envs": 0}, ValueError, "num_envs"),
        ({"policy": 3}, TypeError, r"policy must be a function or a class, called as policy\(envs, rng\)"),
        ({"max_in_flight": 0}, ValueError, "max_in_flight"),
        ({"num_cpus": 0}, ValueError, "num_cpus must be a number above 0, got 0"),
        ({"resources": {"a": -1}}, ValueError, r"resources\['a'\] must be a number above 0, got -1"),
        ({"seed": -1}, ValueError, "seed must be an int of at least 0"),
        ({"name": "a/b"}, ValueError, "name must be 1 to 64 letters"),
        ({"start_timeout_s": -1}, ValueError, "start_timeout_s"),
        ({"batch_size": 4}, ValueError, "batch_size must be None, got 4"),
        ({"autoreset_mode": "SAME_STEP"}, ValueError, "must be NEXT_STEP, got 'SAME_STEP'"),
    ],
)
def test_bad_arguments_raise_before_anything_is_started(given, error, message, without_ray):
    with pytest.raises(error, match=message):
        Fleet("CartPole-v1", **given)


@pytest.mark.parametrize("how", ["address", "RAY_ADDRESS"])
def test_an_unreachable_cluster_raises_without_waiting(how, monkeypatch):
    class NoRay:
        @staticmethod
        def is_initialized():
            return False

        class util:
            @staticmethod
            def get_node_ip_address():
                return "127.0.0.2"

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nothing listens on it
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        if how == "RAY_ADDRESS":
            monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(ShoalError, match=f"no Ray cluster answers at {address}.*ray start --head"):
            engine.connect(NoRay, address if how == "address" else None)
