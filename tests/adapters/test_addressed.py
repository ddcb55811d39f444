"""What the adapter for SB3 sends to workers, with a stand-in for SB3: neither it nor torch is needed here."""

PACKAGES = {
    "torch/__init__.py": "",
    "stable_baselines3/__init__.py": "import torch\n",
    "stable_baselines3/common/__init__.py": "",
    "stable_baselines3/common/buffers.py": """
class BaseBuffer: ...
class ReplayBuffer: ...
class DictReplayBuffer: ...
class NStepReplayBuffer: ...
""",
    "stable_baselines3/common/type_aliases.py": """
DictReplayBufferSamples = ReplayBufferSamples = None
""",
    "stable_baselines3/common/vec_env.py": """
class VecEnv:
    def __init__(self, num_envs, observation_space, action_space):
        self.num_envs = num_envs
""",
}

SCRIPT = """
import sys
import gymnasium, numpy as np

sys.path.insert(0, sys.argv[1])
from shoal.adapters import sb3

assert {"torch", "stable_baselines3"} <= set(sys.modules)


class Look(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, level=0, render_mode=None):
        self.level = level

    def find_heavy(self):
        return sorted({"torch", "stable_baselines3", "shoal.adapters.sb3"} & set(sys.modules))


gymnasium.register("Look-v0", entry_point=Look)
for env, number in ((Look, 2), ("Look-v0", 2), ([Look, lambda: Look()], None)):
    made = sb3.make(env, number, num_workers=1)
    assert made.envs.call("find_heavy") == ([], []), made.envs.call("find_heavy")
    made.envs.close()
made = sb3.make([Look] * 3, num_workers=2, level=4, render_mode="rgb_array")
assert made.num_envs == 3 and made.envs.get_attr("level") == (4, 4, 4)
made.envs.close()
print("done")
"""


def test_workers_import_no_learning_library(run_python, tmp_path):
    for name, source in PACKAGES.items():
        path = tmp_path / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    assert run_python(SCRIPT, tmp_path / "lib") == "done\n"
