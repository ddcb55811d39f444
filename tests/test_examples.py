"""What the examples claim. That each runs as it stands is in test_readme.py."""

import importlib.util
import os
import re
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import shoal
from tests.lenience import PROGRAM_S

EXAMPLES = Path(__file__).parent.parent / "examples"
ALL = sorted(EXAMPLES.glob("*.py"))
WITH_ARGUMENTS = [path for path in ALL if path.name != "aliasing.py"]  # it has nothing to choose
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def load(monkeypatch):
    """Imports an example by its name, without running it."""

    def found(name):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return found


def run(name, *arguments, **more):
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, **more)


# -- all of them ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_an_example_begins_with_what_it_shows_and_how_to_run_it(path):
    begin = path.read_text().split('"""')
    assert begin[0] == ""
    assert f"\npython examples/{path.name}" in begin[1]


def test_the_readme_lists_every_example():
    readme = (EXAMPLES.parent / "README.md").read_text()
    for path in ALL:
        assert f"`examples/{path.name}`" in readme, path.name


def test_all_read_their_command_line_in_the_same_way():
    parsers = {
        re.search(r"    @classmethod\n    def parse.*?\n\n", path.read_text(), re.DOTALL).group()
        for path in WITH_ARGUMENTS
    }
    assert len(parsers) == 1


@pytest.mark.parametrize("name", ["gymnasium_envs", "dqn_replay"])
def test_the_fields_of_args_are_the_command_line(name, load, monkeypatch):
    example = load(name)
    monkeypatch.setattr(sys, "argv", [name, "--num-envs", "3", "--env-id", "Other-v0"])
    assert example.Args.parse() == example.Args(num_envs=3, env_id="Other-v0")


# -- my_env ---------------------------------------------------------------------------------------------


def crab_of(envs, env_id=0):
    return envs.state_arrays(env_id)["crab"][0].tolist()


def test_the_crab_gathers_shells():
    with shoal.make_vec(EXAMPLES / "my_env.c", 2, pace=1000, shells=1.0, session=None) as envs:
        envs.reset(seed=0)
        _, row, column, _ = crab_of(envs)
        assert envs.state_arrays(0)["beach"][row + 1, column] == 2
        rewards = [envs.step(np.array([move, 0]))[1].tolist() for move in (3, 1, 3)]  # down, up, down again
        assert rewards == [[1, 0], [0, 0], [0, 0]]
        assert crab_of(envs) == [3, row + 1, column, 2]
        assert [int(envs.state_arrays(i)["shells"]) for i in (0, 1)] == [1, 0]


def test_the_sea_takes_a_crab_that_it_reaches():
    with shoal.make_vec(EXAMPLES / "my_env.c", 1, pace=1, shells=0.0, session=None) as envs:
        envs.reset(seed=0)
        for _ in range(12):
            observations, rewards, terminated, _, _ = envs.step(np.array([3]))
            _, row, column, _ = crab_of(envs)
            drowned = envs.state_arrays(0)["beach"][row, column] == 1
            assert terminated.tolist() == [drowned]
            assert rewards.tolist() == [-1.0 if drowned else 0.0]
            if drowned:
                return
    pytest.fail("twelve steps down a beach of twelve rows end in the sea")


def test_the_tide_goes_up_and_down_between_its_marks():
    with shoal.make_vec(EXAMPLES / "my_env.c", 1, pace=1, session=None) as envs:
        envs.reset(seed=0)
        levels = []
        for _ in range(60):
            envs.step(np.array([1]))  # up, where no tide comes
            levels.append(int(envs.state_arrays(0)["level"]))
            beach = envs.state_arrays(0)["beach"]
            assert [bool((line == 1).all()) for line in beach] == [
                row >= 12 - levels[-1] for row in range(12)
            ]
        assert (min(levels), max(levels)) == (1, 9)
        assert set(np.abs(np.diff(levels))) == {1}


@pytest.mark.parametrize(("option", "value"), [("pace", 0), ("shells", 1.5), ("shells", float("nan"))])
def test_my_env_refuses_options_that_make_no_sense(option, value):
    with pytest.raises(shoal.ShoalError, match=f"{option} must be from"):
        shoal.make_vec(EXAMPLES / "my_env.c", 1, **{option: value})


# -- watch_a_run ----------------------------------------------------------------------------------------


def test_a_live_run_is_watched_and_left_alone(tmp_path):
    going, name = True, f"example-{threading.get_native_id()}"
    with shoal.make_vec("Snake-v0", 4, session=name) as envs:
        envs.reset(seed=0)

        def train():
            while going:
                envs.step(np.zeros(envs.num_envs, np.int64))

        thread = threading.Thread(target=train)
        thread.start()
        try:
            picture = tmp_path / "run.png"
            done = run("watch_a_run", "--session", name, "--seconds", "0.2", "--png", str(picture))
        finally:
            going = False
            thread.join()
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("episode ") == 5
        assert "killed" not in done.stdout
        assert picture.read_bytes().startswith(PNG)
        envs.step(np.zeros(envs.num_envs, np.int64))


def test_a_run_of_its_own_is_seen_to_end(tmp_path):
    done = run("watch_a_run", "--world", "2", "--seconds", "0.2", "--png", str(tmp_path / "run.png"))
    assert done.returncode == 0, done.stderr
    assert "alive: False" in done.stdout
    assert "has ended" in done.stdout
    assert "last seen: <Snapshot of environment 2" in done.stdout


# -- search_from_state ----------------------------------------------------------------------------------


def test_planning_beats_chance_by_far(load):
    search = load("search_from_state")
    at_random, planned = search.main(search.Args(copies=64, horizon=30, episodes=2))
    assert planned > 5 * at_random


def test_a_planner_tries_discrete_actions_alone(load):
    search = load("search_from_state")
    with pytest.raises(SystemExit, match="Pendulum-v1 has Box"):
        search.Planner(search.Args(env_id="Pendulum-v1"))


# -- dqn_replay -----------------------------------------------------------------------------------------


def test_the_gradient_of_the_network_is_right(load):
    dqn = load("dqn_replay")
    rng = np.random.default_rng(0)
    network = dqn.QNetwork([3, 5, 5, 2])
    network.weights = rng.standard_normal(len(network.weights))  # float64, to measure small differences
    network.layers = network.split(network.weights)
    x, d = rng.standard_normal((7, 3)), rng.standard_normal((7, 2))
    gradient = np.zeros_like(network.weights)
    network.forward(x)
    network.backward(d, gradient)
    for i in range(len(gradient)):
        sides = []
        for change in (1e-6, -1e-6):
            network.weights[i] += change
            sides.append((network.forward(x) * d).sum())
            network.weights[i] -= change
        assert gradient[i] == pytest.approx((sides[0] - sides[1]) / 2e-6, abs=1e-5)


def test_the_mean_return_is_that_of_the_last_hundred_episodes(load):
    dqn = load("dqn_replay")
    board = dqn.make_board(dqn.Args(), 1)
    assert dqn.mean_return(board) < -1e9
    for number in (0, 1):
        for episode in range(130):
            board["returns"][number, episode % 100] = episode
            board["episodes"][number] = episode + 1
    assert dqn.mean_return(board) == np.mean(range(80, 130))
    board.close()


def test_dqn_says_that_it_did_not_get_there():
    done = run("dqn_replay", "--steps", "3000", "--goal", "400")
    assert done.returncode == 1
    assert "NOT REACHED" in done.stdout


@pytest.fixture
def endless_dqn():
    """A run that is learning, and the pids of its two actors."""
    if sys.platform != "linux":
        pytest.skip("machine: no /proc, in which the actors are found")
    command = [sys.executable, str(EXAMPLES / "dqn_replay.py"), "--goal", "1e9", "--steps", "1000000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as learner:
        try:
            learner.stdout.readline()
            children = Path(f"/proc/{learner.pid}/task/{learner.pid}/children").read_text().split()
            actors = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            assert len(actors) == 2
            yield learner, [int(pid) for pid in actors]
        finally:
            learner.kill()


def test_a_dead_actor_ends_the_run_with_a_word(endless_dqn):
    learner, actors = endless_dqn
    os.kill(actors[0], signal.SIGKILL)
    _, said = learner.communicate(timeout=60)
    assert learner.returncode == 1
    assert "an actor died" in said


def test_actors_end_with_a_learner_that_was_killed(endless_dqn):
    learner, actors = endless_dqn
    watched = [os.pidfd_open(pid) for pid in actors]
    learner.kill()
    for fd in watched:
        assert select.select([fd], [], [], 30)[0]  # readable when the process has ended
        os.close(fd)


# -- ppo_torch ------------------------------------------------------------------------------------------


def test_ppo_learns_where_torch_is():
    pytest.importorskip("torch", reason="needs torch: make torch")
    done = run("ppo_torch", "--goal", "150", "--steps", "60000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "results copied: 0" in done.stdout
    assert "\nreached" in done.stdout


def test_ppo_says_that_it_did_not_get_there():
    pytest.importorskip("torch", reason="needs torch: make torch")
    done = run("ppo_torch", "--goal", "400", "--steps", "3000")
    assert done.returncode == 1
    assert "NOT REACHED" in done.stdout


def test_ppo_without_torch_says_what_is_missing(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run("ppo_torch")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "this example needs PyTorch, which is not installed: pip install torch\n"


def test_advantages_follow_an_episode_to_its_end_and_no_further(load):
    torch = pytest.importorskip("torch", reason="needs torch: make torch")
    ppo = load("ppo_torch")
    args = ppo.Args(gamma=0.5, gae_lambda=1.0)
    rewards = torch.tensor([[1.0], [1.0], [1.0], [1.0]])
    values = torch.tensor([[0.0], [0.0], [8.0], [0.0], [4.0]])
    none = torch.zeros(4, 1, dtype=torch.bool)
    at_1 = none.clone()
    at_1[1] = True

    def found(terminated, truncated):
        return ppo.advantages(rewards, values, terminated, truncated, args)[0].item()

    # To the end; to where it was cut off, and what its last observation was worth; to where it terminated.
    assert found(none, none) == pytest.approx(1 + (1 + (1 + (1 + 2) / 2) / 2) / 2)
    assert found(none, at_1) == pytest.approx(1 + (1 + 8 / 2) / 2)
    assert found(at_1, none) == pytest.approx(1.5)
