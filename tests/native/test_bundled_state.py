"""What Squared, Snake and CartPole export of themselves, beside what they let an agent observe."""

from __future__ import annotations

import numpy as np
import pytest

from tests.native.conftest import REAL
from tests.native.state_host import StateHost

pytestmark = pytest.mark.skipif(REAL is None, reason="no C compiler: install gcc or clang")


def made(name, num_envs=1, **options):
    host = StateHost(f"envs/{name}/{name}.c", num_envs, 3, **options)
    host.exported(num_envs - 1)  # before the first reset too
    host.reset()
    return host


@pytest.mark.parametrize("size", [3, 11, 255])
def test_squared_shows_its_board_and_the_agent_where_it_is(size):
    host = made("squared", 2, size=size)
    rng = np.random.default_rng(0)
    outside = 0
    for _ in range(40):
        for env in range(2):
            fields = host.exported(env)
            board, agent = fields["board"], fields["agent"]
            seen = host.observations[""][env]
            np.testing.assert_array_equal(board.data, np.where(seen == 1, board.data, seen))
            assert board.role == "grid" and board.data.shape == (size, size) and (board.data == 2).sum() == 1
            assert agent.role == "entities" and agent.columns == ["kind", "r", "c"]
            places = np.argwhere(seen == 1).tolist()
            assert agent.data.tolist() == [[1, *(places[0] if places else (-1, -1))]]
            outside += not places
        host.step(rng.integers(0, 5, 2), host.terminated[:2])
    assert outside > 0 or size > 3, "who has left the board is not there"


@pytest.mark.parametrize("agents", [1, 4, 250])
def test_snake_shows_its_board_heads_and_lengths(agents):
    vision = 3
    host = made("snake", 2, agents=agents, width=30, height=20, vision=vision, food=40)
    rng = np.random.default_rng(0)
    grown = 0
    for _ in range(60):
        host.step(rng.integers(0, 4, 2 * agents))
        for env in range(2):
            fields = host.exported(env)
            board, heads, lengths = fields["board"], fields["heads"], fields["lengths"]
            assert board.data.shape == (20 + 2 * vision, 30 + 2 * vision)
            assert set(board.categories) == set(range(3 + agents)) >= set(np.unique(board.data).tolist())
            assert (board.data[:vision] == 2).all() and (board.data[:, -vision:] == 2).all()
            counts = np.bincount(board.data.ravel(), minlength=3 + agents)
            np.testing.assert_array_equal(lengths.data, counts[3:])
            grown = max(grown, lengths.data.max())
            assert heads.columns == ["kind", "r", "c", "dir"]
            for agent, (_, r, c, direction) in enumerate(heads.data):
                window = board.data[r - vision : r + vision + 1, c - vision : c + vision + 1]
                kinds = np.select(
                    [window == 3 + agent, window > 2, window == 2], [2, 3, 4], window.astype(int)
                )
                np.testing.assert_array_equal(host.observations[""][env * agents + agent], kinds)
                assert 0 <= direction < 4
    assert grown > 1


def test_a_snakes_head_faces_where_it_went():
    host = made("snake", agents=1, width=9, height=9, food=0)
    for action, direction, move in [(0, 2, (1, 0)), (1, 0, (-1, 0)), (2, 3, (0, -1)), (3, 1, (0, 1))]:
        before = host.state()["heads"][0]
        host.step(action)
        after = host.state()["heads"][0]
        if not host.terminated[0]:
            assert (after[1] - before[1], after[2] - before[2], after[3]) == (*move, direction)


@pytest.mark.parametrize("precision", ["double", "float"])
def test_cartpole_shows_the_numbers_of_its_own_lane(precision):
    host = made("cartpole", 70, precision=precision)
    for step in range(30):
        host.step(np.arange(70) * 7 % 3 > step % 2)
        for env in (0, 1, 31, 32, 69):
            field = host.exported(env)["state"]
            assert field.role == "scalar" and field.columns == ["x", "x_dot", "theta", "theta_dot"]
            assert field.data.dtype == np.float64
            np.testing.assert_array_equal(field.data.astype(np.float32), host.observations[""][env])
