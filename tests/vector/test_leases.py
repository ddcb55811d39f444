"""Zero-copy is safe by default: arrays that are kept never change, released memory is used again."""

import gc
import os
import weakref

import numpy as np
import pytest

import shoal

ACTIONS = np.zeros(64, np.int64)


def stepped(buffers, num_envs=64, **kwargs):
    envs = shoal.make_vec("CartPole-v1", num_envs, buffers=buffers, **kwargs)
    envs.reset(seed=0)
    return envs


def addresses(arrays):
    return {array.__array_interface__["data"][0] for array in arrays}


@pytest.mark.parametrize("buffers", ["leased", "copy"])
def test_an_observation_kept_in_a_list_never_changes(buffers):
    envs = stepped(buffers, max_slots=8)
    kept, copies = [], []
    for _ in range(40):
        result = envs.step(ACTIONS)[:4]
        kept.append(result)
        copies.append([array.copy() for array in result])
    for result, copy in zip(kept, copies, strict=True):
        for one, other in zip(result, copy, strict=True):
            assert np.array_equal(one, other)
            assert not envs.shares_buffer(one)
    assert len(addresses(result[0] for result in kept)) == 40


def test_live_observation_changes_and_shares_buffer():
    envs = stepped("live")
    observation = envs.step(ACTIONS)[0]
    before = observation.copy()
    again = envs.step(ACTIONS)[0]
    assert again is observation
    assert not np.array_equal(observation, before)
    assert envs.shares_buffer(observation)
    assert envs.shares_buffer(observation[3:])
    assert not envs.shares_buffer(before)


def test_slots_are_used_again_over_many_steps_and_memory_does_not_grow():
    envs = stepped("leased", 4)
    actions = np.zeros(4, np.int64)
    seen = set()
    for i in range(100_000):
        observation, reward, terminated, truncated, _ = envs.step(actions)
        if i % 1000 == 0:
            seen |= addresses([observation])
        if i == 1000:
            before = _resident()
    assert len(seen) <= 2
    assert envs.stats["slots"] <= 3
    assert _resident() - before < 2 << 20


def _resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_results_beyond_max_slots_are_copied_and_counted():
    envs = stepped("leased", max_slots=3)
    kept = [envs.step(ACTIONS) for _ in range(10)]
    stats = envs.stats
    assert stats["slots"] == 3
    assert 6 <= stats["copies"] <= 8  # the reset's observation may hold a slot too
    assert len(addresses(result[0] for result in kept)) == 10
    del kept
    envs.step(ACTIONS)
    assert envs.stats["copies"] == stats["copies"]


def test_the_tuple_of_a_result_is_returned_again_only_when_nobody_holds_it():
    envs = stepped("leased")
    kept = [envs.step(ACTIONS) for _ in range(6)]
    copies = [[array.copy() for array in result[:4]] for result in kept]
    envs.step(ACTIONS)
    for result, copy in zip(kept, copies, strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(result[:4], copy, strict=True))
    assert len({id(result) for result in kept}) == len({id(result[4]) for result in kept}) == 6


@pytest.mark.parametrize("buffers", ["leased", "live", "copy"])
@pytest.mark.parametrize("hold", ["nothing", "infos", "tuple"])
@pytest.mark.parametrize("fill", [True, False])
def test_what_a_user_puts_into_infos_is_in_no_other_step(buffers, hold, fill):
    envs = stepped(buffers)
    held = []
    for i in range(12):
        result = envs.step(ACTIONS)
        infos = result[4]
        assert "mine" not in infos
        if fill:
            infos["mine"] = i
        if hold != "nothing":
            held.append(infos if hold == "infos" else result)
        del result, infos
    infos = held if hold == "infos" else [result[4] for result in held]
    assert len({id(one) for one in infos}) == len(held)
    assert not fill or [one["mine"] for one in infos] == list(range(len(held)))


def test_arrays_in_infos_hold_their_slot_only_while_the_user_holds_the_infos():
    envs = stepped("leased", max_slots=4)
    observation, *_, infos = envs.step(ACTIONS)
    infos["observation"], before = observation, observation.copy()
    del observation, _
    for _step in range(10):
        envs.step(ACTIONS)
    assert np.array_equal(infos["observation"], before)
    del infos
    copies = envs.stats["copies"]
    for _step in range(50):
        *arrays, infos = envs.step(ACTIONS)
        infos["arrays"] = arrays
        del arrays, infos
    assert envs.stats["copies"] == copies


@pytest.mark.parametrize("through", ["dict", "tuple"])
def test_a_cycle_through_infos_is_collected_and_its_slot_used_again(through):
    envs = stepped("leased", max_slots=4)
    for _ in range(20):
        result = envs.step(ACTIONS)
        infos = result[4]
        infos["all"] = result if through == "tuple" else {"observation": result[0], "infos": infos}
        del result, infos
        gc.collect()
    assert envs.stats["copies"] <= 4  # a slot is dropped from its cycle by the next step that looks for one


def test_close_drops_what_a_user_put_into_infos():
    class Thing:
        pass

    envs = stepped("leased")
    thing = Thing()
    alive = weakref.ref(thing)
    envs.step(ACTIONS)[4]["thing"] = thing
    del thing
    envs.close()
    assert alive() is None


def test_a_destructor_of_something_in_infos_may_not_step():
    errors = []

    class Steps:
        def __del__(self):
            try:
                envs.step(ACTIONS)
            except shoal.ShoalError as error:
                errors.append(error)

    envs = stepped("leased")
    for _ in range(3):
        envs.step(ACTIONS)[4]["thing"] = Steps()
    envs.step(ACTIONS)
    assert errors and all("step" in str(error) for error in errors)
    envs.step(ACTIONS)


@pytest.mark.parametrize(
    "hold", [lambda a: a[5:], lambda a: a.T, memoryview, lambda a: a.view(np.int32)[::2]]
)
def test_any_view_of_a_result_holds_its_slot(hold):
    envs = stepped("leased")
    held = hold(envs.step(ACTIONS)[0])
    before = np.array(held).tobytes()
    for _ in range(20):
        envs.step(ACTIONS)
    assert np.array(held).tobytes() == before


@pytest.mark.parametrize("part", [0, 1, 2, 3])
def test_any_one_array_of_a_result_holds_the_whole_slot(part):
    envs = stepped("leased")
    held = envs.step(ACTIONS)[part]
    others = [envs.step(ACTIONS)[0] for _ in range(4)]
    result = envs.step(ACTIONS)
    assert not np.shares_memory(result[part], held)
    assert len(others) == 4


def test_a_torch_tensor_holds_its_lease():
    torch = pytest.importorskip("torch", reason="needs torch: make torch")
    envs = stepped("leased")
    tensor = torch.from_numpy(envs.step(ACTIONS)[0])
    exported = torch.from_dlpack(envs.step(ACTIONS)[0])
    before = tensor.clone(), exported.clone()
    for _ in range(20):
        envs.step(ACTIONS)
    assert torch.equal(tensor, before[0])
    assert torch.equal(exported, before[1])


def test_results_stay_valid_after_close_and_after_the_environments_are_gone():
    envs = stepped("leased")
    observation = envs.step(ACTIONS)[0]
    before = observation.copy()
    envs.close()
    del envs
    gc.collect()
    assert np.array_equal(observation, before)
    observation[:] = 3


def test_nothing_is_leaked_by_making_and_dropping_environments():
    def count():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    stepped("leased", num_threads=2).close()
    before = count()
    for _ in range(30):
        envs = stepped("leased", num_threads=2)
        envs.step(ACTIONS)
        del envs
    assert count() == before


@pytest.mark.parametrize("buffers", ["leased", "live", "copy"])
def test_every_buffer_mode_gives_the_same_values(buffers):
    envs, other = stepped(buffers), stepped("leased")
    for _ in range(50):
        for one, two in zip(envs.step(ACTIONS)[:4], other.step(ACTIONS)[:4], strict=True):
            assert np.array_equal(one, two)


def test_step_uses_actions_in_the_buffer():
    envs, other = stepped("live", 5), stepped("leased", 5)
    rng = np.random.default_rng(0)
    for _ in range(30):
        actions = rng.integers(0, 2, 5)
        envs.actions[:] = actions
        assert np.array_equal(envs.step()[0], other.step(actions)[0])


@pytest.mark.parametrize("num_envs", [5, 64, 100])
def test_rollout_holds_what_step_would_return(num_envs):
    envs, other = stepped("leased", num_envs), stepped("leased", num_envs)
    rollout = envs.rollout(20)
    assert rollout.observations.shape == (21, num_envs, 4)
    assert rollout.rewards.shape == rollout.actions.shape == (20, num_envs)
    rng = np.random.default_rng(0)
    observation = envs.reset(seed=4)[0]
    expected = [other.reset(seed=4)[0]]
    for _ in range(2):  # the block is filled twice: addresses stay
        rollout.start(observation)
        for t in range(20):
            actions = rng.integers(0, 2, num_envs)
            rollout.step(actions)
            result = other.step(actions)
            expected.append(result[0])
            assert np.array_equal(rollout.rewards[t], result[1])
            assert np.array_equal(rollout.terminated[t], result[2])
            assert np.array_equal(rollout.truncated[t], result[3])
            assert np.array_equal(rollout.actions[t], actions)
        assert np.array_equal(rollout.observations, np.stack(expected))
        observation, expected = rollout.observations[20].copy(), expected[-1:]
    with pytest.raises(IndexError, match="full after 20 steps"):
        rollout.step(actions)


def test_a_masked_reset_after_a_rollout_keeps_the_other_environments_observations():
    envs = stepped("leased", 6)
    rollout = envs.rollout(4)
    rollout.start(envs.reset(seed=1)[0])
    for _ in range(4):
        rollout.step(np.ones(6, np.int64))
    mask = np.array([True, False] * 3)
    observation = envs.reset(options={"reset_mask": mask})[0]
    assert np.array_equal(observation[~mask], rollout.observations[4][~mask])
    assert not np.array_equal(observation[mask], rollout.observations[4][mask])


def test_rollout_checks_start_and_arguments():
    envs = stepped("leased", 4)
    rollout = envs.rollout(3)
    with pytest.raises(ValueError, match="call start"):
        rollout.step([0] * 4)
    for wrong in (None, np.zeros((4, 3), np.float32), np.zeros((4, 4)), {"a": 1}):
        with pytest.raises(ValueError, match="start takes the observation"):
            rollout.start(wrong)
    rollout.start(envs.reset(seed=0)[0])
    for wrong in (1, [[0] * 4], [0] * 3, [9] * 4):
        with pytest.raises(ValueError):
            rollout.step(wrong)
    assert rollout.t == 0 and not rollout.rewards.any()
    rollout.step([1, 0, 1, 0])
    assert rollout.actions[0].tolist() == [1, 0, 1, 0]
    assert repr(rollout) == "<Rollout of 3 steps x 4 rows, at step 1>"
    envs.close()
    with pytest.raises(shoal.errors.ClosedError):
        envs.rollout(3)


def test_same_step_autoreset_has_no_rollouts():
    envs = stepped("leased", 6, autoreset_mode="SameStep")
    with pytest.raises(shoal.ShoalError, match="cannot store the final observations"):
        envs.rollout(4)


def test_a_rollout_outlives_its_environments():
    envs = stepped("leased", 5)
    rollout = envs.rollout(3)
    rollout.start(envs.reset(seed=1)[0])
    rollout.step(np.zeros(5, np.int64))
    rewards = rollout.rewards
    envs.close()
    with pytest.raises(shoal.errors.ClosedError):
        rollout.step(np.zeros(5, np.int64))
    del envs, rollout
    gc.collect()
    assert rewards[0].tolist() == [1] * 5
