"""One suite for both backends of C environments: threads of this process, and worker processes.

The same seed gives the same bytes for any number of threads and of workers, and the rest of the interface
gives the same arrays, infos, statistics and refusals.
"""

from pathlib import Path

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

import shoal
from shoal.errors import ClosedError
from shoal.native.build import build
from tests.native.conftest import REAL
from tests.vector.latched import occasional
from tests.vector.test_process_envs import assert_same, logged

BACKENDS = {
    "native": {"num_threads": 1},
    "native, 2 threads": {"num_threads": 2},
    "1 worker": {"backend": "process", "num_workers": 1},
    "2 workers": {"backend": "process", "num_workers": 2},
    "3 workers": {"backend": "process", "num_workers": 3},
    "emulated": {"device": "emulated"},
}
both = pytest.mark.parametrize("backend", ["native", "2 workers"])
needs_compiler = pytest.mark.skipif(REAL is None, reason="no C compiler: install gcc or clang")
PLUGINS = Path(__file__).parents[1] / "native" / "plugins"


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    """Compiles a plug-in of the native tests, once."""
    built = {}

    def get(name):
        if name not in built:
            built[name] = build(PLUGINS / f"{name}.c", output=tmp_path_factory.mktemp(name) / f"{name}.so")
        return built[name]

    return get


def make(backend, env="CartPole-v1", num_envs=6, **kwargs):
    if backend == "emulated" and str(env).endswith(".so"):  # a device needs the source
        env = PLUGINS / f"{Path(env).stem}.c"
    return shoal.make_vec(env, num_envs, **{**BACKENDS[backend], **kwargs})


def history(envs, steps, seed, mode=AutoresetMode.NEXT_STEP):
    """Everything a reset and some steps return; in DISABLED mode finished environments are reset."""
    envs.action_space.seed(seed)
    results = [envs.reset(seed=seed)]
    for _ in range(steps):
        *arrays, infos = envs.step(envs.action_space.sample())
        results.append((*arrays, occasional(infos)))
        over = results[-1][2] | results[-1][3]
        if mode == AutoresetMode.DISABLED and over.any():
            whole = over.reshape(envs.num_worlds, -1).all(axis=1)  # an environment of several agents
            if whole.any():
                mask = np.repeat(whole, envs.num_envs // envs.num_worlds)
                results.append(envs.reset(options={"reset_mask": mask}))
    return results


@pytest.mark.parametrize(
    ("env", "num_envs", "mode"),
    [
        *(("CartPole-v1", 70, mode) for mode in AutoresetMode),
        *(("Snake-v0", 3, mode) for mode in AutoresetMode),
        ("Pendulum-v1", 5, AutoresetMode.SAME_STEP),
        ("Squared-v0", 7, AutoresetMode.NEXT_STEP),
        ("Pixels-v0", 3, AutoresetMode.DISABLED),
    ],
    ids=str,
)
def test_the_same_seed_gives_the_same_bytes_however_it_is_stepped(env, num_envs, mode):
    options = {"autoreset_mode": mode, "episode_stats": True, "max_episode_steps": 12}
    expected = None
    for backend in BACKENDS:
        with make(backend, env, num_envs, **options) as envs:
            found = history(envs, 40, 3, mode)
            stats = envs.stats
        if expected is None:
            expected, counted = found, stats
            assert any("episode" in result[-1] for result in expected)
        assert_same(found, expected)
        for name in ("steps", "episodes", "mean_return", "mean_length", "copies"):
            assert stats[name] == counted[name], name


@pytest.mark.parametrize(
    ("env", "num_envs"), [("CartPole-v1", 5001), ("Squared-v0", 1500), ("Snake-v0", 90), ("Reef-v0", 40)]
)
def test_any_number_of_threads_gives_the_same_bytes(env, num_envs):
    """So many environments that the pool is tried; which thread steps which of them differs in every run."""
    expected = None
    for num_threads in (1, 2, 3, 16):
        with shoal.make_vec(env, num_envs, num_threads=num_threads, session=None) as envs:
            results = history(envs, 40, seed=3)
        if expected is None:
            expected = results
        for one, other in zip(results, expected, strict=True):
            assert_same(one, other)


@needs_compiler
@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
def test_dict_observations_and_actions_are_the_same(plugin, mode):
    histories = []
    for backend in BACKENDS:
        with make(backend, plugin("echo"), 5, autoreset_mode=mode) as envs:
            histories.append(history(envs, 15, 0, mode))
    assert list(histories[0][0][0]) == ["move", "gears", "keys", "push", "pixels", "brake"]
    for found in histories[1:]:
        assert_same(found, histories[0])


@needs_compiler
@pytest.mark.parametrize(
    "mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name
)
def test_rows_are_agents_on_both_backends(plugin, mode):
    histories = []
    for backend in BACKENDS:
        with make(backend, plugin("team"), 3, autoreset_mode=mode, episode_stats=True) as envs:
            assert (envs.num_envs, envs.num_worlds, envs.agents_per_env) == (9, 3, 3)
            assert envs.action_space.shape == (9,)
            histories.append(history(envs, 40, 1))
    for found in histories[1:]:
        assert_same(found, histories[0])


@both
def test_the_attributes_are_those_of_the_native_backend(backend):
    with make(backend, "Snake-v0", 2) as envs, make("native", "Snake-v0", 2) as native:
        for name in (
            "single_observation_space", "single_action_space", "observation_space", "action_space",
            "num_envs", "num_worlds", "agents_per_env", "options", "autoreset_mode", "render_mode", "buffers",
            "closed",
        ):  # fmt: skip
            assert getattr(envs, name) == getattr(native, name), name
        assert envs.spec.entry_point == native.spec.entry_point  # what else it records are the arguments
        for id in ("shoal.checkpoint/1", "shoal.render/1", "none/1"):
            assert envs.has_extension(id) == native.has_extension(id)


@both
def test_seeds_are_an_int_a_list_or_none(backend):
    with make(backend, num_envs=3) as envs, make("native", num_envs=3) as native:
        for seed in (5, [5, 9, 0], [2**40, 1, 2], None, [None, 3, None], 2**70 + 3, np.int64(4)):
            assert_same(envs.reset(seed=seed), native.reset(seed=seed))
            assert_same(envs.step([0, 1, 0]), native.step([0, 1, 0]))
        for bad in (-1, [1, 2], ["a", 1, 2], 1.5):
            with pytest.raises((ValueError, TypeError)):
                envs.reset(seed=bad)
    with make(backend, num_envs=3) as envs, make(backend, num_envs=3) as other:
        assert not np.array_equal(envs.reset()[0], other.reset()[0])


@both
@pytest.mark.parametrize("env", ["CartPole-v1", "Snake-v0"])
def test_a_masked_reset_starts_only_those_environments_again(backend, env):
    with make(backend, env, 4) as envs, make("native", env, 4) as native:
        mask = np.zeros(envs.num_envs, bool)
        mask[[0, -1]] = True  # of a world of several agents, one is enough
        actions = np.ones(envs.num_envs, np.int64)
        for worlds in (envs, native):
            worlds.reset(seed=0)
            kept = worlds.step(actions)
        agents = envs.num_envs // 4
        found = envs.reset(seed=[7] * 4, options={"reset_mask": mask})
        assert_same(found, native.reset(seed=[7] * 4, options={"reset_mask": mask}))
        assert_same(found[0][agents:-agents], kept[0][agents:-agents])
        assert_same(envs.step(actions), native.step(actions))
        assert_same(envs.reset(), native.reset())  # the seeds of the others were not used
        for bad in (mask.tolist(), mask[1:], mask.astype(int), mask & False):
            with pytest.raises((TypeError, ValueError), match="reset_mask"):
                envs.reset(options={"reset_mask": bad})
        with pytest.raises(ValueError, match=r"got \['low'\]"):
            envs.reset(options={"low": 3})


@both
@pytest.mark.parametrize("env", ["CartPole-v1", "Snake-v0", "echo"])
def test_rollout_holds_what_step_would_return(backend, env, plugin):
    if env == "echo" and REAL is None:
        pytest.skip("no C compiler: install gcc or clang")
    env = plugin(env) if env == "echo" else env
    with make(backend, env, 5) as envs, make("native", env, 5) as native:
        rollout = envs.rollout(9)
        envs.action_space.seed(0)
        rollout.start(envs.reset(seed=2)[0])
        native.reset(seed=2)
        for t in range(9):
            actions = envs.action_space.sample()
            rollout.step(actions)
            observations, rewards, terminated, truncated, _ = native.step(actions)
            assert_same(at(rollout.observations, t + 1), observations)
            assert_same(at(rollout.actions, t), actions)
            assert_same((rollout.rewards[t], rollout.terminated[t]), (rewards, terminated))
            assert_same(rollout.truncated[t], truncated)
        with pytest.raises(IndexError, match="full after 9 steps"):
            rollout.step(actions)
        assert_same(envs.step(actions), native.step(actions))


@both
@pytest.mark.parametrize("moved", ["reset", "some reset", "step", "restore"])
def test_rollout_raises_if_environments_moved_elsewhere(backend, moved):
    actions = np.zeros(6, np.int64)
    ways = {
        "reset": lambda: envs.reset(),
        "some reset": lambda: envs.reset(options={"reset_mask": np.arange(6) == 2}),
        "step": lambda: envs.step(actions),
        "restore": lambda: envs.restore_env(1, envs.save_env(0)),
    }
    with make(backend) as envs:
        rollout = envs.rollout(4)
        for before in range(3):  # right after start as well
            rollout.start(envs.reset(seed=0)[0])
            for _ in range(before):
                rollout.step(actions)
            seen = ways[moved]()
            kept = rollout.observations.copy(), rollout.actions.copy(), rollout.rewards.copy()
            for _ in range(2):  # the refusal changed nothing
                with pytest.raises(shoal.ShoalError, match=rf"step {before} of this rollout.*Call start"):
                    rollout.step(actions)
            assert_same((rollout.observations, rollout.actions, rollout.rewards), kept)
            rollout.start(rollout.observations[before] if seen is None else seen[0])
            rollout.step(actions)
            assert rollout.t == 1


@both
def test_refused_actions_leave_a_rollout_where_it_was(backend):
    with make(backend, check="actions") as envs:
        rollout = envs.rollout(4)
        rollout.start(envs.reset(seed=0)[0])
        rollout.step(np.zeros(6, np.int64))
        with pytest.raises(ValueError):
            rollout.step(np.full(6, 7))
        rollout.step(np.zeros(6, np.int64))
        assert rollout.t == 2


@both
def test_the_resets_of_mode_disabled_are_part_of_a_rollout(backend):
    with make(backend, autoreset_mode=AutoresetMode.DISABLED) as envs:
        rollout = envs.rollout(60)
        rollout.start(envs.reset(seed=0)[0])
        resets = 0
        for t in range(60):
            rollout.step(np.zeros(6, np.int64))
            over = rollout.terminated[t] | rollout.truncated[t]
            if over.any():
                rollout.observations[t + 1] = envs.reset(options={"reset_mask": over})[0]
                resets += 1
        assert resets > 3 and rollout.t == 60


@both
@pytest.mark.parametrize("env", ["CartPole-v1", "Snake-v0"])
@pytest.mark.parametrize("which", ["all", "all by mask", "one"])
def test_rollout_in_mode_disabled_allows_resets_of_ended_environments_only(backend, env, which):
    with make(backend, env, autoreset_mode=AutoresetMode.DISABLED, max_episode_steps=3) as envs:
        rollout, actions = envs.rollout(9), np.zeros(envs.num_envs, np.int64)
        mask = np.arange(envs.num_envs) < (envs.agents_per_env if which == "one" else envs.num_envs)
        options = None if which == "all" else {"reset_mask": mask}
        rollout.start(envs.reset(seed=0)[0])
        rollout.step(actions)
        envs.reset(options=options)  # nobody has ended
        with pytest.raises(shoal.ShoalError, match="no longer at step 1"):
            rollout.step(actions)
        rollout.start(envs.reset()[0])
        for _ in range(3):
            rollout.step(actions)
        assert (rollout.terminated[2] | rollout.truncated[2]).all()  # the time limit of all of them
        rollout.observations[3] = envs.reset(options=options)[0]
        if which == "one":
            rollout.observations[3] = envs.reset(options={"reset_mask": ~mask})[0]
        rollout.step(actions)
        envs.reset(options=options)
        with pytest.raises(shoal.ShoalError, match="no longer at step 4"):
            rollout.step(actions)


@both
def test_start_that_raises_changes_nothing(backend):
    envs = make(backend)
    rollout = envs.rollout(3)
    rollout.start(envs.reset(seed=0)[0])
    rollout.step(np.zeros(6, np.int64))
    kept = rollout.observations.copy()
    envs.close()
    with pytest.raises(ClosedError):
        rollout.start(kept[1])
    assert_same(rollout.observations, kept)
    assert rollout.t == 1


def at(blocks, t):
    return {key: value[t] for key, value in blocks.items()} if isinstance(blocks, dict) else blocks[t]


@both
def test_leased_results_never_change_and_live_results_do(backend):
    actions = np.zeros(6, np.int64)
    for buffers in ("leased", "copy", "live"):
        with make(backend, buffers=buffers, max_slots=3) as envs, make("native") as native:
            envs.reset(seed=0)
            native.reset(seed=0)
            kept = [envs.step(actions)[:4] for _ in range(8)]
            expected = [native.step(actions)[:4] for _ in range(8)]
            assert_same(kept[-1], expected[-1])
            assert all(envs.shares_buffer(one[0]) == (buffers == "live") for one in kept)
            if buffers == "live":
                assert_same(kept, kept[-1:] * 8)
            else:
                assert_same(kept, expected)
            assert buffers == "copy" or (envs.stats["copies"] > 0) == (buffers == "leased")


@both
def test_actions_in_the_buffer_are_used_and_checked(backend):
    with make(backend) as envs, make("native") as native:
        envs.reset(seed=0)
        native.reset(seed=0)
        for _ in range(5):
            envs.actions[:] = native.action_space.sample()
            assert_same(envs.step(), native.step(envs.actions.copy()))
        envs.actions[2] = 7
        with pytest.raises(ValueError, match="action 7 of .* 2 is not in"):
            envs.step()
        envs.actions[2] = 1
        assert_same(envs.step(), native.step(envs.actions.copy()))


@both
@pytest.mark.parametrize("check", ["actions", ()])
def test_actions_that_are_passed_and_those_in_the_buffer_can_alternate(backend, check):
    with make(backend, check=check) as envs, make("native") as native:
        envs.reset(seed=0)
        native.reset(seed=0)
        for turn in range(30):
            actions = native.action_space.sample()
            if turn % 3 == 0:
                envs.actions[:] = actions
                assert_same(envs.step(), native.step(actions))
            else:
                given = [actions, actions.astype(np.int32), actions.tolist()][turn % 3 if turn > 9 else 0]
                assert_same(envs.step(given), native.step(actions))


@needs_compiler
@both
def test_dict_actions_can_be_written_into_the_buffers(backend, plugin):
    with make(backend, plugin("echo"), 5) as envs:
        envs.reset(seed=0)
        actions = envs.action_space.sample()
        for key, value in actions.items():
            envs.actions[key][...] = value
        assert_same(envs.step()[0], actions)
        envs.actions["keys"][3, 0] = 7
        with pytest.raises(ValueError, match="action .*keys.* of row 3 is not in"):
            envs.step()


@needs_compiler
@both
def test_dict_actions_are_converted_and_rejected_alike_on_both_backends(backend, plugin):
    with make(backend, plugin("echo"), 5) as envs:
        envs.reset(seed=0)
        actions = envs.action_space.sample()
        actions["push"][:] = [[-np.inf, np.inf]]  # a Box is the environment's to clip
        other = dict(actions, push=actions["push"].astype(np.float64), move=tuple(actions["move"].tolist()))
        other.update(keys=actions["keys"].astype(bool), gears=actions["gears"].astype(">i8"), unknown=None)
        assert_same(envs.step(other)[0], actions)
        for key, value, kind, message in (
            (
                "move",
                np.zeros(4, np.int64),
                ValueError,
                r"actions\['move'\]: expected shape \(5,\), found \(4,\)",
            ),
            ("keys", np.zeros((5, 3)), TypeError, r"actions\['keys'\]: expected dtype int8, found float64"),
            (
                "pixels",
                np.full((5, 4, 5, 3), 256),
                ValueError,
                "a value of the int64 array does not fit dtype uint8",
            ),
            ("move", np.array([0, 0, 0, 4, 0]), ValueError, "action 'move' 4 of row 3 is not in Discrete"),
            ("push", np.full((5, 2), np.nan), ValueError, "of row 0 is not in Box"),
        ):
            with pytest.raises(kind, match=message):
                envs.step({**actions, key: value})
        with pytest.raises(ValueError, match="expected actions with the keys .*, found the keys"):
            envs.step({"move": actions["move"]})
        with pytest.raises(ValueError, match="expected actions with the keys"):
            envs.step(np.zeros(5))
        assert_same(envs.step(actions)[0], actions)


BAD_ACTIONS = {
    "too short": (np.zeros(3, np.int64), ValueError, r"expected shape \(4,\), found \(3,\)"),
    "scalar": (1, ValueError, r"expected shape \(4,\), found \(\)"),
    "None": (None, ValueError, r"expected shape \(4,\), found \(\)"),
    "floats": (np.zeros(4), TypeError, "expected dtype int64, found float64"),
    "text": (["a", "b", "c", "d"], TypeError, "expected dtype int64"),
    "ragged": ([[0], [0, 1], 0, 0], ValueError, "expected an array"),
    "too large": ([0, 0, 2, 0], ValueError, "action 2 of row 2 is not in Discrete.2."),
    "beyond int64": (np.array([0, 0, 0, 2**63], np.uint64), ValueError, "does not fit dtype int64"),
}


@both
def test_bad_actions_raise_the_same_error_and_step_nothing(backend):
    with make(backend, num_envs=4) as envs, make("native", num_envs=4) as native:
        envs.reset(seed=0)
        native.reset(seed=0)
        for case, (actions, kind, message) in BAD_ACTIONS.items():
            with pytest.raises(kind, match=message):
                envs.step(actions)
                pytest.fail(case)
        for good in ([0, 1, 0, 1], np.array([0, 1, 1, 0], np.int8), np.array([True] * 4), (1, 1, 0, 0)):
            assert_same(envs.step(good), native.step(good))


@both
def test_stepping_before_a_reset_and_a_finished_environment_need_a_reset(backend):
    actions = np.zeros(4, np.int64)
    with make(backend, num_envs=4, autoreset_mode="DISABLED", max_episode_steps=2) as envs:
        with logged(), pytest.raises(ResetNeeded, match="call reset"):
            envs.step(actions)
        envs.reset(seed=0)
        envs.step(actions)
        assert envs.step(actions)[3].all()
        with logged(), pytest.raises(ResetNeeded, match="reset_mask"):
            envs.step(actions)
        envs.reset(options={"reset_mask": np.array([True] * 4)})
        envs.step(actions)


@pytest.mark.parametrize(
    ("source", "target"), [("native", "2 workers"), ("2 workers", "native"), ("2 workers",) * 2]
)
def test_checkpoint_of_one_backend_continues_in_the_other(source, target):
    with make(source, max_episode_steps=20) as envs, make(target, max_episode_steps=20) as other:
        history(envs, 11, 1)
        other.reset(seed=9)
        saved = envs.save_env(4)
        assert saved == envs.save_env(4)
        other.restore_env(1, saved)
        rng = np.random.default_rng(0)
        for _ in range(60):  # through several episodes: generator, limit and statistics too
            actions = rng.integers(0, 2, 6)
            one = envs.step(actions)
            actions[1] = actions[4]
            two = other.step(actions)
            assert_same([part[4:5] for part in one[:4]], [part[1:2] for part in two[:4]])


@both
def test_bad_checkpoints_and_ids_are_refused(backend):
    with make(backend, num_envs=4) as envs:
        envs.reset(seed=0)
        saved = envs.save_env(3)
        with pytest.raises(ValueError, match="not a checkpoint of this environment"):
            envs.restore_env(0, saved[:-1])
        with pytest.raises(TypeError, match="a checkpoint must be bytes, got str"):
            envs.restore_env(0, "x")
        for call in (envs.save_env, lambda i: envs.restore_env(i, saved)):
            for bad in (-1, 4, 10**9):
                with pytest.raises(IndexError, match="out of range for 4 environments"):
                    call(bad)
            with pytest.raises(TypeError, match="must be an int, got float"):
                call(1.0)
        assert envs.save_env(3) == saved
    with make(backend, "Squared-v0", 2) as envs:
        envs.reset(seed=0)
        assert envs.save_env(1) == envs.save_env(1)


@both
def test_an_environment_restored_before_any_reset_steps(backend):
    with make("native", num_envs=1) as envs:
        envs.reset(seed=0)
        saved = envs.save_env(0)
        expected = envs.step([1])
    with make(backend, num_envs=3) as envs:
        envs.restore_env(2, saved)
        found = envs.step([0, 0, 1])
        assert_same([part[2:] for part in found[:4]], [part[:] for part in expected[:4]])


@both
def test_a_picture_of_one_environment_is_the_same(backend):
    with make(backend, "Snake-v0", 3) as envs, make("native", "Snake-v0", 3) as native:
        assert_same(envs.reset(seed=0), native.reset(seed=0))
        assert_same(envs.render_env(2), native.render_env(2))


@both
def test_pictures_of_all_environments_are_the_same(backend):
    with make(backend, render_mode="rgb_array") as envs, make("native", render_mode="rgb_array") as native:
        assert (envs.render_mode, envs.metadata["render_modes"]) == ("rgb_array", ["rgb_array"])
        assert envs.metadata["render_fps"] == native.metadata["render_fps"] == 50
        envs.reset(seed=0), native.reset(seed=0)
        found, expected = envs.render(), native.render()
        assert isinstance(found, tuple) and len(found) == envs.num_envs
        for one, other in zip(found, expected, strict=True):
            assert one.shape == (400, 600, 3) and one.flags.writeable
            assert_same(one, other)
        assert (found[0] != found[1]).any()
