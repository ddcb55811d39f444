"""Pictures and names in snapshots of C environments, on every backend, and in `shoal watch --png`."""

import importlib

import numpy as np
import pytest

import shoal
from shoal.state import render
from shoal.viewer import commands
from tests.state.worlds import STATEFUL
from tests.viewer.pictures import decode_png

Session = importlib.import_module("shoal.state.attach").Session
BACKENDS = {
    "native": {},
    "process": {"backend": "process", "num_workers": 2},
    "flow": {"batch_size": 2},
}


def step_once(envs):
    if envs.batch_size is None:
        envs.step(np.zeros(envs.action_space.shape, envs.action_space.dtype))
        return
    ids = envs.recv()[4]["env_id"]
    envs.send(np.zeros(len(ids), np.int64), ids)


@pytest.fixture
def watch():
    """Makes a vector environment and returns it with the first snapshot of an environment."""
    made = []

    def start(name, env=2, num_envs=4, backend="native", **options):
        envs = shoal.make_vec(name, num_envs, session="pictures", **BACKENDS[backend], **options)
        session = shoal.attach("pictures")
        made.extend([session, envs])
        envs.reset(seed=0) if envs.batch_size is None else envs.async_reset(seed=0)
        session.watch([env], 60)
        for _ in range(100_000):
            if session.latest(env) is not None:
                return envs, session.latest(env)[1]
            step_once(envs)
        raise AssertionError("no snapshot was published")

    yield start
    for one in made:
        one.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_snapshot_has_the_environments_picture(watch, backend):
    envs, snapshot = watch("CartPole-v1", backend=backend)
    assert snapshot.error == "" and list(snapshot.world) == ["state"]
    frame = snapshot.step["frame"]
    assert (frame.role, frame.data.shape, frame.data.dtype) == ("image", (400, 600, 3), np.uint8)
    # The picture is of the same moment as the state: the cart is where the state says.
    x = snapshot.world["state"].data[0]
    cart = np.flatnonzero((frame.data[310] == 0).all(-1))
    assert cart.mean() == pytest.approx(300 + 125 * x, abs=1)
    assert (render(snapshot, legend=False, caption=False) == frame.data).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_observations_actions_and_state_have_their_names(watch, backend):
    _, snapshot = watch("CartPole-v1", backend=backend)
    assert snapshot.step["observation"].columns == (
        "cart position, m",
        "cart velocity, m/s",
        "pole angle, rad",
        "pole angular velocity, rad/s",
    )
    assert snapshot.world["state"].columns == ("x", "x_dot", "theta", "theta_dot")
    named = {one.value: one.name for one in snapshot.step["action"].categories}
    assert named == {0: "push left", 1: "push right"}


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("MountainCar-v0", ("position", "velocity")),
        ("MountainCarContinuous-v0", ("position", "velocity")),
        ("Pendulum-v1", ("theta", "theta_dot")),
        ("Acrobot-v1", ("theta_1", "theta_2", "theta_dot_1", "theta_dot_2")),
    ],
)
def test_classic_control_exports_its_state(watch, name, columns):
    _, snapshot = watch(name)
    state, observation = snapshot.world["state"], snapshot.step["observation"]
    assert state.columns == columns and state.data.dtype == np.float64
    assert len(observation.columns) == observation.data.shape[-1]
    shown = {"Pendulum-v1": [np.cos(state.data[0]), np.sin(state.data[0]), state.data[1]]}.get(name)
    if name.startswith("Mountain"):
        shown = state.data
    if name == "Acrobot-v1":
        first, second = state.data[:2]
        shown = [np.cos(first), np.sin(first), np.cos(second), np.sin(second), *state.data[2:]]
    assert np.allclose(shown, observation.data, atol=1e-5)


@pytest.mark.parametrize("name", ["Squared-v0", "Snake-v0", "Reef-v0"])
def test_a_world_that_viewers_draw_is_sent_without_a_picture(watch, name):
    envs, snapshot = watch(name, num_envs=3)
    assert envs.has_extension("shoal.render/1") and "frame" not in snapshot.step
    assert any(field.role in ("grid", "entities") for field in snapshot.world.values())


def test_names_of_several_agents_are_of_the_last_dimension(watch):
    _, snapshot = watch("Reef-v0", num_envs=3)
    field = snapshot.step["observation/self"]
    assert field.data.ndim == 2 and len(field.columns) == field.data.shape[1]


def test_a_plugin_without_pictures_and_texts_is_shown_without(watch):
    _, snapshot = watch(STATEFUL)
    assert "frame" not in snapshot.step and snapshot.step["observation"].columns == ()


def test_a_picture_that_cannot_be_drawn_is_told_and_the_rest_is_shown(watch, tmp_path):
    source = tmp_path / "huge.c"
    source.write_text(HUGE)
    _, snapshot = watch(source, num_envs=3)
    assert "picture size" in snapshot.error
    assert "observation" in snapshot.step and "frame" not in snapshot.step


HUGE = """
#include <shoal/ext/render.h>
#include <string.h>
static const char *describe(const shoal_value *options, shoal_spec *spec) {
    (void)options;
    shoal_field one = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .low = 0, .high = 1};
    spec->instance_bytes = 8;
    spec->add_observation(spec->host, &one);
    spec->add_action(spec->host, &one);
    return 0;
}
static void zero(shoal_envs *envs, uint64_t begin, uint64_t end) {
    for (uint64_t env = begin; env < end; env++)
        *SHOAL_OBSERVATION(int64_t, envs, 0, env) = 0;
}
static void size(shoal_envs *envs, uint64_t env, uint32_t *height, uint32_t *width) {
    (void)envs, (void)env;
    *height = *width = 1u << 30;
}
static void draw(shoal_envs *envs, uint64_t env, uint8_t *rgb) { (void)envs, (void)env, (void)rgb; }
static const void *get_extension(const char *id) {
    static const shoal_render_v1 render = {.size = size, .draw = draw};
    return strcmp(id, SHOAL_EXT_RENDER) == 0 ? &render : 0;
}
const shoal_entry_v1 shoal_entry = {.abi_major = SHOAL_ABI_MAJOR, .abi_minor = SHOAL_ABI_MINOR,
    .name = "Huge-v0", .describe = describe, .reset = zero, .step = zero, .get_extension = get_extension};
"""


def test_shoal_watch_png_writes_the_picture(watch, tmp_path, monkeypatch, capsys):
    _, snapshot = watch("Pendulum-v1")
    monkeypatch.setattr(Session, "snapshot", lambda *arguments, **keywords: snapshot)  # of a moving run
    path = tmp_path / "pendulum.png"
    assert commands.picture("pictures", 2, str(path), 5.0) == 0
    assert capsys.readouterr().out.strip() == str(path)
    pixels = decode_png(path.read_bytes())
    assert (pixels[:500] == snapshot.step["frame"].data).all() and len(pixels) > 500  # the caption is below
