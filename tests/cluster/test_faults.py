"""What may go wrong on a cluster, made to happen: killed runners, lost nodes, gone learners, full stores."""

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


def pids_of(fleet):
    """Of the runners, in their order."""
    calls = [s.actor.facts.options(concurrency_group="aside").remote() for s in fleet._ordered()]
    return [facts["pid"] for facts in fleet._ray.get(calls, timeout=RESTART_S)]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid):
    lists = Path(f"/proc/{pid}/task").glob("*/children")  # of each thread
    found = [int(child) for one in lists for child in one.read_text().split()]
    return found + [grandchild for child in found for grandchild in children_of(child)]


def wait_until(true, what):
    deadline = time.monotonic() + RESTART_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def check_whole(rollouts, broken):
    """Nothing twice, nothing half, nothing across a fault; the runners in `broken` had one each."""
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
        assert len(set(starts)) == len(starts)  # no life sees the episodes of another
    for rollout in rollouts:
        assert (rollout.actions == rollout.version).all()
        seen = rollout.observations
        assert np.isfinite(seen).all() and (np.abs(seen[1:] - seen[:-1])[rollout.counts] > 0).any(-1).all()


def collected(fleet, length, enough, each=lambda rollouts: None):
    rollouts = []
    for rollout in fleet.rollouts(length, timeout_s=RESTART_S):
        rollouts.append(rollout)
        each(rollouts)
        if enough(rollouts):
            return rollouts


def has_fault(rollouts):
    return any("fault" in rollout.info for rollout in rollouts)


def settled(rollouts):
    """Some rollouts have come after the fault too."""
    return has_fault(rollouts[:-6])


def test_a_killed_runner_comes_back_with_other_seeds_and_one_fault(cluster):
    with Fleet("CartPole-v1", 4, policy=Constant, seed=0) as fleet:
        fleet.set_weights({"action": [1]})
        victim = pids_of(fleet)[1]

        def kill(rollouts):
            if len(rollouts) == 6:
                os.kill(victim, signal.SIGKILL)

        rollouts = collected(fleet, 32, settled, kill)
        check_whole(rollouts, broken={1})
        (fault,) = [rollout.info["fault"] for rollout in rollouts if "fault" in rollout.info]
        assert fault["runner"] == 1 and 1 <= fault["lost"] <= 2 and "unavailable" in fault["error"]
        assert fleet.version == 1  # and the new life was given the weights, without being asked
        assert pids_of(fleet)[1] != victim


def test_a_runner_that_dies_while_nothing_is_asked_of_it_does_not_play_the_same_again(cluster):
    with Fleet("CartPole-v1", 4, nodes=1, policy=Constant, seed=0, max_in_flight=1) as fleet:
        fleet.set_weights({"action": [1]})
        before = collected(fleet, 16, lambda rollouts: len(rollouts) == 3)
        (victim,) = pids_of(fleet)
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: pids_are_others(fleet, victim), "the runner never came back")
        rollouts = before + collected(fleet, 16, lambda rollouts: len(rollouts) == 3)
        check_whole(rollouts, broken={0})
        assert "nothing was asked of it" in rollouts[3].info["fault"]["error"]


def pids_are_others(fleet, victim):
    try:
        return pids_of(fleet) != [victim]
    except fleet._ray.exceptions.ActorUnavailableError:
        return False


def test_workers_of_a_killed_runner_go_with_it(cluster):
    with Fleet("CartPole-v1", 4, nodes=1, policy=Constant, backend="process", num_workers=2) as fleet:
        fleet.set_weights({"action": [1]})
        (pid,) = pids_of(fleet)
        workers = children_of(pid)
        assert len(workers) >= 2
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(map(alive, workers)), "workers outlive their runner")
        check_whole(collected(fleet, 16, has_fault), broken={0})


def test_a_killed_worker_is_an_error_or_is_replaced(cluster):
    for on_fault in ("raise", "restart"):
        settings = {"backend": "process", "num_workers": 2, "on_fault": on_fault}
        with Fleet("CartPole-v1", 64, nodes=1, policy=Constant, max_in_flight=1, **settings) as fleet:
            fleet.set_weights({"action": [1]})
            arriving = fleet.rollouts(16, timeout_s=RESTART_S)
            next(arriving)
            (pid,) = pids_of(fleet)
            launcher = [child for child in children_of(pid) if children_of(child)]
            worker = children_of(launcher[0])[0] if launcher else children_of(pid)[-1]
            os.kill(worker, signal.SIGKILL)
            if on_fault == "raise":
                with pytest.raises(WorkerDied, match="SIGKILL"):
                    next(arriving)
                after = next(fleet.rollouts(16, timeout_s=RESTART_S))  # which begins anew
                assert "SIGKILL" in after.info["fault"]["error"] and not after.over.any()
            else:
                ((t, rows),) = next(arriving).info["worker_faults"].items()
                assert 0 <= t < 16 and rows.sum() == 32


def test_closing_leaves_no_process_actor_or_placement_group(cluster):
    import ray

    with Fleet("CartPole-v1", 4, name="passing", backend="process", num_workers=2) as fleet:
        next(fleet.rollouts(16))
        processes = [child for pid in pids_of(fleet) for child in (pid, *children_of(pid))]
        group = fleet._group
        assert len(processes) >= 6 and all(map(alive, processes))
    wait_until(lambda: not any(map(alive, processes)), "processes of a closed fleet live on")

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
    (pid,) = pids_of(fleet)
    fleet.close()
    wait_until(lambda: not alive(pid), "a policy that hangs was left behind")


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


def test_a_learner_that_comes_back_finds_its_fleet_by_name(cluster):
    environment = {**os.environ, "RAY_ADDRESS": cluster.address, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", LEARNER], env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    last = {int(runner): number for runner, (number, _) in json.loads(done.stdout).items()}
    with Fleet.attach("kept") as fleet:
        assert fleet.version == 1 and fleet.num_envs == 4 and fleet.strategy == "STRICT_SPREAD"
        rollouts = collected(fleet, 16, lambda rollouts: len(rollouts) == 8)
        check_whole(rollouts, broken=())
        for rollout in rollouts:  # the policies have kept what they were given; nothing began anew
            assert rollout.version == 1 and rollout.life == 0 and rollout.number > last[rollout.runner]
        assert fleet.set_weights({"action": [2]}) == 2  # for CartPole no action: it says so, not that it died
        with pytest.raises(ValueError, match="action"):
            collected(fleet, 16, lambda rollouts: len(rollouts) == 9)


def test_a_runner_lost_while_no_learner_was_there_is_told_of(cluster):
    with Fleet("CartPole-v1", 4, policy=Constant, seed=0, name="alone") as fleet:
        fleet.set_weights({"action": [1]})
        before = collected(fleet, 16, lambda rollouts: len(rollouts) == 4)
        victim = pids_of(fleet)[0]
        fleet.detach()
    os.kill(victim, signal.SIGKILL)
    with Fleet.attach("alone") as fleet:
        fleet.set_weights({"action": [2 - 1]})
        after = collected(fleet, 16, settled)
        (told,) = [rollout for rollout in after if "fault" in rollout.info]
        assert told.runner == 0 and "no learner" in told.info["fault"]["error"] and told.version == 2
        starts = {rollout.observations[0].tobytes() for rollout in before}
        assert not starts & {rollout.observations[0].tobytes() for rollout in after}


def test_two_learners_do_not_share_a_fleet(cluster):
    with Fleet("CartPole-v1", 2, nodes=1, name="wanted") as first:
        next(first.rollouts(4))
        second = Fleet.attach("wanted")
        next(second.rollouts(4))
        with pytest.raises(WorkerError, match="obeys another learner now"):
            collected(first, 4, lambda rollouts: len(rollouts) == 4)
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
                without.extend(rollouts[-60:])  # the others have gone on
                added.append(cluster.add_node(num_cpus=2))

        rollouts = collected(fleet, 32, settled, remove)
        assert {rollout.runner for rollout in without} == {0, 1, 2} - {runner}
        check_whole(rollouts, broken={runner})
        assert fleet.nodes[runner] == added[0]
    cluster.remove_node(added[0])


def test_a_full_object_store_slows_down_and_does_not_fail(cluster):
    with Fleet("Pixels-v0", 8, max_in_flight=8, num_threads=1) as fleet:
        arriving = fleet.rollouts(80, timeout_s=RESTART_S)
        kept, most = [next(arriving), next(arriving)], 0
        for _ in range(10):  # twice what the learner's store holds, and all of it is kept
            kept.append(next(arriving))
            most = max(most, *(station.in_flight for station in fleet._stations))
        assert most == 2  # of 8 allowed: so many are half of a node's store
        assert sum(rollout.nbytes for rollout in kept) > 2 * 96 << 20
        assert len({(rollout.runner, rollout.number) for rollout in kept}) == 12
        sums = [rollout.observations.sum() for rollout in kept]
        assert [rollout.observations.sum() for rollout in kept] == sums and len(set(sums)) == 12
