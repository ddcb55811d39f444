"""PufferLib's three contracts, by small environments of our own, and every trap that such ones set."""

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

import shoal
from shoal.compat.puffer import INCLUDE, build_puffer, find_source, prepare, writable_globals
from shoal.errors import BuildError, PluginError

OCEAN = Path(__file__).parent / "ocean"


@pytest.fixture
def make():
    made = []

    def maker(name, num_envs=2, **options):
        envs = shoal.make_vec(f"puffer:{OCEAN / name}", num_envs, session=None, **options)
        made.append(envs)
        return envs

    yield maker
    for envs in made:
        envs.close()


def trace(envs, seed, steps=40):
    """All that some steps bring, with actions that follow from the seed."""
    rng = np.random.default_rng(seed)
    observation, _ = envs.reset(seed=seed)
    out = [np.array(observation)]
    for _ in range(steps):
        result = envs.step(rng.integers(0, 2, envs.num_envs))
        out += [np.array(part) for part in result[:4]]
    return [part.tobytes() for part in out]


# ---- Contract 3.0


def test_spaces_and_options_come_from_the_python_file_and_the_ini(make):
    envs = make("walk")
    assert envs.single_observation_space == Box(0, 1, (9,), np.uint8)  # size = 9 is in the .ini
    assert envs.single_action_space == Discrete(2)
    assert make("walk", size=5).single_observation_space.shape == (5,)


def test_a_cell_that_was_written_before_is_still_there(make):
    envs = make("walk", 1)
    observation, _ = envs.reset(seed=3)
    for _ in range(30):  # a step changes two cells; the others are from before
        assert observation.sum() == 1
        observation = envs.step(np.ones(1, int))[0]


def test_results_that_are_kept_do_not_change(make):
    envs = make("walk", 1)
    kept = [envs.reset(seed=3)[0]]
    copies = [kept[0].copy()]
    for _ in range(20):
        kept.append(envs.step(np.zeros(1, int))[0])
        copies.append(kept[-1].copy())
    assert all((one == copy).all() for one, copy in zip(kept, copies, strict=True))


def test_the_same_seed_gives_the_same_bytes_whatever_ran_before(make):
    envs = make("walk", 3)
    first = trace(envs, 5)
    trace(envs, 6)
    assert trace(envs, 5) == first != trace(envs, 6)
    assert trace(make("walk", 3), 5) == first


def test_worker_processes_give_the_same_bytes(make):
    assert trace(make("walk", 3, backend="process", num_workers=2), 5) == trace(make("walk", 3), 5)


def test_environments_of_one_vector_differ(make):
    envs = make("walk", 64, size=40)
    observation, _ = envs.reset(seed=1)
    assert len({row.tobytes() for row in observation}) > 8


def test_next_step_shows_the_new_episode_twice(make):
    envs = make("walk", 1)
    envs.reset(seed=2)
    while True:
        observation, reward, ended, truncated, _ = envs.step(np.ones(1, int))
        if ended[0]:
            break
    assert reward[0] == 1.5 and not truncated[0]
    assert observation[0, 8] == 0 and observation.sum() == 1  # no final observation: it has reset itself
    again, reward, ended, _, _ = envs.step(np.zeros(1, int))
    assert (again == observation).all() and reward[0] == 0 and not ended[0]


def test_one_that_resets_a_step_later_sees_what_it_said(make):
    envs = make("walk", 1, trap=11)
    envs.reset(seed=2)
    ends = [envs.step(np.ones(1, int))[2][0] for _ in range(60)]
    assert 3 < sum(ends) < 20 and not any(a and b for a, b in zip(ends, ends[1:], strict=False))


def test_same_step_has_the_new_observation_as_final(make):
    envs = make("walk", 1, autoreset_mode="SameStep")
    envs.reset(seed=2)
    while True:
        observation, _, ended, _, info = envs.step(np.ones(1, int))
        if ended[0]:
            break
    assert (info["final_obs"][0] == observation[0]).all()
    assert (envs.step(np.ones(1, int))[0] != observation).any()  # no step is lost


def test_disabled_is_reset_by_the_caller(make):
    envs = make("walk", 2, autoreset_mode="Disabled")
    envs.reset(seed=2)
    while True:
        observation, _, ended, _, _ = envs.step(np.array([1, 0]))
        if ended.any():
            break
    after, _ = envs.reset(options={"reset_mask": ended})
    assert (after[ended] == observation[ended]).all()


def test_a_time_limit_of_the_host_resets(make):
    envs = make("walk", 1, size=40, max_episode_steps=2)
    envs.reset(seed=2)
    envs.step(np.ones(1, int))
    assert envs.step(np.ones(1, int))[3][0]
    first = envs.step(np.ones(1, int))[0].argmax()
    assert envs.step(np.ones(1, int))[0].argmax() == first + 1


@pytest.mark.parametrize("backend", ["native", "process"])
def test_the_log_is_told_when_an_episode_ends(make, backend):
    envs = make("walk", 2, episode_stats=True, backend=backend)
    envs.reset(seed=1)
    for _ in range(50):
        _, reward, ended, _, info = envs.step(np.array([1, 0]))
        if ended.any():
            assert (info["_log"] == ended).all()
            assert (info["log"]["score"] == np.where(ended, reward, 0)).all()
            assert (info["log"]["episode_length"] == info["episode"]["l"]).all()
            assert (info["log"]["n"] == ended).all()
    assert make("walk", 2).step is not None


def test_several_agents_share_a_table_and_take_whole_actions(make):
    envs = make("herd", 2, num_agents=3)
    assert envs.single_action_space == MultiDiscrete([4, 3]) and envs.num_envs == 6
    observation, _ = envs.reset(seed=0)
    assert observation[:, 1].tolist() == [100, 101, 102] * 2
    actions = np.array([[3, 2], [1, 0], [0, 1]] * 2)
    _, reward, ended, _, _ = envs.step(actions)
    assert reward.tolist() == [23, 1, 10] * 2
    assert envs.step(actions)[2].tolist() == [True, False, False] * 2  # one ends alone and goes on


def test_spaces_may_be_given_where_no_python_file_is(make, tmp_path):
    shutil.copytree(OCEAN / "walk", tmp_path / "walk", ignore=shutil.ignore_patterns("*.py"))
    with pytest.raises(BuildError, match="observation_space="):
        shoal.make_vec(f"puffer:{tmp_path / 'walk'}")
    given = {"observation_space": Box(0, 1, (5,), np.uint8), "action_space": Discrete(2)}
    options = {"size": 5, "bonus": 0.0, "trap": 0}
    with shoal.make_vec(f"puffer:{tmp_path / 'walk'}", 1, session=None, **given, **options) as envs:
        assert envs.reset(seed=0)[0].shape == (1, 5)
    given["observation_space"] = Box(0, 1, (5,), np.float32)
    with pytest.raises(PluginError, match="32 bits where the C struct writes 8"):
        shoal.make_vec(f"puffer:{tmp_path / 'walk'}", 1, session=None, **given, **options)


def test_a_constructor_that_cannot_be_followed_says_what_to_give(tmp_path):
    shutil.copytree(OCEAN / "walk", tmp_path / "walk")
    file = tmp_path / "walk" / "walk.py"
    file.write_text(file.read_text().replace("FIRST = 1", "FIRST = binding.get_consts()"))
    with pytest.raises(BuildError, match="binding.get_consts.*C code"):
        shoal.make_vec(f"puffer:{tmp_path / 'walk'}")
    file.write_text("x = (")
    with pytest.raises(BuildError, match="cannot be read as Python"):
        shoal.make_vec(f"puffer:{tmp_path / 'walk'}")


# ---- Contract 4.0


def test_macros_are_spaces_and_a_mask_is_part_of_the_observation(make):
    envs = make("four", 2)
    assert envs.single_action_space == MultiDiscrete([4, 3])
    assert envs.single_observation_space["action_mask"] == MultiBinary(7)
    assert envs.num_envs == 4  # num_agents = 2 is in the .ini, and C has the last word
    observation, _ = envs.reset(seed=1)
    assert observation["action_mask"].tolist() == [[0] + [1] * 6] * 4
    actions = np.array([[3, 2], [1, 0], [2, 2], [0, 1]])
    observation, reward, _, _, _ = envs.step(actions)
    assert reward.tolist() == [1, 1, 0, -1]
    assert observation["observation"][:, 2].tolist() == [3, 1, 2, 0]
    assert observation["action_mask"][0].tolist() == [1, 0] + [1] * 5


def test_the_struct_s_own_generator_follows_the_seed(make):
    envs = make("four", 2)
    drawn = [envs.reset(seed=seed)[0]["observation"][:, 1].tolist() for seed in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1] and drawn[0][0] != drawn[0][2]


def test_state_is_exported(make):
    envs = make("four", 1)
    envs.reset(seed=1)
    envs.step(np.zeros((2, 2), int))
    state = envs.state(0)
    assert state["map"]["shape"] == (2, 3) and state["map"]["dtype"] == "|i1"
    assert bytes(state["map"]["data"])[0] == 1 and bytes(state["tick"]["data"]) == b"\1\0\0\0"


def test_a_session_shows_state():
    with shoal.make_vec(f"puffer:{OCEAN / 'four'}", 2, session="puffer-four-test") as envs:
        envs.reset(seed=1)
        with shoal.attach("puffer-four-test") as run:
            stepping = threading.Thread(
                target=lambda: [(envs.step(np.zeros((4, 2), int)), time.sleep(0.01)) for _ in range(200)]
            )
            stepping.start()
            try:
                snapshot = run.snapshot(1)
            finally:
                stepping.join()
    assert {"map", "tick"} <= set(snapshot.world)


def test_a_table_too_small_for_the_state_is_an_error(make):
    envs = make("four", 1, fields=5000)
    envs.reset(seed=1)
    with pytest.raises(Exception, match="5000 fields where there is room for"):
        envs.state(0)
    envs = make("four", 1, fields=3)
    envs.reset(seed=1)
    with pytest.raises(Exception, match="int33"):
        envs.state(0)


def test_names_on_the_stack_are_kept(make):
    envs = make("four", 1, episode_stats=True)
    envs.reset(seed=1)
    for _ in range(4):
        *_, info = envs.step(np.zeros((2, 2), int))
    assert {name: value.tolist() for name, value in info["log"].items()} == {"score": [2, 2], "n": [1, 1]}


def test_environments_made_together_are_one_world(make):
    envs = make("crowd", 2, agents=5)
    assert envs.single_action_space == Box(-1, 1, (1,), np.float32) and envs.agents_per_env == 5
    observation, _ = envs.reset(seed=0)
    assert observation[:, 0].tolist() == [0, 1, 10, 11, 20] * 2
    _, reward, _, _, _ = envs.step(np.linspace(-1, 1, 10, dtype=np.float32).reshape(10, 1))
    assert np.allclose(reward, np.linspace(-100, 100, 10) + [0, 1, 10, 11, 20] * 2)


def test_agents_beyond_the_buffers_are_refused(make):
    with pytest.raises(PluginError, match="6 agents where there are buffers for 4.*agents=6"):
        make("crowd", 1, agents=4, more=1)


def test_a_world_without_environments_asks_for_agents(make):
    with pytest.raises(PluginError, match="no environments of 1 agents: say agents="):
        make("crowd", 1, more=-1)


def test_only_environments_with_an_episode_are_in_the_log(make):
    envs = make("crowd", 1, agents=5, episode_stats=True)
    envs.reset(seed=0)
    for _ in range(2):
        *_, info = envs.step(np.zeros((5, 1), np.float32))
    assert info["_log"].tolist() == [True, True, False, False, False]
    assert {name: value[0] for name, value in info["log"].items()} == {"score": 2, "n": 1}


def test_the_dialect_of_before_4_0_is_understood(make):
    envs = make("old", 1, episode_stats=True)
    assert envs.single_observation_space == Box(-128, 127, (2,), np.int8)
    envs.reset(seed=0)
    for action in (4, 2, 3):
        observation, _, ended, _, info = envs.step(np.array([action]))
        assert observation.tolist() == [[-3, -action]]
    assert ended[0] and {name: value[0] for name, value in info["log"].items()} == {"score": 4, "n": 1}


def test_a_trainer_s_precision_is_that_of_the_environment(make):
    envs = make("half", 2)
    assert envs.single_observation_space.dtype == np.float32
    drawn = [envs.reset(seed=seed)[0] for seed in (1, 2)]
    assert drawn[0][:, 0].tolist() == [1, 1]  # a direction that was turned into another
    assert drawn[0][:, 2].tolist() != drawn[1][:, 2].tolist()  # its generator has 64 bits
    assert envs.step(np.zeros((2, 1), np.float32))[1].tolist() == [2, 2]


def test_an_asset_it_looks_for_may_be_missing(make, tmp_path):
    assert make("half", 1).reset(seed=0)[0][0, 1] == -1
    shutil.copytree(OCEAN / "half", tmp_path / "half")
    header = tmp_path / "half" / "half.h"
    header.write_text(header.read_text().replace("    if (file == NULL)\n        return number;\n", ""))
    with pytest.raises(PluginError, match="resources/half/not_there.txt is not there"):
        shoal.make_vec(f"puffer:{tmp_path / 'half'}", 1, session=None)


def test_an_option_it_misses_is_named(make, tmp_path):
    shutil.copytree(OCEAN / "four", tmp_path / "four")
    with pytest.raises(PluginError, match="wants the option num_agents"):
        shoal.make_vec(f"puffer:{tmp_path / 'four'}", session=None)  # without its .ini


# ---- Contract 5.0


def test_agents_with_pointers_of_their_own(make):
    envs = make("five", 2)
    assert envs.single_observation_space["observation"].dtype == np.float32  # bfloat16 in C
    observation, _ = envs.reset(seed=1)
    assert observation["action_mask"].tolist() == [[0, 1, 1, 1, 1], [1, 0, 1, 1, 1]] * 2
    observation, reward, ended, _, _ = envs.step(np.array([0, 1, 2, 4]))
    assert reward.tolist() == [9, 10, 11, 13]  # the last of sizes = 4,5,6 and three letters of its title
    assert observation["observation"][:, 0].tolist() == [1] * 4 and not ended.any()
    assert envs.state(0)["tick"]["shape"] == (1,)
    first = envs.reset(seed=7)[0]["observation"].tolist()
    assert (
        envs.reset(seed=8)[0]["observation"].tolist()
        != first
        == envs.reset(seed=7)[0]["observation"].tolist()
    )


def test_the_ini_says_whether_there_is_a_mask(make, tmp_path):
    assert make("five").single_observation_space["action_mask"] == MultiBinary(5)
    for folder in ("five", "config"):
        shutil.copytree(OCEAN / folder, tmp_path / folder)
    ini = tmp_path / "config" / "five.ini"
    ini.write_text(ini.read_text().replace("action_mask_size = 5", ""))
    with shoal.make_vec(f"puffer:{tmp_path / 'five'}", 1, session=None) as envs:
        assert envs.single_observation_space == Box(-np.inf, np.inf, (2,), np.float32)
        assert envs.reset(seed=1)[0].shape == (2, 2)


def test_a_list_that_is_none_has_no_numbers(make):
    envs = make("five", 1, sizes="4,b,6")
    envs.reset(seed=1)
    assert envs.step(np.zeros(2, int))[1].tolist() == [3, 3]  # the letters of its title alone
    envs = make("five", 1, sizes=[7, 8], title="12")
    envs.reset(seed=1)
    assert envs.step(np.zeros(2, int))[1].tolist() == [10, 10]


def test_more_agents_than_the_struct_has_room_for(make):
    with pytest.raises(PluginError, match="num_agents is 5 where struct Env has room for 4"):
        make("five", 1, num_agents=5)


# ---- Traps


@pytest.mark.parametrize(
    "trap, message",
    [
        (1, r"called exit\(7\)"),
        (2, r"assertion failed in my_init .*env->trap != 2"),
        (3, r"asset resources/walk/not_there.bin is not there, nor is /.*not_there.bin"),
        (4, "wants the option nowhere"),
        (5, "wrote beyond the rows of its 1 agents"),
        (8, "bonus must not be odd"),
    ],
)
def test_a_trap_is_an_error_and_the_process_lives(make, trap, message):
    with pytest.raises(PluginError, match=message):
        make("walk", 2, trap=trap)


def test_an_environment_that_frees_itself_is_freed_once(make):
    envs = make("walk", 2, trap=6)
    trace(envs, 1)
    trace(envs, 2)
    envs.close()


def test_exit_in_a_step_ends_the_worker_with_a_message(make):
    script = f"""
import numpy, shoal
envs = shoal.make_vec("puffer:{OCEAN / "walk"}", 1, session=None, backend="process", num_workers=1, trap=7)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "called exit(3)" in done.stderr  # it is tried before it is used


def test_assets_are_found_from_any_directory(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    envs = make("walk", 1, trap=9)
    assert envs.reset(seed=0)[0].shape == (1, 9)


def test_what_it_prints_goes_to_stderr(make, capfd):
    make("walk", 1, trap=10)
    out, err = capfd.readouterr()
    assert out == "" and "hello from C" in err


def test_globals_mean_one_thread(make):
    library = prepare(OCEAN / "herd", {}).library
    assert writable_globals(library) == ["steps_of_all"]
    assert writable_globals(prepare(OCEAN / "walk", {}).library) == []
    make("herd", 256)
    make("walk", 256, num_threads=2)
    with pytest.raises(PluginError, match="steps_of_all.*backend='process'"):
        make("herd", 256, num_threads=2)


def test_threads_give_the_bytes_of_one(make):
    assert trace(make("walk", 300, num_threads=2), 1) == trace(make("walk", 300, num_threads=1), 1)


def test_a_seed_from_the_clock_is_ignored(make):
    assert trace(make("walk", 3, trap=12), 1) == trace(make("walk", 3, trap=12), 1)


def test_unknown_options_are_named(make):
    with pytest.raises(
        TypeError, match=r"walk has no option 'sise'; it has \['bonus', 'size', 'title', 'trap'\]"
    ):
        make("walk", sise=3)
    with pytest.raises(TypeError, match="four has no option 'limt'"):
        make("four", limt=3)


def test_what_is_no_environment_is_said(tmp_path):
    with pytest.raises(BuildError, match="no folder"):
        find_source(tmp_path / "nothing")
    with pytest.raises(BuildError, match="no binding.c"):
        find_source(tmp_path)
    (tmp_path / "cy_old.pyx").write_text("")
    with pytest.raises(BuildError, match="before 3.0"):
        find_source(tmp_path)
    binding = tmp_path / "binding.c"
    binding.write_text('#include "x.h"\n')
    with pytest.raises(BuildError, match="before 3.0|includes none"):
        find_source(tmp_path)
    binding.write_text('#include "env_binding.h"\nvoid my_init(Env* env, Dict* kwargs) {}\n')
    with pytest.raises(BuildError, match="between PufferLib 3.0 and 4.0"):
        find_source(tmp_path)
    (tmp_path / "physics.h").write_text('#include "box2d/box2d.h"\n')
    binding.write_text('#include "physics.h"\n#include "vecenv.h"\n')
    with pytest.raises(BuildError, match="needs box2d/box2d.h"):
        build_puffer(find_source(tmp_path))


def test_an_environment_that_changed_is_built_again(tmp_path):
    for folder in ("walk", "config"):
        shutil.copytree(OCEAN / folder, tmp_path / folder)
    source = find_source(tmp_path / "walk")
    first = build_puffer(source)
    assert build_puffer(source) == first
    header = tmp_path / "walk" / "walk.h"
    header.write_text(header.read_text().replace("env->tick++", "env->tick += 2"))
    assert build_puffer(source) != first


def test_shoal_build_makes_a_library_with_its_defaults(tmp_path):
    library = tmp_path / "walk.so"
    command = [
        sys.executable,
        "-m",
        "shoal",
        "build",
        "--puffer",
        str(OCEAN / "walk"),
        "--output",
        str(library),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(library)
    with shoal.make_vec(library, 2, session=None) as envs:
        assert envs.reset(seed=0)[0].shape == (2, 9)


def test_the_headers_are_installed():
    compat = INCLUDE / "puffer"
    for name in ("env_binding.h", "vecenv.h", "pufferenv.h", "pufferenv.c", "tensor.h", "bf16.h"):
        assert (compat / name).is_file()
    assert (compat / "raylib" / "raylib.h").is_file()


def test_raylib_of_the_user_s_own_is_compiled_against_and_linked(tmp_path, monkeypatch):
    """A shared library as a system has it; what is missing of it is said."""
    ours = INCLUDE / "puffer" / "raylib" / "raylib.h"
    monkeypatch.setenv("RAYLIB", str(tmp_path))
    with pytest.raises(BuildError, match="no .*include/raylib.h"):
        build_puffer(find_source(OCEAN / "walk"))
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "raylib.h").write_text(f'#include "{ours}"\n')
    with pytest.raises(BuildError, match=r"no libraylib\.a and no libraylib\.so"):
        build_puffer(find_source(OCEAN / "walk"))
    (tmp_path / "lib").mkdir()
    (tmp_path / "ray.c").write_text("int of_the_users_own(void) { return 1; }\n")
    library = tmp_path / "lib" / "libraylib.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "ray.c"], check=True)
    built = build_puffer(find_source(OCEAN / "walk"))
    said = subprocess.run(["readelf", "-d", built], capture_output=True, text=True).stdout
    assert str(tmp_path / "lib") in said  # where it is looked for; a library that is not used is not needed


@pytest.mark.parametrize("value", ["abc", [1, 2]])
def test_an_option_that_is_a_number_in_the_ini_must_be_one(make, value):
    with pytest.raises(TypeError, match=r"option 'limit' must be a number, as \d+ in its \.ini"):
        make("four", limit=value)
