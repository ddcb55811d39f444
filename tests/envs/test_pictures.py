"""Pictures of classic control and Squared: as Gymnasium draws them, with the same bytes, of any state."""

import os
import zlib

import gymnasium
import numpy as np
import pytest

import shoal
from shoal.native.plugin import bundled, load

CLASSIC = {  # height, width, pictures per second, bytes of one environment
    "CartPole-v1": (400, 600, 50, 32),
    "MountainCar-v0": (400, 600, 30, 16),
    "MountainCarContinuous-v0": (400, 600, 30, 16),
    "Pendulum-v1": (500, 500, 30, 16),
    "Acrobot-v1": (500, 500, 15, 32),
}
STATES = {
    "CartPole-v1": [
        [0, 0, 0, 0],
        [-1.3, 0, 0.2, 0],
        [2.4, 1, -0.21, 3],
        [0.517, 0, 0.1337, 0],
        [-2.39, 0, 0, 0],
    ],
    "MountainCar-v0": [[-0.5, 0], [-1.2, 0], [0.6, 0.07], [0.1234, 0.01], [-0.9, -0.03]],
    "MountainCarContinuous-v0": [[-0.5, 0], [-1.2, 0], [0.6, 0.07], [0.3, 0], [-0.75, 0]],
    "Pendulum-v1": [[0, 0], [np.pi, 1], [1.5708, 0], [-2.5, 8], [100.3, 0]],
    "Acrobot-v1": [[0, 0, 0, 0], [1, -0.5, 0, 0], [np.pi, 0, 1, 1], [-2.2, 3, 0, 0], [0.3, -2.9, 0, 0]],
}
COLORS = {  # the solid parts of each picture
    "CartPole-v1": {"pole": (202, 152, 101), "axle": (129, 132, 203), "cart": (0, 0, 0)},
    "MountainCar-v0": {"wheels": (128, 128, 128), "flag": (204, 204, 0)},
    "MountainCarContinuous-v0": {"wheels": (128, 128, 128), "flag": (204, 204, 0)},
    "Pendulum-v1": {"rod": (204, 77, 77), "axle": (0, 0, 0)},
    "Acrobot-v1": {"links": (0, 204, 204), "joints": (204, 204, 0)},
}
OUTLINES = {  # pixels along the edges of all parts that are not on whole pixels
    "CartPole-v1": 2 * (50 + 30) + 2 * (125 + 10) + 2 * np.pi * 5,
    "MountainCar-v0": 2 * 1000 + 2 * (40 + 20) + 4 * np.pi * 8 + 2 * 50 + 60,
    "MountainCarContinuous-v0": 2 * 1000 + 2 * (40 + 20) + 4 * np.pi * 8 + 2 * 50 + 60,
    "Pendulum-v1": 2 * 114 + 2 * np.pi * 11.4 * 2 + 2 * np.pi * 6,
    "Acrobot-v1": 2 * (2 * 114 + 2 * 23) + 2 * np.pi * 11.4 * 2,
}
CASES = [(name, state) for name, states in STATES.items() for state in states]


def set_state(envs, env, state):
    """Writes the state of one environment into its lane of the block."""
    dtype = np.float32 if envs.options.get("precision") == "float" else np.float64
    numbers = envs._backend._state["instances"].reshape(-1).view(dtype)
    for at, value in enumerate(state):
        numbers[env // 32 * 32 * len(state) + at * 32 + env % 32] = value


def draw(name, state, num_envs=1, env=0, **options):
    with shoal.make_vec(name, num_envs, session=None, render_mode="rgb_array", **options) as envs:
        envs.reset(seed=0)
        set_state(envs, env, state)
        assert np.allclose(envs.state_arrays(env)["state"], state, equal_nan=True)
        return envs.render()[env]


@pytest.fixture(scope="module")
def gymnasium_pictures():
    """Gymnasium's own picture of each state."""
    pytest.importorskip("pygame", reason="needs pygame: make test-viewer")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    pictures = {}
    for name, states in STATES.items():
        env = gymnasium.make(name, render_mode="rgb_array")
        env.reset(seed=0)
        for at, state in enumerate(states):
            env.unwrapped.state = np.array(state, np.float64)
            if name == "Pendulum-v1":
                env.unwrapped.last_u = None  # which would be drawn as an arrow
            pictures[name, at] = env.render()
        env.close()
    return pictures


def find_solid(picture, color):
    """Rows and columns of the pixels that have the colour, with all their neighbours: not edges or lines."""
    padded = np.pad((picture == color).all(-1), 1, constant_values=False)
    return np.argwhere(np.lib.stride_tricks.sliding_window_view(padded, (3, 3)).all((-1, -2)))


@pytest.mark.parametrize(("name", "at"), [(name, at) for name in STATES for at in range(5)])
def test_the_picture_is_gymnasiums_but_for_the_edges(name, at, gymnasium_pictures):
    ours, theirs = draw(name, STATES[name][at]).astype(int), gymnasium_pictures[name, at].astype(int)
    assert ours.shape == theirs.shape == (*CLASSIC[name][:2], 3)
    # Gymnasium rounds coordinates to whole pixels: each edge may be one pixel off, and smooth or not.
    most = 255 * OUTLINES[name] / ours[..., 0].size
    assert np.abs(ours - theirs).mean() < most
    # The same must not hold for a picture of another state.
    other = gymnasium_pictures[name, (at + 1) % 5].astype(int)
    assert np.abs(ours - theirs).mean() < 0.5 * np.abs(ours - other).mean()
    for part, color in COLORS[name].items():
        mine, yours = find_solid(ours, color), find_solid(theirs, color)
        assert len(mine) and len(yours), part
        assert abs(len(mine) - len(yours)) < 8 * np.sqrt(len(yours)), (
            part
        )  # less than two pixels at each edge
        assert np.abs(mine.mean(0) - yours.mean(0)).max() < 2, part
        for end in (5, 95):
            assert np.abs(np.percentile(mine, end, 0) - np.percentile(yours, end, 0)).max() <= 3, (
                part
            )  # 3: at the tip of the flag


def test_the_tip_of_the_pole_is_where_the_angle_says():
    for x, angle in [(0, 0.2), (1.1, -0.1), (-2, 0.0), (0.4, 1.5)]:
        picture = draw("CartPole-v1", [x, 0, angle, 0])
        axle = np.array([300 + 125 * x, 292.5])
        for along, expected in ((110, (202, 152, 101)), (0, (129, 132, 203)), (130, (255, 255, 255))):
            column, row = axle + along * np.array([np.sin(angle), -np.cos(angle)])
            assert tuple(picture[int(row), int(column)]) == expected
        assert (picture[299, :10] == 0).all() and (picture[298, :10] == 255).all()  # the track


def test_a_picture_has_smooth_edges():
    picture = draw("Pendulum-v1", [0.3, 0])
    between = (picture[..., 1] > 90) & (picture[..., 1] < 240)
    assert 100 < between.sum() < 1000


CHECKSUMS = {  # of the pictures in STATES
    "CartPole-v1": 1690600999,
    "MountainCar-v0": 292765181,
    "MountainCarContinuous-v0": 4210212454,
    "Pendulum-v1": 3667966084,
    "Acrobot-v1": 1108736488,
}


@pytest.mark.parametrize("name", CLASSIC)
def test_the_same_state_gives_the_same_bytes(name):
    found = 0
    for state in STATES[name]:
        state = np.array(state, np.float32)  # also exact in single precision
        picture = draw(name, state)
        assert (picture == draw(name, state, num_envs=70, env=37)).all()
        assert (picture == draw(name, state, precision="float")).all()
        found = zlib.crc32(picture.tobytes(), found)
    assert found == CHECKSUMS[name]


@pytest.mark.parametrize("name", CLASSIC)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300, -1e300, 1e9, -50.0, 5e-324])
def test_a_broken_state_is_drawn_without_what_it_breaks(name, value):
    height, width, _, bytes_ = CLASSIC[name]
    picture = draw(name, [value] * (bytes_ // 8))
    assert picture.shape == (height, width, 3)
    color = {"CartPole-v1": (0, 0, 0), "Acrobot-v1": (204, 204, 0), "Pendulum-v1": (0, 0, 0)}.get(
        name, (204, 204, 0)
    )
    assert (picture == color).all(-1).any()  # the track, the fixed joint, the axle, the flag
    assert (picture == 255).all(-1).mean() > 0.5


@pytest.mark.parametrize("name", CLASSIC)
def test_drawing_changes_nothing_and_needs_no_memory_in_an_environment(name):
    info = load(bundled()[name], {})
    assert info.instance_bytes == CLASSIC[name][3]
    assert info.plugin.render_fps == CLASSIC[name][2]
    results = []
    for drawn in (False, True):
        with shoal.make_vec(name, 33, session=None, render_mode="rgb_array") as envs:
            assert envs.metadata["render_fps"] == CLASSIC[name][2]
            envs.reset(seed=3)
            envs.action_space.seed(3)
            for _ in range(30):
                last = envs.step(envs.action_space.sample())
                if drawn:
                    envs.render_env(32)
            results.append([*(np.copy(part) for part in last[:4]), envs.save_env(32)])
    assert all(np.array_equal(one, other) for one, other in zip(*results, strict=True))


def test_pendulum_is_drawn_like_gymnasium_turns():
    for angle, (row, column) in {0: (150, 250), np.pi / 2: (250, 150), -np.pi / 2: (250, 350)}.items():
        assert tuple(draw("Pendulum-v1", [angle, 0])[row, column]) == (204, 77, 77)


def draw_squared(size, row, column, goal_row, goal_column):
    with shoal.make_vec("Squared-v0", 2, size=size, session=None, render_mode="rgb_array") as envs:
        envs.reset(seed=0)
        numbers = envs._backend._state["instances"].view(np.int32)
        numbers[1] = size, row, column, goal_row, goal_column
        return envs.render()[1]


@pytest.mark.parametrize("size", [3, 11, 63, 65, 255])
def test_squared_is_a_board_with_a_goal_and_an_agent(size):
    picture, cell = draw_squared(size, 1, 0, 2, size - 1), 512 / size
    assert picture.shape == (512, 512, 3)

    def at(row, column):
        return tuple(picture[int((row + 0.5) * cell), int((column + 0.5) * cell)])

    blue, red, white = (0, 0, 255), (255, 0, 0), (255, 255, 255)
    if cell < 4:  # the pixels are mixed
        (r, _, b), (goal_r, _, goal_b) = np.array([at(1, 0), at(2, size - 1)], int)
        assert b > r + 50 and goal_r > goal_b + 50
    else:
        assert (at(1, 0), at(2, size - 1), at(0, 1)) == (blue, red, white)
    has_lines = (picture[:, int(1.5 * cell)] == 0).all(-1).any()
    assert has_lines == (size <= 63)  # small cells have none


def test_squared_draws_an_agent_that_left_the_board():
    for row, column in ((-1, 5), (11, 5), (5, -1), (5, 11), (2**31 - 1, -(2**31))):
        picture = draw_squared(11, row, column, 0, 0)
        assert not (picture == (0, 0, 255)).all(-1).any()
        assert (picture == (255, 0, 0)).all(-1).any()


@pytest.mark.filterwarnings("ignore:.*render_mode='ansi'")
@pytest.mark.parametrize("name", [*CLASSIC, "Squared-v0"])
def test_a_single_environment_draws_the_same(name):
    with shoal.make_vec(name, 1, session=None, render_mode="rgb_array") as envs:
        envs.reset(seed=7)
        expected = envs.render()[0]
    env = gymnasium.make(f"shoal/{name}", render_mode="rgb_array")
    env.reset(seed=7)
    assert (env.render() == expected).all()
    assert env.metadata["render_fps"] == load(bundled()[name], {}).plugin.render_fps > 0
    env.close()
    with pytest.raises(ValueError, match="render_mode must be None or 'rgb_array' for .*, got 'ansi'"):
        gymnasium.make(f"shoal/{name}", render_mode="ansi", disable_env_checker=True)
