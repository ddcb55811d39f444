"""A runner without Ray: its behaviour after its environments failed."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from shoal.cluster.runner import Runner
from shoal.errors import WorkerDied
from tests.crash.fragile import KILL, actions, make_fragile

pytestmark = pytest.mark.filterwarnings("ignore:.*ERROR")


class Policy:
    acts = staticmethod(actions)

    def __init__(self, envs, rng):
        pass

    def __call__(self, seen):
        return self.acts()


@pytest.fixture
def runner(monkeypatch):
    ray = ModuleType("ray")
    context = SimpleNamespace(get_node_id=lambda: "a node", was_current_actor_reconstructed=False)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context, raising=False)
    monkeypatch.setitem(sys.modules, "ray", ray)
    made = Runner(SimpleNamespace(policy=Policy, seed=0, options={}, env=None, num_envs=4), 0)
    made._envs, made._node = make_fragile(), "a node"
    yield made
    made.close()


def request(number, length=3):
    whole = {"learner": 0, "life": 0, "first": 0, "branch": 0, "weights": [], "version": 0}
    return SimpleNamespace(number=number, length=length, **whole)


def test_a_worker_death_in_a_remote_step_does_not_stop_later_rollouts(runner):
    assert runner.collect(request(0)) is not None
    with pytest.raises(WorkerDied):
        runner.step(0, actions(0, KILL))
    assert runner.collect(request(1)).observations[:, 0, 2].tolist() == [0, 1, 2, 3]
    assert runner.collect(request(2)).observations[:, 0, 2].tolist() == [3, 4, 5, 6]


def test_a_rollout_of_another_length_works_after_a_worker_death(runner, monkeypatch):
    assert runner.collect(request(0)) is not None
    with monkeypatch.context() as patched, pytest.raises(WorkerDied):
        patched.setattr(Policy, "acts", lambda self: actions(0, KILL))
        runner.collect(request(1))
    rollout = runner.collect(request(2, length=5))
    assert rollout.observations[:, 0, 2].tolist() == [0, 1, 2, 3, 4, 5]
    assert rollout.info["fault"]["error"].startswith("WorkerDied")
