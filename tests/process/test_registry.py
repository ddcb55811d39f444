"""Workers make environments from the program's specs, even if packages that they import register others."""

import sys

import pytest

CONTEXTS = [None, "fork", "forkserver", "spawn"]

PACKAGE = {
    "__init__": """
import gymnasium
from gymnasium.envs.registration import namespace, register

register("Fish/Pond-v0", entry_point="fish.env:Pond", max_episode_steps=9)
gymnasium.register(id="Fish/Lake-v0", entry_point="fish.env:Pond", max_episode_steps=9)
with namespace("Fish"):
    register("Sea-v0", entry_point="fish.env:Pond", max_episode_steps=9)
gymnasium.registry.pop("Fish/Reef-v0", None)
register("Fish/Reef-v0", entry_point="fish.env:Pond", max_episode_steps=9)
register("CartPole-v1", entry_point="fish.env:Pond", max_episode_steps=9)


def register_all():
    register("Fish/Pond-v0", entry_point="fish.env:Pond", max_episode_steps=8)
""",
    "env": """
import gymnasium, numpy as np


class Pond(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, depth=1, owner=None):
        self.depth = depth

    def reset(self, *, seed=None, options=None):
        return np.zeros(4, np.float32), {}

    def step(self, action):
        return np.zeros(4, np.float32), 0.0, False, False, {}
""",
    "deep": """
import gymnasium

gymnasium.register("Fish/Deep-v0", entry_point="fish.env:Pond", max_episode_steps=9)
gymnasium.register("Fish/Pond-v0", entry_point="fish.env:Pond", max_episode_steps=9)
""",
}

PRELUDE = """
import os, sys, warnings
import gymnasium
from gymnasium import registry
from shoal.vector import ProcessVectorEnv

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "lib"))
context = None if sys.argv[1] == "None" else sys.argv[1]
IDS = ["Fish/Pond-v0", "Fish/Lake-v0", "Fish/Sea-v0", "Fish/Reef-v0", "CartPole-v1"]


def find_limits(names, num_workers=1, **options):
    envs = ProcessVectorEnv(
        [lambda name=name: gymnasium.make(name) for name in names],
        num_workers=num_workers,
        context=context,
        observation_mode="different",
        **options,
    )
    with envs:
        return list(envs.get_attr("_max_episode_steps"))


def import_fish():
    with warnings.catch_warnings(record=True):  # it replaces CartPole-v1
        import fish


class Local:
    def __deepcopy__(self, memo):
        return self

    def __reduce_ex__(self, protocol):
        raise TypeError(f"{self!r} is for this process alone")


def is_silent():
    with open("stderr") as file:
        said = file.read()
    assert not said, said
    return True


def main():
"""

END = """

if __name__ == "__main__":
    before = os.dup(2)
    os.dup2(os.open("stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    try:
        main()
    except BaseException:
        os.dup2(before, 2)
        raise
    print("done")
"""


@pytest.fixture
def run_with_package(run_python, tmp_path, monkeypatch):
    """Runs `body` in a program that finds the package `fish`; `context` is its start method."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lib" / "fish").mkdir(parents=True)
    for name, source in PACKAGE.items():
        (tmp_path / "lib" / "fish" / f"{name}.py").write_text(source)

    def run(context, body, before=""):
        indented = "".join(f"    {line}\n" for line in body.strip("\n").splitlines())
        prelude = PRELUDE.replace("def main", before + "def main")
        assert run_python(prelude + indented + END, context) == "done\n"

    return run


@pytest.mark.parametrize("context", CONTEXTS)
def test_specs_that_the_program_changed_hold_for_every_environment(run_with_package, context):
    body = """
own = registry["CartPole-v1"]
import_fish()
registry["CartPole-v1"] = own
for name in IDS:
    registry[name].max_episode_steps = 50
assert find_limits(IDS * 2) == [50] * 10
assert find_limits(["fish:" + name for name in IDS] * 2) == [50] * 10
assert find_limits(IDS * 2, num_workers=2) == [50] * 10
assert is_silent()
"""
    run_with_package(context, body)


@pytest.mark.parametrize("context", CONTEXTS)
def test_specs_hold_if_only_workers_import_the_package(run_with_package, context):
    body = """
for name in IDS[:-1]:
    gymnasium.register(name, entry_point="fish.env:Pond", max_episode_steps=50)
registry["CartPole-v1"].max_episode_steps = 50
assert find_limits(IDS * 2) == [50] * 10
assert find_limits(["fish:" + name for name in IDS] * 2) == [50] * 10
assert "fish" not in sys.modules and is_silent()
"""
    run_with_package(context, body)


@pytest.mark.parametrize("context", [None, "fork"])
def test_specs_hold_for_environments_that_the_caller_steps(run_with_package, context):
    body = """
for name in IDS[:-1]:
    gymnasium.register(name, entry_point="fish.env:Pond", max_episode_steps=50)
registry["CartPole-v1"].max_episode_steps = 50
assert find_limits(IDS * 2, caller_steps=True) == [50] * 10
assert "fish" in sys.modules and is_silent()
assert [registry[name].max_episode_steps for name in IDS] == [50] * 5
import importlib
with warnings.catch_warnings(record=True):
    importlib.reload(sys.modules["fish"])  # the program's own imports do what they always did
assert [registry[name].max_episode_steps for name in IDS] == [9] * 5
"""
    run_with_package(context, body)


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_change_reaches_the_next_vector_and_not_a_replaced_worker(run_with_package, context):
    body = """
import signal
import_fish()
registry["Fish/Pond-v0"].max_episode_steps = 50
registry["Fish/Lake-v0"].kwargs["depth"] = 5
names = ["Fish/Pond-v0", "Fish/Lake-v0", "Fish/Lake-v0"]
make = [lambda name=name: gymnasium.make(name) for name in names]
with ProcessVectorEnv(make, num_workers=1, context=context, on_fault="restart") as envs:
    envs.reset()
    registry["Fish/Pond-v0"].max_episode_steps = 70
    registry["Fish/Lake-v0"].kwargs["depth"] = 7
    os.kill(envs.worker_pids[0], signal.SIGKILL)
    assert envs.step([0, 0, 0])[3].all()  # truncated: the worker was replaced
    assert list(envs.get_attr("_max_episode_steps")) == [50, 9, 9]
    assert envs.get_attr("depth") == (1, 5, 5)
with ProcessVectorEnv(make, num_workers=1, context=context) as envs:
    assert list(envs.get_attr("_max_episode_steps")) == [70, 9, 9]
    assert envs.get_attr("depth") == (1, 7, 7)
assert is_silent()
"""
    run_with_package(context, body)


@pytest.mark.parametrize("context", CONTEXTS)
def test_ids_that_only_a_worker_registers_stay(run_with_package, context):
    body = """
import_fish()
registry["Fish/Pond-v0"].max_episode_steps = 50

def make_deep():
    import fish.deep
    return gymnasium.make("Fish/Deep-v0")

def make_pond():
    gymnasium.make("Fish/Deep-v0")  # of the environment before this one
    return gymnasium.make("Fish/Pond-v0")

def register_and_make(steps):
    gymnasium.register("Fish/Pond-v0", entry_point="fish.env:Pond", max_episode_steps=steps)
    import fish.deep
    return gymnasium.make("Fish/Pond-v0")

def let_package_register():
    import fish
    fish.register_all()
    return gymnasium.make("Fish/Pond-v0")

assert "Fish/Deep-v0" not in registry
for make, limits in {(make_deep, make_pond): [9, 50]}.items():
    with ProcessVectorEnv(make, num_workers=1, context=context) as envs:
        assert list(envs.get_attr("_max_episode_steps")) == limits
assert is_silent()
make = [lambda: register_and_make(20), lambda: register_and_make(30), let_package_register]
with ProcessVectorEnv(make, num_workers=1, context=context) as envs:
    assert list(envs.get_attr("_max_episode_steps")) == [20, 30, 8]
"""
    run_with_package(context, body)


@pytest.mark.parametrize("context", CONTEXTS)
def test_an_id_that_the_program_deleted_cannot_be_made(run_with_package, context):
    body = """
import_fish()
del registry["Fish/Lake-v0"], registry["Acrobot-v1"]
for name in ("Fish/Lake-v0", "fish:Fish/Lake-v0", "Acrobot-v1"):
    try:
        find_limits(["Fish/Pond-v0", name])
    except gymnasium.error.NameNotFound:
        continue
    raise AssertionError(name)
assert is_silent()
"""
    run_with_package(context, body)


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_spec_that_cannot_be_sent_is_named_when_it_is_made(run_with_package, context):
    body = """
from shoal.errors import WorkerError
import_fish()
registry["Fish/Pond-v0"].max_episode_steps = 50
registry["Fish/Lake-v0"].kwargs["owner"] = Local()
assert find_limits(["Fish/Pond-v0"] * 2) == [50, 50]
try:
    with ProcessVectorEnv([lambda: gymnasium.make("Fish/Lake-v0")], context=context) as envs:
        assert envs.get_attr("depth") == (1,) and context == "fork"  # which inherits it
except WorkerError as error:
    assert context != "fork"
    assert "Fish/Lake-v0 is registered in the program" in str(error) and "process alone" in str(error), error
if context != "fork":  # the package's own, where a worker imports it
    assert find_limits(["fish:Fish/Lake-v0", "Fish/Lake-v0", "Fish/Pond-v0"]) == [9, 9, 50]
assert is_silent()
"""
    run_with_package(context, body)


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_worker_uses_its_own_spec_if_the_programs_cannot_be_sent(run_with_package, context):
    body = """
registry["Local-v0"].max_episode_steps = 50
assert find_limits(["Local-v0"] * 2) == [50 if context == "fork" else 9] * 2
"""
    register = 'gymnasium.register("Local-v0", "fish.env:Pond", max_episode_steps=9)\n'
    change = 'registry["Local-v0"].kwargs["owner"] = Local()\n'
    run_with_package(context, body, before=register + change)


def test_a_worker_replaces_gymnasiums_function_under_all_its_names(run_with_package):
    body = """
def look():
    from gymnasium.envs import registration
    assert gymnasium.register is gymnasium.envs.register is registration.register
    assert gymnasium.register.__name__ == "register" and hasattr(gymnasium.register, "__wrapped__")
    return gymnasium.make("CartPole-v1")

ProcessVectorEnv([look]).close()
assert not hasattr(gymnasium.register, "__wrapped__")  # the program's own is as it was
"""
    run_with_package(None, body)


def test_the_standard_library_is_not_listed():
    from shoal.process.registry import pickle_registry

    modules = pickle_registry().modules
    assert {"gymnasium", "shoal.process.registry"} <= modules
    assert not {"os", "json", "sys"} & modules and "os" in sys.modules
