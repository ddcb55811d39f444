"""The cluster benchmark runs; the other commands are in test_learner.py."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "lab" / "benchmarks" / "cluster.py"


@pytest.mark.timeout(300)  # Ray takes seconds for each start, and more where the cores are shared
def test_the_cluster_benchmark_runs(tmp_path):
    command = [sys.executable, str(SCRIPT), "--smoke"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 floats, demo policy: " in done.stdout and "84x84x4, no policy: " in done.stdout
    assert "kill of a runner to its next rollout" in done.stdout
