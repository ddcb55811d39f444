"""PPO over a fleet learns as on one machine; the demo, the example and the page run as written."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from shoal import demo
from shoal.cluster import ActorPolicy, Fleet, FleetLearner
from shoal.errors import ShoalError
from shoal.learner import Settings

ROOT = Path(__file__).parent.parent.parent


def mean(learner):
    return float(np.mean(learner.returns)) if learner.episodes >= 100 else 0.0


def test_a_fleet_of_two_solves_cartpole(cluster):
    with Fleet("CartPole-v1", 64, policy=ActorPolicy, seed=0, max_in_flight=1) as fleet:
        learner = FleetLearner(fleet, 0, 300_000)
        while mean(learner) < 400 and learner.steps < 300_000:
            learner.collect()
            learner.update()
        assert mean(learner) >= 400 and set(learner._sums) == {0, 1}
        assert fleet.version > 20 and learner.times["env"] > 0


def test_the_learner_uses_box_actions_before_clipping(cluster):
    with Fleet("Pendulum-v1", 32, nodes=1, policy=ActorPolicy, seed=0, max_in_flight=1) as fleet:
        learner = FleetLearner(fleet, 0, 20_000)
        for _ in range(3):
            learner.collect()
            rollout = learner.rollout
            assert (np.abs(rollout.actions) <= 2).all() and (np.abs(rollout.extras["drawn"]) > 1).any()
            learner.update()
        with pytest.raises(NotImplementedError, match="run on its nodes and cannot be watched"):
            learner.play()


def test_scores_are_those_of_the_policy_that_acted(cluster):
    with Fleet("CartPole-v1", 32, nodes=1, policy=partial(ActorPolicy, hidden=16), seed=0) as fleet:
        learner = FleetLearner(fleet, 0, 100_000, Settings(hidden=16))
        learner.collect()
        expected = learner.rollout.extras["score"].copy()
        assert (expected < 0).all()
        rows = learner.rollout.observations.reshape(-1, 4)
        learner.model.weights *= 1.5
        assert (learner._build_batch(rows).old_log_probs == expected.reshape(-1)).all()


def run(*command, **environment):
    return subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        capture_output=True,
        text=True,
        timeout=110,
        cwd=ROOT,
        env={**{k: v for k, v in os.environ.items() if not k.startswith("RAY_")}, **environment},
    )


def test_the_demo_learns_on_a_cluster(tmp_path):
    done = run("-m", "shoal", "demo", "--cluster", "--png", str(tmp_path / "curve.png"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("PPO on 2 x 64 x CartPole-v1, 2 simulated nodes of a Ray cluster, seed 0")
    assert re.search(r"^Solved: .* \(goal 475\)", done.stdout, re.MULTILINE), done.stdout
    assert "environments alone" not in done.stdout and (tmp_path / "curve.png").exists()


def test_the_demo_cannot_be_watched_on_a_cluster():
    with pytest.raises(ShoalError, match="--cluster uses nodes; leave one of them out"):
        demo.run(cluster=2, watch=True)


def test_the_example_reaches_its_goal(cluster):
    settings = {name: os.environ[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
    done = run("examples/ppo_cluster.py", "--goal", "200", RAY_ADDRESS=cluster.address, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reached: mean return" in done.stdout and "<Fleet of 2 x 64 environments" in done.stdout


def blocks():
    page = (ROOT / "docs" / "cluster.md").read_text()
    return re.findall(r"```py\n(.*?)```", page, re.DOTALL)


def test_the_examples_of_the_page_print_what_it_promises(cluster, tmp_path):
    assert len(blocks()) >= 2
    settings = {name: os.environ[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
    for number, block in enumerate(blocks()):
        script = tmp_path / f"block_{number}.py"
        script.write_text(block)
        done = run(str(script), RAY_ADDRESS=cluster.address, **settings)
        assert done.returncode == 0, done.stderr
        for promised in re.findall(r"print\(.*?# (.+)", block):
            assert promised in done.stdout


def test_ray_accepts_the_cluster_file_of_the_page():
    import yaml
    from ray.autoscaler._private.util import prepare_config, validate_config

    page = (ROOT / "docs" / "cluster.md").read_text()
    up, kubernetes = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    prepared = prepare_config(up)
    validate_config(prepared)
    assert kubernetes["spec"]["authOptions"] == {"mode": "token"}
    started = up["head_start_ray_commands"] + up["worker_start_ray_commands"]
    assert all("RAY_AUTH_MODE=token" in command for command in started if "ray start" in command)
