"""Tests of what the examples claim; test_readme.py runs each of them as it is."""

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
from tests.shared import run_example

EXAMPLES = Path(__file__).parent.parent / "examples"
ALL = sorted(EXAMPLES.glob("*.py"))
WITH_ARGUMENTS = [path for path in ALL if path.name != "aliasing.py"]  # it has no arguments
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def load(monkeypatch):
    """Imports an example by its name, without running it."""

    def import_example(name):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return import_example


def run(name, *arguments, **more):
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, **more)


# -- all of them ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_docstring_says_how_to_run_the_example(path):
    begin = path.read_text().split('"""')
    assert begin[0] == ""
    assert f"\npython examples/{path.name}" in begin[1]


def test_the_readme_lists_every_example():
    readme = (EXAMPLES.parent / "README.md").read_text()
    for path in ALL:
        assert f"`examples/{path.name}`" in readme, path.name


def test_all_examples_parse_their_command_line_in_the_same_way():
    parsers = {
        re.search(r"    @classmethod\n    def parse.*?\n\n", path.read_text(), re.DOTALL).group()
        for path in WITH_ARGUMENTS
    }
    assert len(parsers) == 1


@pytest.mark.parametrize("name", ["gymnasium_envs", "dqn_replay"])
def test_each_field_of_args_is_an_option(name, load, monkeypatch):
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


def test_episode_ends_when_the_sea_reaches_the_crab():
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


def test_tide_rises_and_falls_between_its_limits():
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
def test_my_env_rejects_options_out_of_range(option, value):
    with pytest.raises(shoal.ShoalError, match=f"{option} must be from"):
        shoal.make_vec(EXAMPLES / "my_env.c", 1, **{option: value})


# -- watch_a_run ----------------------------------------------------------------------------------------


def test_watching_does_not_disturb_a_running_job(tmp_path):
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


def test_watcher_notices_that_its_own_run_was_killed(tmp_path):
    done = run("watch_a_run", "--world", "2", "--seconds", "0.2", "--png", str(tmp_path / "run.png"))
    assert done.returncode == 0, done.stderr
    assert "alive: False" in done.stdout
    assert "has ended" in done.stdout
    assert "last snapshot: <Snapshot of environment 2" in done.stdout


# -- search_from_state ----------------------------------------------------------------------------------


def test_planning_is_much_better_than_random_actions(load):
    search = load("search_from_state")
    at_random, planned = search.main(search.Args(copies=64, horizon=30, episodes=2))
    assert planned > 5 * at_random


def test_planner_rejects_actions_that_are_not_discrete(load):
    search = load("search_from_state")
    with pytest.raises(SystemExit, match="Pendulum-v1 has Box"):
        search.Planner(search.Args(env_id="Pendulum-v1"))


# -- dqn_replay -----------------------------------------------------------------------------------------


def test_gradient_of_the_q_network_matches_finite_differences(load):
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


def test_mean_return_is_over_the_last_hundred_episodes(load):
    dqn = load("dqn_replay")
    board = dqn.make_board(dqn.Args(), 1)
    assert dqn.compute_mean_return(board) < -1e9
    for number in (0, 1):
        for episode in range(130):
            board["episode_returns"][number, episode % 100] = episode
            board["episodes"][number] = episode + 1
    assert dqn.compute_mean_return(board) == np.mean(range(80, 130))
    board.close()


def test_dqn_reports_that_it_missed_the_goal():
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


def test_dead_actor_ends_the_run_with_a_message(endless_dqn):
    learner, actors = endless_dqn
    os.kill(actors[0], signal.SIGKILL)
    _, stderr = learner.communicate(timeout=60)
    assert learner.returncode == 1
    assert "an actor died" in stderr


def test_actors_end_after_the_learner_was_killed(endless_dqn):
    learner, actors = endless_dqn
    watched = [os.pidfd_open(pid) for pid in actors]
    learner.kill()
    for fd in watched:
        assert select.select([fd], [], [], 30)[0]  # readable when the process has ended
        os.close(fd)


# -- rainbow --------------------------------------------------------------------------------------------


def test_rainbow_learns_where_torch_is():
    pytest.importorskip("torch")
    done = run_example(EXAMPLES / "rainbow.py")  # to 60, from about 18 at the beginning
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nreached" in done.stdout


def test_rainbow_learns_from_frames_and_says_that_it_did_not_get_there():
    pytest.importorskip("torch")
    frames = ["--env-id", "Pixels-v0", "--columns", "", "--stack", "2", "--v-min", "-1", "--hidden", "16"]
    short = ["--steps", "700", "--warmup", "400", "--num-envs", "4", "--goal", "1e9", "--capacity", "1000"]
    done = run("rainbow", *frames, *short, "--batch-size", "8")
    assert done.returncode == 1, done.stderr
    assert "NOT REACHED" in done.stdout


def test_a_projected_distribution_keeps_its_mean(load):
    torch = pytest.importorskip("torch")
    rainbow = load("rainbow")
    support = torch.linspace(-2, 3, 11)
    probs = torch.rand(6, 11).softmax(-1)
    returns = torch.rand(6, 11) * 5 - 2
    found = rainbow.project(probs.log(), returns, support)
    assert torch.allclose(found.sum(-1), torch.ones(6), atol=1e-5)
    assert torch.allclose((found * support).sum(-1), (probs * returns).sum(-1), atol=1e-5)
    outside = rainbow.project(probs.log(), torch.full((6, 11), 9.0), support)
    assert torch.allclose(outside[:, -1], torch.ones(6), atol=1e-5)
    on_atoms = rainbow.project(probs.log(), support.expand(6, 11), support)
    assert torch.allclose(on_atoms, probs, atol=1e-5)


def test_targets_of_rainbow_end_with_an_episode_that_terminated(load):
    torch = pytest.importorskip("torch")
    rainbow = load("rainbow")
    args = rainbow.Args(atoms=11, v_min=0.0, v_max=10.0, stack=2)
    with shoal.ReplayBuffer(10, {"obs": (np.float32, (3,)), "action": (np.int64, ())}) as buffer:
        learner = rainbow.Learner(args, buffer, 2)
        batch = {
            "next_obs": torch.rand(2, 2, 3),
            "reward": torch.tensor([4.0, 4.0]),
            "discount": torch.tensor([0.5, 0.5]),
            "terminated": torch.tensor([True, False]),
        }
        terminated, bootstrapped = learner.targets(batch)
    assert terminated[4].item() == pytest.approx(1, abs=1e-5)  # the reward alone
    expected = (
        4
        + 0.5
        * learner.target.q_values(batch["next_obs"])[
            1, learner.network.q_values(batch["next_obs"])[1].argmax()
        ]
    )
    assert (bootstrapped * learner.support).sum().item() == pytest.approx(expected.item(), abs=1e-4)


# -- ppo_torch ------------------------------------------------------------------------------------------


def test_ppo_learns():
    pytest.importorskip("torch", reason="needs torch: make torch")
    done = run_example(EXAMPLES / "ppo_torch.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "results copied: 0" in done.stdout
    assert "\nreached" in done.stdout


def test_ppo_reports_that_it_missed_the_goal():
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


def test_advantages_stop_at_the_end_of_an_episode(load):
    torch = pytest.importorskip("torch", reason="needs torch: make torch")
    ppo = load("ppo_torch")
    args = ppo.Args(gamma=0.5, gae_lambda=1.0)
    rewards = torch.tensor([[1.0], [1.0], [1.0], [1.0]])
    values = torch.tensor([[0.0], [0.0], [8.0], [0.0], [4.0]])
    none = torch.zeros(4, 1, dtype=torch.bool)
    at_1 = none.clone()
    at_1[1] = True

    def first_advantage(terminated, truncated):
        return ppo.compute_advantages(rewards, values, terminated, truncated, args)[0].item()

    assert first_advantage(none, none) == pytest.approx(1 + (1 + (1 + (1 + 2) / 2) / 2) / 2)
    assert first_advantage(none, at_1) == pytest.approx(1 + (1 + 8 / 2) / 2)  # bootstraps from values[2]
    assert first_advantage(at_1, none) == pytest.approx(1.5)
