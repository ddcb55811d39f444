"""Faults on a cluster: killed runners, lost nodes, dead learners, full object stores."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from shoal.cluster import Fleet
from shoal.errors import WorkerDied, WorkerError
from tests.cluster.policies import Constant, Gated

RESTART_S = 60


def list_pids(fleet):
    """Returns the process ids of the runners, in order."""
    calls = [s.actor.facts.options(concurrency_group="aside").remote() for s in fleet._stations_by_index()]
    return [facts["pid"] for facts in fleet._ray.get(calls, timeout=RESTART_S)]


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def list_children(pid):
    lists = Path(f"/proc/{pid}/task").glob("*/children")  # of each thread
    found = [int(child) for one in lists for child in one.read_text().split()]
    return found + [grandchild for child in found for grandchild in list_children(child)]


def wait_until(true, what):
    deadline = time.monotonic() + RESTART_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def check_rollouts(rollouts, broken):
    """Checks that no rollout is repeated, partial or joined across a fault; `broken` had one fault each."""
    names = [(rollout.runner, rollout.life, rollout.number) for rollout in rollouts]
    assert len(set(names)) == len(names)
    for runner in {rollout.runner for rollout in rollouts}:
        mine = [rollout for rollout in rollouts if rollout.runner == runner]
        assert sum("fault" in rollout.info for rollout in mine) == (runner in broken)
        for before, after in zip(mine, mine[1:], strict=False):
            assert after.number > before.number
            if "fault" in after.info:
                assert after.life > before.life and not after.over.any()
                assert not (after.observations[0] == before.observations[-1]).all()
            else:
                assert (after.life, after.number) == (before.life, before.number + 1)
                assert (after.observations[0] == before.observations[-1]).all()
        starts = [rollout.observations[0].tobytes() for rollout in mine]
        assert len(set(starts)) == len(starts)  # no two lives have the same episodes
    for rollout in rollouts:
        assert (rollout.actions == rollout.version).all()
        seen = rollout.observations
        assert np.isfinite(seen).all() and (np.abs(seen[1:] - seen[:-1])[rollout.counts] > 0).any(-1).all()


def collect_until(fleet, length, enough, each=lambda rollouts: None):
    rollouts = []
    for rollout in fleet.rollouts(length, timeout_s=RESTART_S):
        rollouts.append(rollout)
        each(rollouts)
        if enough(rollouts):
            return rollouts


def has_fault(rollouts):
    return any("fault" in rollout.info for rollout in rollouts)


def has_settled(rollouts):
    """Whether at least six rollouts have arrived after the fault."""
    return has_fault(rollouts[:-6])


def test_a_killed_runner_is_restarted_with_other_seeds_and_reports_one_fault(cluster):
    with Fleet("CartPole-v1", 4, policy=Constant, seed=0) as fleet:
        fleet.set_weights({"action": [1]})
        victim = list_pids(fleet)[1]

        def kill(rollouts):
            if len(rollouts) == 6:
                os.kill(victim, signal.SIGKILL)

        rollouts = collect_until(fleet, 32, has_settled, kill)
        check_rollouts(rollouts, broken={1})
        (fault,) = [rollout.info["fault"] for rollout in rollouts if "fault" in rollout.info]
        assert fault["runner"] == 1 and 1 <= fault["lost"] <= 2 and "unavailable" in fault["error"]
        assert fleet.version == 1  # the restarted runner got the weights without another set_weights
        assert list_pids(fleet)[1] != victim


def test_a_runner_that_dies_without_a_request_does_not_repeat_its_episodes(cluster):
    with Fleet("CartPole-v1", 4, nodes=1, policy=Constant, seed=0, max_in_flight=1) as fleet:
        fleet.set_weights({"action": [1]})
        before = collect_until(fleet, 16, lambda rollouts: len(rollouts) == 3)
        (victim,) = list_pids(fleet)
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: has_new_pid(fleet, victim), "the runner was not restarted")
        rollouts = before + collect_until(fleet, 16, lambda rollouts: len(rollouts) == 3)
        check_rollouts(rollouts, broken={0})
        assert "it had no request" in rollouts[3].info["fault"]["error"]


def has_new_pid(fleet, victim):
    try:
        return list_pids(fleet) != [victim]
    except fleet._ray.exceptions.ActorUnavailableError:
        return False


def test_workers_of_a_killed_runner_end(cluster):
    with Fleet("CartPole-v1", 4, nodes=1, policy=Constant, backend="process", num_workers=2) as fleet:
        fleet.set_weights({"action": [1]})
        (pid,) = list_pids(fleet)
        workers = list_children(pid)
        assert len(workers) >= 2
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, workers)), "workers outlive their runner")
        check_rollouts(collect_until(fleet, 16, has_fault), broken={0})


def test_a_killed_worker_raises_or_is_restarted(cluster):
    for on_fault in ("raise", "restart"):
        settings = {"backend": "process", "num_workers": 2, "on_fault": on_fault}
        with Fleet("CartPole-v1", 64, nodes=1, policy=Constant, max_in_flight=1, **settings) as fleet:
            fleet.set_weights({"action": [1]})
            arriving = fleet.rollouts(16, timeout_s=RESTART_S)
            next(arriving)
            (pid,) = list_pids(fleet)
            launcher = [child for child in list_children(pid) if list_children(child)]
            worker = list_children(launcher[0])[0] if launcher else list_children(pid)[-1]
            os.kill(worker, signal.SIGKILL)
            if on_fault == "raise":
                with pytest.raises(WorkerDied, match="SIGKILL"):
                    next(arriving)
                after = next(fleet.rollouts(16, timeout_s=RESTART_S))  # it starts with a reset
                assert "SIGKILL" in after.info["fault"]["error"] and not after.over.any()
            else:
                ((t, rows),) = next(arriving).info["worker_faults"].items()
                assert 0 <= t < 16 and rows.sum() == 32


def test_closing_leaves_no_process_actor_or_placement_group(cluster):
    import ray

    with Fleet("CartPole-v1", 4, name="passing", backend="process", num_workers=2) as fleet:
        next(fleet.rollouts(16))
        processes = [child for pid in list_pids(fleet) for child in (pid, *list_children(pid))]
        group = fleet._group
        assert len(processes) >= 6 and all(map(is_alive, processes))
    wait_until(lambda: not any(map(is_alive, processes)), "processes of a closed fleet still run")

    def all_are_free():
        return ray.available_resources()["CPU"] == ray.cluster_resources()["CPU"]

    wait_until(all_are_free, "CPUs of a closed fleet are still taken")
    assert ray.util.placement_group_table(group)["state"] == "REMOVED"
    with pytest.raises(ValueError):
        ray.get_actor("passing/0", namespace="shoal")


def test_closing_does_not_wait_for_a_policy_that_hangs(cluster, tmp_path):
    (tmp_path / "allowed").write_text("0")
    fleet = Fleet("CartPole-v1", 2, nodes=1, policy=partial(Gated, directory=tmp_path, length=4))
    fleet._stations[0].ask(4, 1, (0, []))
    wait_until(lambda: list(tmp_path.glob("*-0")), "the policy was never asked")
    (pid,) = list_pids(fleet)
    fleet.close()
    wait_until(lambda: not is_alive(pid), "a policy that hangs was left behind")


LEARNER = """
import json, os, signal, sys
import numpy as np
from shoal.cluster import Fleet
from tests.cluster.policies import Constant

fleet = Fleet("CartPole-v1", 4, policy=Constant, seed=0, name="kept")
fleet.set_weights({"action": [1]})
arriving = fleet.rollouts(16, timeout_s=60)
last = {}
for _ in range(8):
    rollout = next(arriving)
    last[rollout.runner] = rollout.number, rollout.observations[-1].tolist()
print(json.dumps(last), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_restarted_learner_attaches_to_its_fleet_by_name(cluster):
    environment = {**os.environ, "RAY_ADDRESS": cluster.address, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", LEARNER], env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    last = {int(runner): number for runner, (number, _) in json.loads(done.stdout).items()}
    with Fleet.attach("kept") as fleet:
        assert fleet.version == 1 and fleet.num_envs == 4 and fleet.strategy == "STRICT_SPREAD"
        rollouts = collect_until(fleet, 16, lambda rollouts: len(rollouts) == 8)
        check_rollouts(rollouts, broken=())
        for rollout in rollouts:  # the policies have kept their weights; nothing was reset
            assert rollout.version == 1 and rollout.life == 0 and rollout.number > last[rollout.runner]
        assert fleet.set_weights({"action": [2]}) == 2  # no action of CartPole: ValueError, not WorkerDied
        with pytest.raises(ValueError, match="action"):
            collect_until(fleet, 16, lambda rollouts: len(rollouts) == 9)


def test_a_runner_lost_without_a_learner_reports_a_fault(cluster):
    with Fleet("CartPole-v1", 4, policy=Constant, seed=0, name="alone") as fleet:
        fleet.set_weights({"action": [1]})
        before = collect_until(fleet, 16, lambda rollouts: len(rollouts) == 4)
        victim = list_pids(fleet)[0]
        fleet.detach()
    os.kill(victim, signal.SIGKILL)
    with Fleet.attach("alone") as fleet:
        fleet.set_weights({"action": [2 - 1]})
        after = collect_until(fleet, 16, has_settled)
        (faulty,) = [rollout for rollout in after if "fault" in rollout.info]
        assert faulty.runner == 0 and "no learner" in faulty.info["fault"]["error"] and faulty.version == 2
        starts = {rollout.observations[0].tobytes() for rollout in before}
        assert not starts & {rollout.observations[0].tobytes() for rollout in after}


def test_two_learners_do_not_share_a_fleet(cluster):
    with Fleet("CartPole-v1", 2, nodes=1, name="wanted") as first:
        next(first.rollouts(4))
        second = Fleet.attach("wanted")
        next(second.rollouts(4))
        with pytest.raises(WorkerError, match="belongs to another learner"):
            collect_until(first, 4, lambda rollouts: len(rollouts) == 4)
        next(second.rollouts(4))
        second.detach()


def test_a_node_lost_under_load_is_replaced_by_another(cluster):
    lost = cluster.add_node(num_cpus=2)
    added = []
    with Fleet("CartPole-v1", 4, nodes=3, num_cpus=2, policy=Constant) as fleet:
        fleet.set_weights({"action": [1]})
        runner = fleet.nodes.index(lost)
        without = []

        def remove(rollouts):
            if len(rollouts) == 9:
                cluster.remove_node(lost)
            elif not added and len(rollouts) > 60 and runner not in {one.runner for one in rollouts[-60:]}:
                without.extend(rollouts[-60:])  # the other runners have continued
                added.append(cluster.add_node(num_cpus=2))

        rollouts = collect_until(fleet, 32, has_settled, remove)
        assert {rollout.runner for rollout in without} == {0, 1, 2} - {runner}
        check_rollouts(rollouts, broken={runner})
        assert fleet.nodes[runner] == added[0]
    cluster.remove_node(added[0])


def test_a_full_object_store_slows_rollouts_down_without_failing(cluster):
    with Fleet("Pixels-v0", 8, max_in_flight=8, num_threads=1) as fleet:
        arriving = fleet.rollouts(80, timeout_s=RESTART_S)
        kept, most = [next(arriving), next(arriving)], 0
        for _ in range(10):  # twice the size of the learner's store, and all of it is kept
            kept.append(next(arriving))
            most = max(most, *(station.in_flight for station in fleet._stations))
        assert most == 2  # not 8: two rollouts fill half of a node's store
        assert sum(rollout.nbytes for rollout in kept) > 2 * 96 << 20
        assert len({(rollout.runner, rollout.number) for rollout in kept}) == 12
        sums = [rollout.observations.sum() for rollout in kept]
        assert [rollout.observations.sum() for rollout in kept] == sums and len(set(sums)) == 12
