"""Snake-v0: its rules case by case on boards arranged by hand, and any play against a model in Python."""

from __future__ import annotations

import numpy as np
import pytest

from .snake_model import DOWN, EMPTY, FOOD, LEFT, OTHER, OWN, RIGHT, UP, WALL, Board, Model, make


def arranged(snakes, foods=(), width=5, height=5, vision=2, food=0):
    """A board with these snakes, each given by its cells from tail to head; eaten food stays away."""
    host = make(width=width, height=height, agents=len(snakes), vision=vision, food=food)
    host.reset_all()
    Board(host).arrange(snakes, list(foods))
    return host


def after(host, *actions):
    """Plays one step; (rewards, terminated, lengths) after it."""
    host.step(actions)
    host.check_canaries()
    return host.rewards.tolist(), host.terminated.tolist(), Board(host).lengths()


ALIVE = ([0.0], [0])
DEAD = ([-1.0], [1], [1])


def test_snake_moves_in_the_direction_of_its_action():
    for action, (line, column) in {DOWN: (3, 2), UP: (1, 2), LEFT: (2, 1), RIGHT: (2, 3)}.items():
        host = arranged([[(2, 2)]])
        assert after(host, action) == (*ALIVE, [1])
        assert Board(host).bodies["head"][0] == Board(host).index((line, column))


def test_eating_is_worth_one_and_grows_the_snake_by_one_cell_at_once():
    host = arranged([[(2, 0), (2, 1)]], foods=[(2, 2)])
    assert after(host, RIGHT) == ([1.0], [0], [3])
    assert after(host, RIGHT) == (*ALIVE, [3])
    host = arranged([[(2, 1)]], foods=[(2, 2), (2, 3)])
    assert after(host, RIGHT) == ([1.0], [0], [2])
    assert after(host, RIGHT) == ([1.0], [0], [3])


def test_eaten_food_comes_back_in_an_empty_cell():
    host = arranged([[(0, 0)]], foods=[(0, 1)], width=2, height=2, food=1)
    assert after(host, RIGHT) == ([1.0], [0], [2])
    seen = host.observations[0]
    assert (seen == FOOD).sum() == 1
    assert (seen == OWN).sum() == 2


@pytest.mark.parametrize(
    ("cell", "action"), [((0, 2), UP), ((4, 2), DOWN), ((2, 0), LEFT), ((2, 4), RIGHT)], ids=str
)
def test_a_wall_is_deadly(cell, action):
    inner = (2, 2)
    between = ((cell[0] + inner[0]) // 2, (cell[1] + inner[1]) // 2)
    assert after(arranged([[inner, between, cell]]), action) == DEAD
    assert after(arranged([[cell]]), action) == DEAD


def test_its_own_body_is_deadly():
    curled = [(1, 1), (1, 2), (1, 3), (2, 3), (2, 2)]
    assert after(arranged([curled]), UP) == DEAD


def test_the_cell_its_own_tail_leaves_is_free():
    square = [(1, 1), (1, 2), (2, 2), (2, 1)]
    assert after(arranged([square]), UP) == (*ALIVE, [4])


def test_anothers_body_is_deadly_and_the_other_goes_on():
    host = arranged([[(2, 0), (2, 1)], [(0, 2), (1, 2), (2, 2), (3, 2)]])
    assert after(host, RIGHT, DOWN) == ([-1.0, 0.0], [1, 0], [1, 4])


def test_the_cell_anothers_tail_leaves_is_free_unless_the_other_eats():
    snakes = [[(2, 0), (2, 1)], [(2, 2), (1, 2), (0, 2)]]
    assert after(arranged(snakes), RIGHT, LEFT) == ([0.0, 0.0], [0, 0], [2, 3])
    host = arranged(snakes, foods=[(0, 1)])
    assert after(host, RIGHT, LEFT) == ([-1.0, 1.0], [1, 0], [1, 4])


@pytest.mark.parametrize("order", [1, -1])
def test_two_heads_that_meet_in_a_cell_both_die_and_nobody_eats(order):
    snakes = [[(2, 0), (2, 1)], [(2, 4), (2, 3)]]
    actions = [RIGHT, LEFT]
    for foods in ([], [(2, 2)]):
        host = arranged(snakes[::order], foods)
        assert after(host, *actions[::order]) == ([-1.0, -1.0], [1, 1], [1, 1])
        assert (host.observations != FOOD).all()
        assert Board(host).numbers[6] == 0


def test_three_heads_that_meet_in_a_cell_all_die():
    host = arranged([[(2, 1)], [(2, 3)], [(1, 2)]])
    assert after(host, RIGHT, LEFT, DOWN) == ([-1.0] * 3, [1] * 3, [1] * 3)


@pytest.mark.parametrize("length", [1, 2])
def test_two_snakes_cannot_pass_through_each_other(length):
    snakes = [[(2, 0), (2, 1)][-length:], [(2, 3), (2, 2)][-length:]]
    assert after(arranged(snakes), RIGHT, LEFT) == ([-1.0] * 2, [1] * 2, [1] * 2)


def test_where_a_head_was_is_deadly_even_if_the_snake_is_one_cell_long():
    assert after(arranged([[(2, 1)], [(2, 2)]]), RIGHT, RIGHT) == ([-1.0, 0.0], [1, 0], [1, 1])


def test_turning_back_on_itself_goes_straight_on():
    host = arranged([[(2, 1), (2, 2)]])
    assert after(host, LEFT) == (*ALIVE, [2])
    assert Board(host).bodies["head"][0] == Board(host).index((2, 3))
    host = arranged([[(1, 2), (2, 2)]])
    assert after(host, UP) == (*ALIVE, [2])
    assert Board(host).bodies["head"][0] == Board(host).index((3, 2))


def test_dead_snake_respawns_in_the_same_step_and_observes_it():
    host = arranged([[(0, 3), (0, 4)], [(4, 0)]], width=5, vision=5)
    assert after(host, RIGHT, UP) == ([-1.0, 0.0], [1, 0], [1, 1])
    seen = host.observations[0]
    assert seen[5, 5] == OWN
    assert (seen == OWN).sum() == 1
    assert (host.observations[1] == OTHER).sum() == 1
    assert (host.observations[1] == OWN).sum() == 1
    for _ in range(8):  # and lives on
        host.step([RIGHT, RIGHT])
        assert (host.observations[0] == OWN).sum() == 1


def test_a_window_shows_what_lies_round_the_head():
    host = arranged([[(1, 0), (0, 0)], [(1, 2), (1, 3)]], foods=[(2, 1)], width=4, height=3)
    host.step([RIGHT, DOWN])
    assert host.observations[0].tolist() == [
        [WALL, WALL, WALL, WALL, WALL],
        [WALL, WALL, WALL, WALL, WALL],
        [WALL, OWN, OWN, EMPTY, EMPTY],
        [WALL, EMPTY, EMPTY, EMPTY, OTHER],
        [WALL, EMPTY, FOOD, EMPTY, OTHER],
    ]
    assert host.observations[1].tolist() == [
        [OTHER, EMPTY, EMPTY, WALL, WALL],
        [EMPTY, EMPTY, OWN, WALL, WALL],
        [FOOD, EMPTY, OWN, WALL, WALL],
        [WALL, WALL, WALL, WALL, WALL],
        [WALL, WALL, WALL, WALL, WALL],
    ]


def test_by_default_four_snakes_see_11_by_11_cells_and_episodes_have_no_limit():
    host = make()
    assert host.name == "Snake-v0"
    assert host.agents == 4
    assert host.observation_space.shape == (11, 11)
    assert host.observation_space.dtype == np.uint8
    assert (host.observation_space.low.min(), host.observation_space.high.max()) == (EMPTY, WALL)
    assert host.action_space.n == 4
    assert host.max_episode_steps == 0


# ---- Any play, against the model

OPTIONS = [
    {},
    {"width": 9, "height": 6, "agents": 3, "food": 12, "vision": 3},
    {"width": 1, "height": 1, "agents": 1, "food": 1, "vision": 1},
    {"width": 2, "height": 2, "agents": 4, "food": 4, "vision": 2},
    {"width": 3, "height": 2, "agents": 2, "food": 6, "vision": 1},
    {"width": 40, "height": 3, "agents": 20, "food": 30, "vision": 7},
    # Lines of a window of 9, 17, 31, 33 and 129 cells: 16 of them are computed at a time.
    *({"width": 6, "height": 5, "agents": 3, "food": 4, "vision": vision} for vision in (4, 8, 15, 16, 64)),
]


def cautious(windows, choices):
    """Random actions, mostly ones that look survivable, so that snakes grow long."""
    actions = []
    for window in windows:
        middle = len(window) // 2
        ahead = [window[middle + 1][middle], window[middle - 1][middle]]
        ahead += [window[middle][middle - 1], window[middle][middle + 1]]
        good = [i for i in range(4) if ahead[i] == FOOD] or [i for i in range(4) if ahead[i] == EMPTY]
        careful = good and choices.random() < 0.95
        actions.append(int(choices.choice(good)) if careful else int(choices.integers(0, 4)))
    return actions


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_random_play_matches_the_model(options):
    num_envs = 3
    host = make(num_envs, seed=11, **options)
    models = [Model(11 + i, **options) for i in range(num_envs)]
    host.reset_all()
    seen = [model.windows() for model in models]
    assert host.observations.tolist() == [window for windows in seen for window in windows]
    choices, longest = np.random.default_rng(5), 0
    for step in range(300):
        actions = [cautious(windows, choices) for windows in seen]
        resets = choices.random(num_envs) < 0.01
        host.step(np.array(actions), resets)
        host.check_canaries()
        for env, model in enumerate(models):
            rows = slice(env * model.agents, (env + 1) * model.agents)
            if resets[env]:
                model.reset()
            else:
                expected = model.step(actions[env])
                assert (host.rewards[rows].tolist(), host.terminated[rows].tolist()) == expected, step
            seen[env] = model.windows()
            assert host.observations[rows].tolist() == seen[env], step
            lengths = Board(host, env).lengths()
            assert lengths == [len(snake) for snake in model.snakes]
            assert int((Board(host, env).cells == 1).sum()) == Board(host, env).numbers[6] == len(model.foods)
            longest = max(longest, *lengths)
    room = models[0].width * models[0].height // (2 * host.agents)
    assert longest >= min(5, room), "else this says little of long snakes"


def test_the_same_seed_gives_the_same_bytes_however_a_batch_is_split():
    whole, parts = make(6, seed=3), make(6, seed=3)
    for host in (whole, parts):
        host.reset_all()
    choices = np.random.default_rng(1)
    for step in range(60):
        actions, resets = choices.integers(0, 4, 24), choices.random(6) < 0.1
        whole.step(actions, resets)
        parts.step(actions, resets, ranges=[(4, 6), (0, 1), (1, 4)])
        assert whole.results() == parts.results(), step
    other = make(6, seed=4)
    other.reset_all()
    assert whole.results() != other.results()


def test_restored_checkpoint_continues_in_the_same_way():
    host = make(2, seed=1, width=8, height=8)
    host.reset_all()
    choices = np.random.default_rng(2)
    for _ in range(30):
        host.step(choices.integers(0, 4, 8))
    saved, plan, futures = host.save(0), choices.integers(0, 4, (50, 4)), []
    for env in (0, 1):
        host.restore(env, saved)
        rows, seen = slice(4 * env, 4 * env + 4), []
        for actions in plan:
            host.step(np.tile(actions, 2))
            seen.append((host.observations[rows].tobytes(), host.rewards[rows].tolist()))
        futures.append(seen)
    assert futures[0] == futures[1]


def test_the_picture_shows_each_snake_in_its_colour_its_head_lighter():
    host = arranged([[(0, 0), (0, 1)], [(2, 2)]], foods=[(1, 0)], width=4, height=3)
    picture = host.draw(0)
    assert picture.shape == (24, 32, 3)
    cells = picture[4::8, 4::8].astype(int)
    assert (picture == np.kron(cells, np.ones((8, 8, 1), int))).all()
    body, head, other, food, ground = cells[0, 0], cells[0, 1], cells[2, 2], cells[1, 0], cells[1, 1]
    assert (head == 128 + body // 2).all()
    assert len({tuple(colour) for colour in (body, head, other, food, ground)}) == 5
    assert (cells[0, 2:] == ground).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width and height"),
        ({"height": 1025}, "width and height"),
        ({"agents": 0}, "agents"),
        ({"agents": 251}, "agents"),
        ({"agents": 5, "width": 2, "height": 2}, "agents"),
        ({"food": -1}, "food"),
        ({"food": 577}, "food"),
        ({"vision": 0}, "vision"),
        ({"vision": 65}, "vision"),
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
