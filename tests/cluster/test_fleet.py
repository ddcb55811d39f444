"""A fleet delivers the steps of its environments in whole rollouts, each once, in the order they finish."""

import ast
import os
import subprocess
import sys
from functools import partial

import gymnasium
import numpy as np
import pytest

import shoal
from shoal.cluster import Fleet
from shoal.errors import ClosedError, NameInUse, PluginError, SessionError, WorkerError, WorkerTimeout
from tests.cluster.policies import Broken, Constant, Gated, Leaning, OneIsSlow


def take_rollouts(fleet, length, count, runners=()):
    """Takes `count` rollouts, and more until each of `runners` has sent one."""
    arriving = fleet.rollouts(length, timeout_s=60)
    found = [next(arriving) for _ in range(count)]
    while not {rollout.runner for rollout in found}.issuperset(runners):
        found.append(next(arriving))
    return found


def lake():
    return gymnasium.make("FrozenLake-v1", max_episode_steps=9)


def test_rollouts_equal_the_steps_of_a_local_vector_environment(cluster):
    with Fleet("CartPole-v1", 16, policy=Leaning, seed=3) as fleet:
        found = take_rollouts(fleet, 40, 6, {0, 1})
    assert {rollout.runner for rollout in found} == {0, 1} and len({rollout.node for rollout in found}) == 2
    first = [rollout for rollout in found if rollout.runner == found[0].runner]
    seen = found[0].observations
    assert seen.shape == (41, 16, 4) and found[0].rewards.shape == found[0].extras["lean"].shape == (40, 16)
    with shoal.make_vec("CartPole-v1", 16, session=None) as envs:
        envs.reset(seed=0)
        words = np.random.SeedSequence((3, first[0].runner, 0, 0)).generate_state(2, np.uint64)
        now, _ = envs.reset(seed=int(words[0] >> 33))
        over = np.zeros(16, np.bool_)
        for number, rollout in enumerate(first):
            assert rollout.number == number and (rollout.over == over).all()
            assert (rollout.observations[0] == now).all()
            for t in range(40):
                assert (rollout.actions[t] == (now[:, 2] > 0)).all()
                assert (rollout.extras["lean"][t] == now[:, 2]).all()
                now, reward, terminated, truncated, _ = envs.step(rollout.actions[t].copy())
                assert (rollout.observations[t + 1] == now).all() and (rollout.rewards[t] == reward).all()
                assert (rollout.terminated[t] == terminated).all()
                over = terminated | truncated
    others = next(rollout for rollout in found if rollout.runner != found[0].runner)
    assert (others.observations[0] != seen[0]).any()  # each runner has its own seeds


def test_python_environments_step_in_workers_on_their_nodes(cluster):
    with Fleet(lake, 4, nodes=1, seed=0, num_workers=2) as fleet:
        before, after = take_rollouts(fleet, 12, 2)
    assert before.observations.shape == (13, 4) and (before.observations[-1] == after.observations[0]).all()
    assert before.truncated.any() or before.terminated.any()
    assert len(np.unique(before.actions)) == 4  # without a policy they are random


def test_arrays_are_read_only_views_of_the_object_store(cluster):
    with Fleet("CartPole-v1", 64, nodes=2) as fleet:
        found = take_rollouts(fleet, 128, 4)
        maps = [line.split() for line in open("/proc/self/maps")]
        for rollout in found:
            for array in (rollout.observations, rollout.actions, rollout.rewards):
                assert not array.flags.writeable
                with pytest.raises(ValueError, match="read-only"):
                    array[0] = 0
                at = array.__array_interface__["data"][0]
                (line,) = [x for x in maps if int(x[0].split("-")[0], 16) <= at < int(x[0].split("-")[1], 16)]
                assert "plasma" in line[-2] + line[-1], line


def test_a_small_rollout_is_read_only_too(cluster):
    with Fleet("CartPole-v1", 2, nodes=1) as fleet:
        (rollout,) = take_rollouts(fleet, 3, 1)
        assert not rollout.observations.flags.writeable and not rollout.over.flags.writeable


@pytest.mark.parametrize("limit", [1, 2])
def test_one_version_of_the_weights_makes_a_whole_rollout(cluster, limit):
    with Fleet("CartPole-v1", 8, nodes=1, policy=Leaning, max_in_flight=limit) as fleet:
        arriving, versions = fleet.rollouts(16, timeout_s=60), []
        for turn in range(12):
            rollout = next(arriving)
            versions.append(rollout.version)
            assert (rollout.extras["version"] == 10 * rollout.version).all()
            assert turn - (limit - 1) <= rollout.version <= fleet.version == turn
            assert fleet.set_weights({"version": np.int64(10 * (turn + 1))}) == turn + 1
    assert versions == sorted(versions)


def test_weights_are_put_into_the_store_once_for_all_nodes(cluster, monkeypatch):
    import ray

    with Fleet("CartPole-v1", 8, policy=Constant) as fleet:
        puts, put = [], ray.put
        monkeypatch.setattr(ray, "put", lambda value: puts.append(value) or put(value))
        weights = {"action": np.ones(100_000, np.int64)}
        fleet.set_weights(weights)
        found = take_rollouts(fleet, 8, 4)
        assert len(puts) == 1 and puts[0] is weights
        assert {rollout.version for rollout in found} == {1} and all((r.actions == 1).all() for r in found)


def test_the_first_rollout_that_is_ready_comes_first(cluster, tmp_path):
    with Fleet("CartPole-v1", 4, nodes=2, policy=partial(OneIsSlow, directory=tmp_path)) as fleet:
        arriving = fleet.rollouts(8, timeout_s=60)
        quick = [next(arriving).runner for _ in range(5)]
        assert len(set(quick)) == 1
        (tmp_path / "go").touch()
        assert quick[0] != next(rollout.runner for rollout in arriving if rollout.runner != quick[0])


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_than_max_in_flight_rollouts_are_collected(cluster, tmp_path, limit):
    allowed = tmp_path / "allowed"
    allowed.write_text("1")
    policy = partial(Gated, directory=tmp_path, length=4)
    with Fleet("CartPole-v1", 2, nodes=1, policy=policy, max_in_flight=limit) as fleet:
        arriving = fleet.rollouts(4, timeout_s=60)
        next(arriving)  # its size is known now
        allowed.write_text("100")
        next(arriving)
        assert fleet.in_flight == limit - 1
        waiting = [station.oldest for station in fleet._stations if station.oldest is not None]
        fleet._ray.wait(waiting, timeout=30)
        next(arriving)  # so that what was asked for before has begun, or is made
        begun = len(list(tmp_path.glob("*-*")))
        assert begun <= 3 + limit - 1
        assert fleet.in_flight == limit - 1


def test_an_exception_of_a_policy_arrives_with_its_traceback_and_the_fleet_continues(cluster):
    with Fleet("CartPole-v1", 4, nodes=1, policy=Broken, max_in_flight=1, seed=5) as fleet:
        with pytest.raises(ZeroDivisionError, match="^the third step of a policy$") as caught:
            take_rollouts(fleet, 8, 1)
        there = str(caught.value.__cause__)
        assert "policies.py" in there and "in __call__" in there and "\x1b" not in there
        after, last = take_rollouts(fleet, 8, 2)
        assert (after.number, last.number, after.life, after.info) == (1, 2, 0, {})
        with shoal.make_vec("CartPole-v1", 4, session=None) as envs:  # which are where they were
            words = np.random.SeedSequence((5, 0, 0, 0)).generate_state(2, np.uint64)
            envs.reset(seed=int(words[0] >> 33))
            envs.step(np.zeros(4, np.int64))
            assert (after.observations[0] == envs.step(np.zeros(4, np.int64))[0]).all()


def test_rollouts_of_another_length_can_follow(cluster):
    with Fleet("CartPole-v1", 4, nodes=1) as fleet:
        rollouts = [*take_rollouts(fleet, 5, 2), *take_rollouts(fleet, 9, 2)]
        assert [rollout.length for rollout in rollouts] == [5, 5, 9, 9]


def test_an_unknown_environment_raises_the_same_error_as_on_one_machine(cluster):
    with pytest.raises(PluginError, match="^no environment 'Nope-v0'"):
        Fleet("Nope-v0", 2)
    with pytest.raises(TypeError, match="has no option 'num_thread'.* the argument 'num_threads'"):
        Fleet("CartPole-v1", 2, num_thread=2)


@pytest.mark.parametrize("nodes", [0, -1, 1.5, "some", True, None])
def test_nodes_must_be_all_or_a_number(cluster, nodes):
    with pytest.raises(ValueError, match='nodes must be "all" or a number of at least 1'):
        Fleet("CartPole-v1", 2, nodes=nodes)


def test_more_runners_than_nodes_share_nodes_with_strategy_spread(cluster):
    with Fleet("CartPole-v1", 2, nodes=3) as fleet:
        assert fleet.strategy == "SPREAD" and len(fleet.nodes) == 3 and len(set(fleet.nodes)) == 2
        assert {rollout.runner for rollout in take_rollouts(fleet, 4, 12, {0, 1, 2})} == {0, 1, 2}
    with Fleet("CartPole-v1", 2, nodes=2) as fleet:
        assert fleet.strategy == "STRICT_SPREAD" and len(set(fleet.nodes)) == 2


def test_runners_that_never_fit_raise_at_once_and_runners_without_room_time_out(cluster):
    with pytest.raises(WorkerError, match=r"5 runners of 1 CPU each do not fit .* 127.0.0.2: 2 CPU"):
        Fleet("CartPole-v1", 2, nodes=5)
    with Fleet("CartPole-v1", 2, nodes=2, num_cpus=2):
        with pytest.raises(
            WorkerTimeout, match="no room for 1 runners of 1 CPU each within 0.5 s: .* 0 CPU free"
        ):
            Fleet("CartPole-v1", 2, nodes=1, start_timeout_s=0.5)


def test_runners_go_to_nodes_that_have_their_resources(cluster):
    import ray

    for node in ray.nodes():
        if node["Alive"]:
            where = {f"node:{node['NodeManagerAddress']}": 0.01}
            with Fleet("CartPole-v1", 2, resources=where) as fleet:
                assert fleet.nodes == [node["NodeID"]]
    with pytest.raises(WorkerError, match=r"1 runners of 1 CPU, 1 tractor each do not fit .*, 0 tractor"):
        Fleet("CartPole-v1", 2, resources={"tractor": 1})


def test_a_name_in_use_and_an_unknown_name_raise(cluster):
    with Fleet("CartPole-v1", 2, nodes=1, name="taken"):
        with pytest.raises(NameInUse, match=r"Fleet.attach\('taken'\) takes it over"):
            Fleet("CartPole-v1", 2, nodes=1, name="taken")
    with pytest.raises(SessionError, match="no fleet is called 'taken'"):
        Fleet.attach("taken")


def test_rollouts_raise_worker_timeout_if_none_arrives(cluster, tmp_path):
    (tmp_path / "allowed").write_text("0")
    with Fleet("CartPole-v1", 2, nodes=1, policy=partial(Gated, directory=tmp_path, length=4)) as fleet:
        with pytest.raises(WorkerTimeout, match="no rollout of 1 runners arrived within 0.2 s"):
            next(fleet.rollouts(4, timeout_s=0.2))
        (tmp_path / "allowed").write_text("9")


def test_a_closed_fleet_raises(cluster):
    fleet = Fleet("CartPole-v1", 2, nodes=1)
    arriving = fleet.rollouts(4)
    fleet.close()
    fleet.close()
    for use in (lambda: fleet.rollouts(4), lambda: next(arriving), lambda: fleet.set_weights(1)):
        with pytest.raises(ClosedError, match="the fleet is closed"):
            use()
    assert repr(fleet) == "<Fleet, closed>"


ALONE = """
import ray
from shoal.cluster import Fleet

with Fleet("CartPole-v1", 8, seed=0) as fleet:
    print(next(fleet.rollouts(4, timeout_s=60)).observations.shape, len(fleet.nodes))
    print({node["NodeManagerAddress"] for node in ray.nodes()})
print(ray.is_initialized())
"""


def test_without_an_address_the_fleet_starts_a_local_ray_and_ends_it(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    done = subprocess.run(
        [sys.executable, "-c", ALONE], env=environment, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert told[0] == "(5, 8, 4) 1" and told[-1] == "False"
    assert all(address.startswith("127.") for address in ast.literal_eval(told[1]))
