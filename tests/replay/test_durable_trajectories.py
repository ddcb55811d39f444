"""Trajectories in files after a crash of the machine: a link finds the right row or none."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal import ReplayBuffer
from tests.replay.power import Counting, crash, dirty_kilobytes, unsynced
from tests.replay.test_trajectories import Walk, key_of

GRAINS = st.sampled_from([8, 64, 512, 4096])


def walk(buffer, envs, steps, model):
    """Steps the environments and adds the steps to the buffer and to the model."""
    for _ in range(steps):
        actions = envs.action_space.sample()
        results = envs.step(actions)
        finals = results[4].get("final_obs", results[0])
        for env in range(envs.num_envs):
            over = results[2][env] or results[3][env]
            seen = finals[env] if over else results[0][env]
            model[key_of(seen)] = (actions[env], results[1][env], results[2][env], results[3][env])
        buffer.add(actions, *results)


def check_walks(buffer, model):
    """Checks all samples against the model; returns the ids of the stored rows."""
    rows = buffer.latest(buffer.capacity)
    stretch = buffer.sample_sequences(50, 4) if len(rows.ids) else {"mask": np.zeros((0, 4), bool)}
    for i, mask in enumerate(stretch["mask"]):
        keys = [key_of(stretch["obs"][i, t]) for t in range(mask.sum())]
        assert keys == [(*keys[0][:2], keys[0][2] + t) for t in range(len(keys))]
    linked = rows["previous"][~rows["first"]]
    if not np.isin(linked[linked > 0] - 1, rows.ids).any():
        return set(rows.ids.tolist())  # nothing to be sampled
    batches = buffer.sample(50), buffer.sample_n_step(50, 3, 0.5)
    for i in range(50):
        before, after = key_of(batches[0]["obs"][i]), key_of(batches[0]["next_obs"][i])
        assert after == (*before[:2], before[2] + 1)
        names = ("action", "reward", "terminated", "truncated")
        assert tuple(batches[0][name][i] for name in names) == model[after]
        before, after = key_of(batches[1]["obs"][i]), key_of(batches[1]["next_obs"][i])
        taken = after[2] - before[2]
        keys = [(*before[:2], before[2] + 1 + t) for t in range(taken)]
        assert before[:2] == after[:2] and 1 <= taken <= 3
        assert batches[1]["reward"][i] == sum(0.5**t * model[key][1] for t, key in enumerate(keys))
    return set(rows.ids.tolist())


@settings(max_examples=100)
@given(
    st.sampled_from(["process", "sync"]),
    st.sampled_from([7, 40, 300]),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), GRAINS, st.integers(0, 2**32)), max_size=3),
)
def test_links_after_a_power_loss_find_the_right_row_or_none(level, capacity, crashes):
    model, round_ = {}, 0
    with tempfile.TemporaryDirectory() as name:
        path, buffer = Path(name) / "first.ring", None
        for waited, lost, grain, seed in crashes:
            round_ += 1
            makers = [lambda env=env: Walk(10 * round_ + env) for env in range(3)]  # noqa: B023
            envs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
            envs.action_space.seed(seed)
            if buffer is None:
                buffer = ReplayBuffer.for_env(envs, capacity, path=path, durability=level, seed=0)
            images = [path.read_bytes()]
            buffer.begin(envs.reset(seed=seed)[0])
            walk(buffer, envs, waited, model)
            images = [*(images if level == "process" else ()), path.read_bytes()]
            newest = set(buffer.latest(capacity).ids.tolist())
            unsynced(buffer)
            for _ in range(lost):
                walk(buffer, envs, 1, model)
                images.append(path.read_bytes())
            tail = int(buffer._records.segment["tail"][0])
            buffer.close(), envs.close()
            path = crash(images, grain, seed, Path(name))
            buffer = ReplayBuffer.open(path, seed=0)
            there = check_walks(buffer, model)
            if level == "sync":
                assert {i for i in newest if i >= tail - capacity} <= there
        if buffer is not None:
            buffer.close()


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_add_syncs_once_and_its_links_are_on_disk(tmp_path, mode):
    path = tmp_path / "a.ring"
    envs = SyncVectorEnv([lambda: Walk(0), lambda: Walk(1)], autoreset_mode=AutoresetMode[mode])
    with ReplayBuffer.for_env(envs, 1000, path=path, durability="sync") as buffer:
        ring = Counting(buffer)
        buffer.begin(envs.reset(seed=0)[0])
        assert ring.syncs == 1 and dirty_kilobytes(path) == 0
        for step in range(20):  # some of them end episodes: with SAME_STEP, two batches of rows
            walk(buffer, envs, 1, {})
            assert ring.syncs == 2 + step and dirty_kilobytes(path) == 0
        assert (len(buffer) > 2 * 21) == (mode == "SAME_STEP")
    envs.close()
