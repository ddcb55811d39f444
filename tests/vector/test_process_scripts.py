"""Workers have the program's classes, registered ids, directory, module path and environment variables."""

import textwrap

import pytest

PRELUDE = """
import os, sys, threading
import gymnasium, numpy as np
from gymnasium.spaces import Box, Discrete
import shoal
from shoal.vector import ProcessVectorEnv

"""

UNGUARDED = """
from dataclasses import dataclass

SCALE = 3
built = []


class Refused(Exception):
    def __init__(self, who, why):
        super().__init__(f"{who}: {why}")
        self.who, self.why = who, why


@dataclass
class Note:
    text: str


def scaled(x):
    return x * SCALE


class Own(gymnasium.Env):
    observation_space, action_space = Box(0, 99, (1,)), Discrete(3)

    def __init__(self, who):
        built.append(who)
        self.who = who

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {"note": Note("begun")}

    def step(self, action):
        if action == 2:
            raise Refused(self.who, why=Note("no"))
        return np.full(1, scaled(action), np.float32), 1.0, False, False, {"note": Note(str(self.who))}

    def note(self, given):
        return given, isinstance(given, Note), Note("back")


running = threading.Event()
threading.Thread(target=running.wait, daemon=True).start()  # a program with threads of its own
envs = ProcessVectorEnv([lambda who=who: Own(who) for who in range(3)], num_workers=2)
_, info = envs.reset(seed=0)
assert all(type(note) is Note for note in info["note"]), info
observations, *_, info = envs.step([1, 0, 1])
assert observations.tolist() == [[3], [0], [3]]
assert [note.text for note in info["note"]] == ["0", "1", "2"]
assert info["note"][1] == Note("1")
given, known, back = envs.call("note", Note("there"))[2]
assert known and given == Note("there") and type(back) is Note
import warnings
warnings.simplefilter("ignore")
try:
    envs.step([0, 2, 0])
except Refused as error:
    assert type(error) is Refused and error.why == Note("no") and error.env_id == error.who == 1
    assert "raise Refused" in str(error.__cause__)
else:
    raise AssertionError("nothing was raised")
assert built == []  # nothing was made here
again = ProcessVectorEnv([lambda: Own(7)] * 2)  # a second one shares the classes
assert type(again.reset()[1]["note"][0]) is Note
again.close()
envs.close()
print("done")
"""


def test_a_script_needs_no_guard_and_gets_its_own_classes_back(run_python):
    assert run_python(PRELUDE + UNGUARDED) == "done\n"


def test_a_guarded_script_gets_its_own_classes_back_from_spawned_workers(run_python):
    head, tail = UNGUARDED.split("running =")
    body = ("running =" + tail).replace("num_workers=2)", "num_workers=2, context='spawn')")
    guarded = head + "\nif __name__ == '__main__':\n" + textwrap.indent(body, "    ")
    assert run_python(PRELUDE + guarded) == "done\n"


REGISTERED = """
class Own(gymnasium.Env):
    observation_space, action_space = Box(0, 99, (1,)), Discrete(2)

    def __init__(self, start=0):
        self.start = start

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.full(1, self.start, np.float32), {}

    def step(self, action):
        return np.full(1, self.start, np.float32), 0.0, False, False, {}


gymnasium.register("Own-v0", entry_point=Own, kwargs={"start": 4})
gymnasium.register("Own-v1", entry_point=lambda start: Own(start + 1), max_episode_steps=2)
gymnasium.register(
    "Short-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=3
)
envs = ProcessVectorEnv(
    [lambda: gymnasium.make("Own-v0"), lambda: gymnasium.make("Own-v1", start=6)], num_workers=2
)
assert envs.reset()[0].tolist() == [[4], [7]]
assert [envs.step([0, 0])[3].tolist() for _ in range(2)] == [[False, False], [False, True]]
envs.close()
for name, first in {"Own-v0": 4, "Short-v0": None}.items():
    envs = shoal.make_vec(name, 2, num_workers=2)
    assert envs.spec.id == name
    seen = envs.reset(seed=0)[0]
    assert first is None or seen.tolist() == [[first]] * 2
    envs.close()
envs = ProcessVectorEnv([lambda: gymnasium.make("Short-v0")] * 2, num_workers=2)
envs.reset(seed=0)
assert [bool(envs.step([0, 1])[3].all()) for _ in range(4)] == [False, False, True, False]
envs.close()
gymnasium.register("Later-v0", entry_point=Own, kwargs={"start": 9})  # after workers were started before
envs = ProcessVectorEnv([lambda: gymnasium.make("Later-v0")])
assert envs.reset()[0].tolist() == [[9]]
envs.close()
print("done")
"""


def test_environments_registered_in_a_script_are_known_to_the_workers(run_python):
    assert run_python(PRELUDE + REGISTERED) == "done\n"


SURROUNDINGS = """
class Where(gymnasium.Env):
    observation_space, action_space = Box(0, 1, (1,)), Discrete(2)

    def __init__(self):
        self.made_in = os.getcwd()
        try:
            import own_helper
            self.helper = own_helper.VALUE
        except ImportError:
            self.helper = None

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def told(self):
        return self.made_in, os.environ.get("OWN"), os.environ.get("GONE"), self.helper, sys.argv[1]


def told():
    with ProcessVectorEnv([Where] * 2, num_workers=2) as envs:
        one, other = envs.call("told")
        assert one == other
        return one


first, second = os.path.abspath("first"), os.path.abspath("second")
for directory in (first, second):
    os.mkdir(directory)
with open(os.path.join(second, "own_helper.py"), "w") as file:
    file.write("VALUE = 17\\n")
os.environ["GONE"] = "here"
os.chdir(first)
assert told() == (first, None, "here", None, "argument"), told()
os.chdir(second)
os.environ["OWN"] = "set"
del os.environ["GONE"]
sys.path.insert(0, second)
assert told() == (second, "set", None, 17, "argument"), told()
import own_helper
with ProcessVectorEnv([Where] * 2) as envs:
    envs.set_attr("helper", own_helper)  # a module goes by its name
    assert envs.call("told")[1][3] is own_helper
print("done")
"""


def test_workers_have_the_current_directory_path_and_environment(run_python, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_python(PRELUDE + SURROUNDINGS, "argument") == "done\n"


def test_output_of_environments_goes_to_the_programs_output(run_python, tmp_path):
    script = """
class Loud(gymnasium.Env):
    observation_space, action_space = Box(0, 1, (1,)), Discrete(2)

    def reset(self, *, seed=None, options=None):
        print("reset")
        return np.zeros(1, np.float32), {}


with ProcessVectorEnv([Loud]) as envs:
    envs.reset()
print("redirected", flush=True)
os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), 1)
with ProcessVectorEnv([Loud]) as envs:
    envs.reset()
print("done", flush=True)
"""
    assert run_python(PRELUDE + script, tmp_path / "out") == "reset\nredirected\n"
    assert (tmp_path / "out").read_text() == "reset\ndone\n"


def test_program_without_close_exits_and_prints_nothing(run_python):
    script = """
envs = shoal.make_vec("FrozenLake-v1", 2, num_workers=2)
envs.reset(seed=0)
envs.step_async([0, 0])
kept = [envs]  # still there when the interpreter ends
print(*envs.worker_pids)
"""
    pids = run_python(PRELUDE + script).split()
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(FileNotFoundError):
            open(f"/proc/{pid}/stat")
