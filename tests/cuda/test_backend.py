"""The cuda backend: what it refuses before a launch, faults that the kernels find, leases, sessions."""

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

import shoal
from shoal.errors import BuildError, ClosedError, PluginError, ShoalError
from tests.cuda.device import DEVICE, ON_GPU, host, make, put
from tests.native.conftest import REAL

pytestmark = pytest.mark.skipif(REAL is None, reason="no C compiler: install gcc or clang")

PLUGINS = Path(__file__).parents[1] / "native" / "plugins"
PLAIN = Path(__file__).parent / "plain.c"


@pytest.fixture
def envs():
    made = make("CartPole-v1", 40)
    yield made
    if not made.closed:
        made.close()


def test_a_bad_action_leaves_its_environment_unstepped_and_is_raised_by_check(envs):
    before = host(envs.reset(seed=0)[0])
    actions = np.zeros(40, np.int64)
    actions[[3, 37]] = 2, -1
    observations, rewards, terminated, _, _ = host(envs.step(put(actions)))
    assert np.array_equal(observations[[3, 37]], before[[3, 37]])
    assert (observations != before).any(axis=1).sum() == 38
    assert rewards[[3, 37]].tolist() == [0, 0] and rewards.sum() == 38 and not terminated.any()
    assert envs.stats["steps"] == 38
    with pytest.raises(ValueError, match="CartPole-v1: environments 3, 37 were not stepped, because an ac"):
        envs.check()
    envs.check()  # it was raised
    envs.step(put(np.ones(40, np.int64)))
    envs.check()


def test_reset_and_close_raise_what_was_not_checked(envs):
    envs.reset(seed=0)
    envs.step(put(np.full(40, 9)))
    with pytest.raises(ValueError, match=r"40 environments \(0, 1, 2, 3, 4, 5, 6, 7, \.\.\.\) were"):
        envs.reset(seed=0)
    envs.reset(seed=0)
    envs.step(put(np.full(40, 9)))
    with pytest.raises(ValueError, match="an action was not in"):
        envs.close()
    assert envs.closed
    envs.close()  # it was raised
    with pytest.raises(ClosedError):
        envs.step(put(np.zeros(40, np.int64)))


def test_without_the_check_actions_are_the_plug_ins_affair():
    with make("CartPole-v1", 4, check=()) as envs:
        envs.reset(seed=0)
        envs.step(put(np.full(4, 7)))
        envs.check()


def test_an_environment_that_is_over_is_not_stepped_in_disabled_mode():
    with make(PLAIN, 4, length=2, autoreset_mode="DISABLED") as envs:
        envs.reset(seed=0)
        for _ in range(2):
            last = host(envs.step(put(np.zeros(4, np.int64)))[0])
        envs.reset(options={"reset_mask": put(np.array([True, True, False, True]))})
        observations = host(envs.step(put(np.zeros(4, np.int64)))[0])
        assert observations[:, 0].tolist() == [1, 1, 2, 1]
        assert np.array_equal(
            observations[2], last[2]
        )  # an environment that is not stepped shows its last row
        with pytest.raises(ResetNeeded, match="environment 2 was not stepped, because the episode was over"):
            envs.check()


def test_a_nan_is_found_under_check_nan():
    with make(PLAIN, 3, check="nan") as envs:
        envs.reset(seed=0)
        envs.step(put(np.array([0, 98, 0])))
        with pytest.raises(ValueError, match="environment 1 had a NaN in an observation or a reward"):
            envs.check()
        envs.step(put(np.array([99, 0, 0])))
        with pytest.raises(ValueError, match="environment 0 had a NaN"):
            envs.check()
        envs.reset(seed=0)


def test_an_unstepped_environment_shows_its_last_observation_though_the_plug_in_cannot_write_it_again():
    with make(PLAIN, 300) as envs:
        envs.reset(seed=0)
        before = host(envs.step(put(np.full(300, 7)))[0])
        actions = np.full(300, 8)
        actions[[3, 299]] = 100
        after = host(envs.step(put(actions))[0])
        assert np.array_equal(after[[3, 299]], before[[3, 299]])
        assert (np.delete(after, [3, 299], 0)[:, 1] == 8).all()
        with pytest.raises(ValueError, match="environments 3, 299 were not stepped"):
            envs.check()
        mask = np.arange(300) % 2 == 0
        rows = host(envs.reset(options={"reset_mask": put(mask)})[0])
        assert np.array_equal(rows[~mask], after[~mask]) and (rows[mask][:, 1] == -1).all()


def changed(tmp_path, old, new):
    source = tmp_path / "plain.c"
    text = PLAIN.read_text()
    assert old in text
    source.write_text(text.replace(old, new, 1))
    return source


@pytest.mark.skipif(ON_GPU, reason="machine: the kernels of changed sources are not built there")
def test_rewards_that_a_reset_writes_are_ignored(tmp_path):
    source = changed(tmp_path, "self->count = 0;", "self->count = 0; envs->rewards[env] = 7;")
    with make(source, 3, length=2) as envs:
        envs.reset(seed=0)
        rewards = [host(envs.step(put(np.zeros(3, np.int64)))[1]).tolist() for _ in range(3)]
    assert rewards == [[1, 1, 1], [2, 2, 2], [0, 0, 0]]


@pytest.mark.skipif(ON_GPU, reason="machine: the kernels of changed sources are not built there")
def test_a_plug_in_may_use_any_names_and_lie_in_any_folder(tmp_path):
    folder = tmp_path / "é ?"
    folder.mkdir()
    names = "static uint32_t hash(uint32_t x) { return x; }\nenum { POOL = 3 };\ntypedef struct Plain {"
    source = changed(folder, "typedef struct Plain {", names)
    with make(source, 2) as envs:
        envs.reset(seed=0)
        assert host(envs.step(put(np.zeros(2, np.int64)))[1]).tolist() == [1, 1]


@pytest.mark.skipif(ON_GPU, reason="machine: the kernels of changed sources are not built there")
@pytest.mark.parametrize("include", ["#include <table.h>", '#define TABLE "table.h"\n#include TABLE'])
def test_a_header_beside_the_source_is_part_of_the_key_however_it_is_included(tmp_path, include):
    source = changed(tmp_path, "typedef struct Plain {", f"{include}\ntypedef struct Plain {{")
    source.write_text(source.read_text().replace(": self->count;", ": BONUS + self->count;"))
    for bonus in (10, 20):
        (tmp_path / "table.h").write_text(f"#define BONUS {bonus}\n")
        with make(source, 2) as envs:
            envs.reset(seed=0)
            assert host(envs.step(put(np.zeros(2, np.int64)))[1]).tolist() == [bonus + 1] * 2


def test_a_nan_action_is_refused_under_check_nan_alone():
    with make("Pendulum-v1", 3, check="nan") as envs:
        before = host(envs.reset(seed=0)[0])
        actions = np.zeros((3, 1), np.float32)
        actions[1] = np.nan
        after = host(envs.step(put(actions))[0])
        assert np.array_equal(after[1], before[1]) and not np.array_equal(after[0], before[0])
        with pytest.raises(ValueError, match="environment 1 was not stepped, because an action"):
            envs.check()


def test_what_a_user_adds_to_an_info_stays_there():
    with make("CartPole-v1", 4, buffers="live", episode_stats=True) as envs:
        envs.reset(seed=0)
        envs.step(put(np.zeros(4, np.int64)))[4]["mine"] = 1
        info = envs.step(put(np.zeros(4, np.int64)))[4]
        assert "mine" not in info and envs.shares_buffer(info["episode"]["r"])


def test_a_refused_seed_changes_nothing():
    first, second = make("CartPole-v1", 3), make("CartPole-v1", 3)
    for envs in (first, second):
        with pytest.raises(ValueError, match="must fit 64 bits"):
            envs.reset(seed=2**64)
    assert not np.array_equal(host(first.reset()[0]), host(second.reset()[0]))
    first.close()
    second.close()


def test_results_go_with_the_last_reference_and_need_no_collector():
    gc.collect()
    gc.disable()
    try:
        envs = make("CartPole-v1", 4)
        envs.reset(seed=0)
        envs.step(put(np.zeros(4, np.int64)))
        lender = weakref.ref(envs._lender)
        envs.close()
        del envs
        assert lender() is None
    finally:
        gc.enable()


def test_calls_that_the_host_can_judge_are_refused_before_the_launch(envs):
    with pytest.raises(ResetNeeded, match="call reset"):
        envs.step(put(np.zeros(40, np.int64)))
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=r"actions: expected shape \(40,\), found \(39,\); nothing was"):
        envs.step(put(np.zeros(39, np.int64)))
    with pytest.raises(TypeError, match=r"actions: expected dtype (torch\.)?int64, found (torch\.)?float64"):
        envs.step(put(np.zeros(40)))
    with pytest.raises(TypeError, match="step takes the actions, found None"):
        envs.step(None)
    with pytest.raises(TypeError, match=r"reset_mask.*expected dtype"):
        envs.reset(options={"reset_mask": put(np.zeros(40, np.int64))})
    with pytest.raises(ValueError, match="takes only the option 'reset_mask', got"):
        envs.reset(options={"speed": 3})
    assert envs.stats["steps"] == 0
    if ON_GPU:
        with pytest.raises(TypeError, match="expected a tensor on cuda:0, found ndarray"):
            envs.step(np.zeros(40, np.int64))
        import torch

        with pytest.raises(ValueError, match="expected a tensor on cuda:0, found one on cpu"):
            envs.step(torch.zeros(40, dtype=torch.int64))


def test_dict_actions_have_their_keys():
    with make(PLUGINS / "echo.c", 3) as envs:
        envs.reset(seed=0)
        with pytest.raises(ValueError, match=r"expected actions with the keys \['move', .*found the keys"):
            envs.step({"move": put(np.zeros(3, np.int64))})


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"batch_size": 2}, ValueError, "batch_size is for the CPU"),
        ({"backend": "process"}, TypeError, 'device="cuda" is a backend of its own'),
        ({"num_threads": 2}, TypeError, "num_threads is for the CPU"),
        ({"device": "tpu"}, ValueError, 'device must be "cpu", "cuda", "cuda:N" or "emulated", got'),
        ({"device": "cuda:x"}, ValueError, "device must be"),
        ({"device": "emulated", "array": "cupy"}, ValueError, "array must be "),
        ({"device": "cpu", "array": "torch"}, TypeError, "array is for results on a GPU"),
        ({"num_workers": 2}, TypeError, "num_workers is for worker processes"),
    ],
)
def test_arguments_that_do_not_fit_a_device_are_refused(arguments, kind, message):
    with pytest.raises(kind, match=message):
        make("CartPole-v1", 4, **arguments)


def test_only_environments_in_c_with_their_source_run_on_a_device(tmp_path):
    with pytest.raises(PluginError, match="is not an environment in C, and only those run on a GPU"):
        make("FrozenLake-v1", 2)
    from shoal.native.build import build

    library = build(PLUGINS / "echo.c", output=tmp_path / "echo.so")
    with pytest.raises(BuildError, match="a GPU needs the C source"):
        make(library, 2)


@pytest.mark.skipif(ON_GPU, reason="machine: there is a GPU")
def test_without_a_gpu_the_error_says_what_is_missing():
    with pytest.raises(ShoalError, match=r'device="cuda" needs an NVIDIA GPU and its driver|found no GPU'):
        shoal.make_vec("CartPole-v1", 2, device="cuda")


def test_too_little_memory_is_said_before_anything_is_allocated(monkeypatch):
    from shoal.cuda import arrays, device

    kind = device.Gpu if ON_GPU else device.Emulated
    monkeypatch.setattr(kind, "free_memory", lambda self: 1000)
    for owner in (arrays._Torch, arrays._CuPy):  # they keep memory of tests before this one
        monkeypatch.setattr(owner, "cached_bytes", lambda self: 0)
    with pytest.raises(MemoryError, match=r"40 environments of CartPole-v1 need [\d,]+ bytes on .*1,000 are"):
        make("CartPole-v1", 40)


def test_results_that_are_held_never_change_and_live_ones_do(envs):
    held = [envs.reset(seed=0)[0]]
    held += [envs.step(put(np.zeros(40, np.int64)))[0] for _ in range(5)]
    copies = host(held)
    for _ in range(5):
        envs.step(put(np.ones(40, np.int64)))
    assert all(np.array_equal(one, other) for one, other in zip(host(held), copies, strict=True))
    assert not envs.shares_buffer(held[0])
    with make("CartPole-v1", 40, buffers="live") as live:
        first = live.reset(seed=0)[0]
        before = host(first)
        second = live.step(put(np.zeros(40, np.int64)))[0]
        assert live.shares_buffer(first) and not np.array_equal(host(first), before)
        assert np.array_equal(host(first), host(second))


def test_the_action_buffer_is_on_the_device(envs):
    with make("CartPole-v1", 40) as other:
        envs.reset(seed=0)
        other.reset(seed=0)
        envs.actions[:] = put(np.ones(40, np.int64))
        found, expected = host(envs.step()[0]), host(other.step(put(np.ones(40, np.int64)))[0])
        assert np.array_equal(found, expected)


def test_a_whole_episode_on_a_device_is_recorded():
    with make("CartPole-v1", 4, session="recorded-on-a-device") as envs:
        envs.reset(seed=0)
        with shoal.attach("recorded-on-a-device") as session:
            assert session.ask_for_recording(2)
            for _ in range(5000):
                envs.step(put(np.zeros(4, np.int64)))
                if (found := session.take_recording()) is not None:
                    break
    assert found is not None and found.env_id == 2 and found.episode_return == found.length > 5
    assert found.snapshots[0].tick == 0 and found.snapshots[-1].tick == found.length


def test_a_session_shows_a_watched_environment_and_counts_its_steps():
    with make("Snake-v0", 6, session="on-a-device") as envs, shoal.attach("on-a-device") as session:
        envs.reset(seed=0)
        session.watch([4])
        while session.latest(4) is None:
            envs.step(put(np.zeros(envs.num_envs, np.int64)))
        snapshot = session.snapshot(4)
        assert snapshot.env_id == 4 and snapshot.tick > 0 and "board" in snapshot.world
        assert sorted(snapshot.step) == ["action", "observation", "reward", "terminated", "truncated"]
        while session.counters()["steps"] == 0:
            envs.step(put(np.zeros(envs.num_envs, np.int64)))


def test_an_environment_given_by_its_path_is_compiled_again_when_it_changes(tmp_path):
    source = tmp_path / "plain.c"
    source.write_text(PLAIN.read_text())
    with make(source, 2, length=50) as envs:
        envs.reset(seed=0)
        assert host(envs.step(put(np.zeros(2, np.int64)))[1]).tolist() == [1, 1]
    if DEVICE != "emulated":
        return
    changed = PLAIN.read_text().replace(": self->count;", ": 10 + self->count;", 1)
    source.write_text(changed)
    with make(source, 2, length=50) as envs:
        envs.reset(seed=0)
        assert host(envs.step(put(np.zeros(2, np.int64)))[1]).tolist() == [11, 11]
