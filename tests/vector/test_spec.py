"""`envs.spec` is what gymnasium.make_vec sets, and makes the same environments again."""

import shutil
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import shoal
from shoal.vector import ProcessVectorEnv, VectorEnv

SQUARED = Path(__file__).parent.parent.parent / "envs" / "squared" / "squared.c"


def test_a_native_environment_has_the_spec_that_gymnasium_sets():
    with (
        shoal.make_vec("CartPole-v1", 3, buffers="live", max_episode_steps=20) as ours,
        gymnasium.make_vec("shoal/CartPole-v1", 3, buffers="live", max_episode_steps=20) as theirs,
    ):
        assert ours.spec.id == "shoal/CartPole-v1"
        assert ours.spec.kwargs == theirs.spec.kwargs
        assert (ours.spec.max_episode_steps, ours.spec.reward_threshold) == (500, 475.0)


def test_a_python_environment_has_the_spec_that_gymnasium_sets():
    keywords = {"vectorization_mode": "async", "map_name": "8x8", "vector_kwargs": {"context": "fork"}}
    theirs = gymnasium.make_vec("FrozenLake-v1", 2, **keywords)
    with shoal.make_vec("FrozenLake-v1", 2, **keywords) as ours:
        assert ours.spec == theirs.spec
    theirs.close()


@pytest.mark.parametrize(
    ("keywords", "kind"),
    [
        ({"buffers": "live", "autoreset_mode": AutoresetMode.SAME_STEP, "num_threads": 1}, VectorEnv),
        ({"backend": "process", "num_workers": 1, "buffers": "live"}, ProcessVectorEnv),
        ({"vectorization_mode": "async"}, ProcessVectorEnv),
        ({"size": 5}, VectorEnv),
    ],
)
@pytest.mark.parametrize("env", ["Squared-v0", "path"])
def test_the_spec_makes_the_same_environments_again(env, keywords, kind, tmp_path):
    if env == "path":
        env = tmp_path / "squared.c"
        shutil.copy(SQUARED, env)
    with shoal.make_vec(env, 3, session="once", **keywords) as envs:
        spec, first = envs.spec, envs.reset(seed=0)[0]
        with shoal.make_vec(spec) as again:
            assert type(envs) is type(again) is kind and again.spec.kwargs == spec.kwargs
            assert (again.num_envs, again.buffers, again.options) == (3, envs.buffers, envs.options)
            assert again.autoreset_mode == envs.autoreset_mode
            assert np.array_equal(again.reset(seed=0)[0], first)


def test_a_native_environment_given_by_its_path_has_a_spec_that_gymnasium_makes(tmp_path):
    shutil.copy(SQUARED, tmp_path / "mine.c")
    with shoal.make_vec(tmp_path / "mine.c", 2) as envs:
        spec = envs.spec
        assert spec.id == "Squared-v0"
    with gymnasium.make_vec(spec) as again:
        assert isinstance(again, VectorEnv) and again.num_envs == 2


def test_a_plugin_whose_name_is_no_id_has_no_spec(tmp_path):
    (tmp_path / "odd.c").write_text(SQUARED.read_text().replace('"Squared-v0"', '"an odd name"'))
    for backend in ("native", "process"):
        with shoal.make_vec(tmp_path / "odd.c", 2, backend=backend) as envs:
            assert envs.spec is None
