"""The library keeps the current observations itself, so users may change arrays that they were given."""

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

import shoal
from tests.vector.latched import BACKENDS, SOURCE, make

MODES = list(AutoresetMode)
ZEROS = np.zeros(4, np.int64)
WITHOUT_OBSERVE = "native, without shoal.observe/1"
RAISING = [backend for backend in BACKENDS if backend != "emulated"]
"""Backends whose step raises what the environments find; a device has `check` for it (tests/cuda)."""


@pytest.fixture(scope="module")
def unobservable(tmp_path_factory):
    """The plug-in without the ability to write an observation again."""
    source = tmp_path_factory.mktemp("plugin") / "unobservable.c"
    source.write_text("#define NO_OBSERVE\n" + SOURCE.read_text())
    return source


@pytest.fixture
def made(unobservable):
    def make_one(backend, **kwargs):
        if backend == WITHOUT_OBSERVE:
            return shoal.make_vec(unobservable, 4, **kwargs)
        return make(backend, **kwargs)

    return make_one


def spoil(*results):
    for part in results:
        if isinstance(part, np.ndarray):
            part[...] = 1 if part.dtype == np.bool_ else -100


def mask(*envs):
    chosen = np.zeros(4, np.bool_)
    chosen[list(envs)] = True
    return {"reset_mask": chosen}


@pytest.mark.parametrize("buffers", ["leased", "live", "copy"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", [*BACKENDS, WITHOUT_OBSERVE])
def test_rows_that_are_not_reset_are_what_the_environment_produced(made, backend, mode, buffers):
    with made(backend, autoreset_mode=mode, buffers=buffers, length=5) as envs:
        found, _ = envs.reset(seed=3)
        for chosen in ((1,), (0, 3)):
            before = found.copy()
            spoil(found)
            found, _ = envs.reset(options=mask(*chosen))
            rest = [env for env in range(4) if env not in chosen]
            assert np.array_equal(found[rest], before[rest])
            assert (found[list(chosen), :2] == [0, -1]).all()
        for step in range(12):
            results = envs.step(ZEROS + step)
            produced, ended = results[0].copy(), (results[2] | results[3]).copy()
            spoil(*results[:4])
            if mode != AutoresetMode.DISABLED and step % 3:
                continue
            reset = np.flatnonzero(ended).tolist() or [step % 4]
            found, _ = envs.reset(options=mask(*reset))
            rest = [env for env in range(4) if env not in reset]
            assert np.array_equal(found[rest], produced[rest])
            assert (found[reset, :2] == [0, -1]).all()
            spoil(found)


@pytest.mark.parametrize("backend", [*BACKENDS, WITHOUT_OBSERVE])
def test_after_a_rollout_whose_rows_were_changed(made, backend):
    with made(backend) as envs:
        rollout = envs.rollout(3)
        rollout.start(envs.reset(seed=0)[0])
        for _ in range(3):
            rollout.step(ZEROS)
        produced = rollout.observations[3].copy()
        spoil(rollout.observations, rollout.rewards, rollout.terminated)
        found, _ = envs.reset(options=mask(2))
        assert np.array_equal(found[[0, 1, 3]], produced[[0, 1, 3]]) and found[2, 0] == 0


@pytest.mark.parametrize("backend", [*RAISING, WITHOUT_OBSERVE])
def test_after_a_step_that_was_refused_or_raised(made, backend):
    with made(backend, check=("actions", "nan")) as envs:
        envs.reset(seed=0)
        held = [envs.step(ZEROS) for _ in range(3)]  # slots that are in use
        produced = held[-1][0].copy()
        del held
        for bad in ([0] * 3, [0, 0, 0, 100], "ab"):
            with pytest.raises((ValueError, TypeError)):
                envs.step(bad)
            found, _ = envs.reset(options=mask(0))
            assert np.array_equal(found[1:], produced[1:])
        envs.reset(seed=0)
        with pytest.raises(ValueError, match="reward of environment 1 is NaN"):
            envs.step([0, 99, 0, 0])
        found, _ = envs.reset(options=mask(0))
        assert found[1:, :2].tolist() == [[1, 99], [1, 0], [1, 0]]


@pytest.mark.parametrize("backend", ["Python in workers", "caller_steps"])
@pytest.mark.parametrize("shared_memory", [True, False])
def test_row_of_an_environment_that_raised_is_not_shared(backend, shared_memory):
    kwargs = {} if shared_memory else {"observation_space": Unshared()}
    with make(backend, shared_memory=shared_memory, **kwargs) as envs:
        first = np.array(envs.reset(seed=0)[0])
        for _ in range(3):  # slots that held other results
            envs.step(ZEROS)
        produced = np.array(envs.step(ZEROS)[0])
        with pytest.raises(RuntimeError, match="action 97") as caught:
            envs.step([1, 97, 1, 1])
        rows = np.array(caught.value.results[0])
        assert np.array_equal(rows[1], produced[1]) and (rows[[0, 2, 3], 0] == 5).all()
        found = np.array(envs.reset(options=mask(0))[0])
        assert np.array_equal(found[1], produced[1]) and np.array_equal(found[2:], rows[2:])
        assert not np.array_equal(first, found)


class Unshared(gymnasium.spaces.Box):
    """A space nobody laid out: its values travel as messages."""

    def __init__(self):
        super().__init__(-1e9, 1e9, (3,), np.float64)


class RaisesAtReset(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(100)

    def reset(self, *, seed=None, options=None):
        raise RuntimeError("no reset")


def test_an_environment_that_never_produced_anything_has_zeros():
    from tests.vector.latched import LatchedEnv

    functions = [lambda: LatchedEnv("", 9, 0), RaisesAtReset]
    with shoal.vector.ProcessVectorEnv(functions, num_workers=1, max_slots=2) as envs:
        for _ in range(5):
            with pytest.raises(RuntimeError, match="no reset") as caught:
                envs.reset(seed=1)
            observations = caught.value.results[0]
            assert observations[0, 1] == -1 and observations[1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("backend", ["Python in workers", "caller_steps"])
def test_a_call_that_changes_the_environments_own_array_changes_no_row(backend):
    with make(backend) as envs:
        produced = envs.reset(seed=0)[0].copy()
        envs.call("spoil")
        found, _ = envs.reset(options=mask(0))
        assert np.array_equal(found[1:], produced[1:])


@pytest.mark.parametrize("backend", ["native", "native, 2 threads"])  # workers publish in other processes
def test_interrupted_publication_leaves_no_dangling_state(backend, monkeypatch):
    from shoal.state import publish

    with make(backend) as envs:
        rollout = envs.rollout(8)
        rollout.start(envs.reset(seed=0)[0])
        envs._backend._state["due"][:] = 1

        def interrupted(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(publish.Publisher, "__call__", interrupted)
        envs._backend._state["due"].view(np.uint32)[...] = 1
        with pytest.raises(KeyboardInterrupt):
            rollout.step(ZEROS)
        rollout = None
        found, _ = envs.reset(options=mask(0))
        assert (found[1:, 0] == 1).all()


@pytest.mark.parametrize("backend", RAISING)
def test_step_after_an_end_raises_and_steps_nothing(backend):
    """autoreset DISABLED: environments that ended must be reset first, all of them."""
    with make(backend, num_envs=4, length=3, autoreset_mode="DISABLED") as envs:
        envs.reset(seed=0)
        envs.step(ZEROS)
        envs.reset(options=mask(0, 1))  # so these end one step later than the others
        envs.step(ZEROS)
        observations, _, terminated, *_ = envs.step(ZEROS)
        assert terminated.tolist() == [False, False, True, True]
        produced, steps = observations.copy(), envs.stats["steps"]
        spoil(terminated)
        for _ in range(3):
            with pytest.raises(ResetNeeded, match="reset_mask"):
                envs.step(ZEROS)
        rollout = envs.rollout(2)
        rollout.start(produced)
        with pytest.raises(ResetNeeded, match="reset_mask"):
            rollout.step(ZEROS)
        assert envs.stats["steps"] == steps
        found, _ = envs.reset(options=mask(2))
        assert np.array_equal(found[[0, 1, 3]], produced[[0, 1, 3]])
        with pytest.raises(ResetNeeded):
            envs.step(ZEROS)
        found, _ = envs.reset(options=mask(3))
        assert np.array_equal(found[:2], produced[:2]) and found[2:, 0].tolist() == [0, 0]
        assert envs.step(ZEROS)[0][:, 0].tolist() == [3, 3, 1, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mask_before_the_first_reset_is_refused(backend):
    with make(backend) as envs:
        with pytest.raises(ResetNeeded, match="call reset.. without a mask first"):
            envs.reset(options=mask(1))
        assert envs.reset(options=mask(0, 1, 2, 3))[0][:, 0].tolist() == [0] * 4
    with make(backend) as envs:
        assert envs.reset(seed=0)[0][:, 0].tolist() == [0] * 4


@pytest.mark.parametrize("backend", RAISING)
def test_check_nan_means_the_same_everywhere(backend):
    for action, what in ((99, "reward"), (98, "observation")):
        with make(backend, check="nan") as envs:
            envs.reset(seed=0)
            with pytest.raises(ValueError, match=f"{what} of environment 2 is NaN.* have stepped") as caught:
                envs.step([0, 0, action, 0])
            results = caught.value.results
            assert caught.value.env_id == 2 and len(results) == 5
            assert results[0][:, 0].tolist() == [1] * 4 and results[2].tolist() == [False] * 4
            assert envs.step([0] * 4)[0][:, 0].tolist() == [2] * 4  # it had stepped
            rollout = envs.rollout(2)
            rollout.start(envs.reset(seed=0)[0])
            with pytest.raises(ValueError, match=f"{what} of environment 2 is NaN"):
                rollout.step(np.array([0, 0, action, 0]))
        with make(backend) as envs:  # not unless asked for
            envs.reset(seed=0)
            assert np.isnan(envs.step([0, 0, action, 0])[0 if action == 98 else 1]).any()


@pytest.mark.parametrize("backend", ["native", "Python in workers"])
def test_check_nan_of_asynchronous_stepping_names_the_environment(backend):
    with make(backend, 4, batch_size=2, check="nan") as envs:
        envs.async_reset(seed=0)
        for _ in range(2):
            envs.recv()
        envs.send([0, 98], [1, 3])
        with pytest.raises(ValueError, match="observation of environment 3 is NaN") as caught:
            envs.recv()
        assert caught.value.env_id == 3 and caught.value.results[4]["env_id"].tolist() == [1, 3]
        envs.send([0, 0], [1, 3])
        assert envs.recv()[0][:, 0].tolist() == [2, 2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_refused_reset_or_restore_changes_nothing(backend):
    with make(backend) as envs:
        with pytest.raises(ResetNeeded):
            envs.reset(seed=5, options=mask(1))
        if envs.has_extension("shoal.checkpoint/1"):
            with pytest.raises(ValueError, match="not a checkpoint"):
                envs.restore_env(0, b"xx")
            with pytest.raises(ResetNeeded, match="call reset"):
                envs.step(ZEROS)
            with make(backend) as others:
                others.reset(seed=1)
                saved = others.save_env(0)
            envs.restore_env(0, saved)
            assert (envs.step(ZEROS)[0][:, 0] == 1).all()  # the others were reset before


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rollout_records_the_actions_that_were_stepped(backend):
    class Changing:
        """Converted to other actions each time."""

        def __init__(self):
            self.count = 0

        def __array__(self, dtype=None, copy=None):
            self.count += 1
            return np.full(4, self.count, dtype or np.int64)

    with make(backend) as envs:
        rollout = envs.rollout(3)
        rollout.start(envs.reset(seed=0)[0])
        for bad in (None, [0] * 3, "ab"):
            with pytest.raises((TypeError, ValueError)):
                rollout.step(bad)
        assert envs.stats["steps"] == 0 and rollout.t == 0
        for t in range(3):
            rollout.step(Changing() if t else [7, 8, 9, 10])
            assert np.array_equal(rollout.actions[t], rollout.observations[t + 1][:, 1])
