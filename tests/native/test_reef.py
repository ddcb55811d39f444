"""Reef-v0: what holds of its world after any step, its rules, its maps, and that it can be played well."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from tests.native.conftest import REAL
from tests.native.reef_policy import ATTACK, GATHER, STAY, random, scripted
from tests.native.state_host import StateHost

pytestmark = pytest.mark.skipif(REAL is None, reason="no C compiler: install gcc or clang")

COLUMNS = ["kind", "r", "c", "hp", "hp_max", "comb_lvl", "prof_lvl", "dir", "anim", "in_combat"]
KIND, R, C, HP, HP_MAX, COMB, PROF, DIR, ANIM, IN_COMBAT = range(10)
DEEP, WATER, SHALLOWS, SAND, KELP, CORAL, ROCK = range(7)
FISH, CRAB, EEL, SHARK = range(4)
BITE, HURT = 3, 4
ENERGY, ABSENCE = 0, 5
FULL, MAX_LEVEL, REGROWTH, AWAY, START_HP = 100, 20, 64, 32, 30
TERMS = ("food_left", "enemies", "eaten", "beaten", "fallen")
HABITATS = {
    CRAB: {SHALLOWS, SAND, CORAL},
    EEL: {WATER, SHALLOWS, KELP, CORAL},
    SHARK: {DEEP, WATER, KELP},
}


def make(num_envs=1, seed=0, **options):
    host = StateHost("envs/reef/reef.c", num_envs, seed, **options)
    host.reset()
    return host


def totals(state):
    return dict(zip(TERMS, state["totals"].tolist(), strict=True))


def pieces(terrain):
    """The sizes of the connected pieces of what is not rock."""
    unseen = {(int(r), int(c)) for r, c in np.argwhere(terrain != ROCK)}
    sizes = []
    while unseen:
        found = [unseen.pop()]
        for r, c in found:
            near = {(r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)} & unseen
            unseen -= near
            found += near
        sizes.append(len(found))
    return sizes


def expected_maps(state, agents, window):
    """What each fish must see, from the exported state alone."""
    terrain, half = state["terrain"], window // 2
    tiles = np.zeros((terrain.shape[0] + 2 * half, terrain.shape[1] + 2 * half, 4), np.uint8)
    tiles[..., 0] = ROCK
    inner = tiles[half : half + terrain.shape[0], half : half + terrain.shape[1]]
    inner[..., 0], inner[..., 1] = terrain, state["food"]
    there = state["positions"][state["positions"][:, R] >= 0]
    inner[there[:, R], there[:, C], 2] = 1 + there[:, KIND]
    inner[there[:, R], there[:, C], 3] = there[:, COMB]
    fish = state["positions"][:agents]
    return np.stack([tiles[r : r + window, c : c + window] for r, c in fish[:, [R, C]]])


def check_world(host, env=0):
    """What holds after every reset and step."""
    state = host.state(env)
    terrain, entities, inner = state["terrain"], state["positions"], state["inner"]
    agents, window = host.agents, host.observations["map"].shape[1]
    there = entities[:, HP] > 0
    assert there[:agents].all(), "a dead fish is back in the same step"
    assert (entities[~there][:, [R, C]] == -1).all()
    assert ((inner[agents:, ABSENCE] > 0) == ~there[agents:]).all()
    assert (entities[:, HP] >= 0).all() and (entities[:, HP] <= entities[:, HP_MAX]).all()
    r, c = entities[there][:, R], entities[there][:, C]
    assert (r >= 0).all() and (c >= 0).all()
    assert (r < terrain.shape[0]).all() and (c < terrain.shape[1]).all()
    assert len(np.unique(r.astype(np.int64) * terrain.shape[1] + c)) == there.sum(), "two on one tile"
    assert (terrain[r, c] != ROCK).all()
    assert (entities[:agents, KIND] == FISH).all() and (entities[agents:, KIND] != FISH).all()
    assert (entities[:, COMB] >= 1).all() and (entities[:, COMB] <= MAX_LEVEL).all()
    assert (entities[:agents, PROF] >= 1).all() and (entities[:, PROF] <= MAX_LEVEL).all()
    assert ((entities[:, DIR] >= 0) & (entities[:, DIR] < 4)).all()
    assert ((entities[:, ANIM] >= 0) & (entities[:, ANIM] <= HURT)).all()
    assert np.isin(entities[:, IN_COMBAT], (0, 1)).all()
    assert np.isin(terrain[state["food"] == 1], (KELP, CORAL)).all() and state["food"].max(initial=0) <= 1
    assert totals(state)["food_left"] == state["food"].sum()
    assert totals(state)["enemies"] == there[agents:].sum()
    rows = slice(env * agents, (env + 1) * agents)
    np.testing.assert_array_equal(host.observations["map"][rows], expected_maps(state, agents, window))
    fish = entities[:agents].astype(np.float32)
    numbers = [
        fish[:, HP] / fish[:, HP_MAX],
        inner[:agents, ENERGY] / np.float32(FULL),
        fish[:, COMB] / MAX_LEVEL,
        fish[:, PROF] / MAX_LEVEL,
        fish[:, IN_COMBAT],
        fish[:, R] / np.float32(terrain.shape[0] - 1),
        fish[:, C] / np.float32(terrain.shape[1] - 1),
    ]
    own = host.observations["self"][rows]
    np.testing.assert_allclose(own, np.stack(numbers, 1), rtol=1e-6)
    assert (own >= 0).all() and (own <= 1).all()
    return state


def check_step(host, before, after, env=0):
    """What holds between one step and the next."""
    agents = host.agents
    rows = slice(env * agents, (env + 1) * agents)
    assert after["tick"] == before["tick"] + 1
    np.testing.assert_array_equal(after["terrain"], before["terrain"])
    gained = {name: totals(after)[name] - totals(before)[name] for name in TERMS}
    dead = (before["positions"][:, HP] > 0) & (after["positions"][:, HP] == 0)
    assert gained["beaten"] == dead.sum()
    assert gained["fallen"] == host.terminated[rows].sum()
    assert np.isin(host.terminated[rows], (0, 1)).all()
    worth = 0.1 * gained["eaten"] + 0.2 * before["positions"][dead, COMB].sum() - gained["fallen"]
    assert host.rewards[rows].sum() == pytest.approx(worth)
    moved = abs(after["positions"][:, [R, C]] - before["positions"][:, [R, C]]).sum(1)
    stayed = (before["positions"][:, HP] > 0) & (after["positions"][:, HP] > 0)
    stayed[:agents] &= host.terminated[rows] == 0
    assert (moved[stayed] <= 1).all(), "nobody jumps"


def play(host, policy, steps, rng):
    """Steps all environments, everything checked after each; the states of the first, one for each step."""
    before = [check_world(host, env) for env in range(host.num_envs)]
    states = [before[0]]
    for _ in range(steps):
        host.step(policy(host.observations, rng))
        after = [check_world(host, env) for env in range(host.num_envs)]
        for env in range(host.num_envs):
            check_step(host, before[env], after[env], env)
        before = after
        states.append(after[0])
    return states


# ---- The world ----


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_invariants_hold_after_any_step(data, seed):
    height, width = data.draw(st.integers(8, 40)), data.draw(st.integers(8, 40))
    agents = data.draw(st.integers(1, min(24, height * width // 4)))
    enemies = data.draw(st.integers(0, min(40, height * width // 4 - agents)))
    window = data.draw(st.sampled_from([3, 5, 11, 21]))
    policy = data.draw(st.sampled_from([random, scripted]))
    host = make(2, seed, height=height, width=width, num_agents=agents, num_enemies=enemies, window=window)
    play(host, policy, 40, np.random.default_rng(seed))


@pytest.mark.parametrize("policy", [random, scripted])
def test_invariants_hold_in_a_long_run_with_default_options(policy):
    states = play(make(seed=5), policy, 600, np.random.default_rng(5))
    last = totals(states[-1])
    assert last["eaten"] > 10 and last["fallen"] > 3
    assert policy is random or last["beaten"] > 3
    anims = {int(anim) for state in states for anim in state["positions"][:, ANIM]}
    assert anims == set(range(5)), "everything there is to do was done"


def test_a_map_as_crowded_as_allowed_has_room_for_all():
    host = make(seed=3, height=8, width=8, num_agents=8, num_enemies=8)
    play(host, random, 300, np.random.default_rng(0))


def test_fields_say_how_they_are_drawn():
    fields = make(height=24, width=40, num_agents=3, num_enemies=5).exported()
    shapes = {name: (field.data.dtype.name, field.data.shape, field.role) for name, field in fields.items()}
    assert shapes == {
        "terrain": ("int8", (24, 40), "grid"),
        "food": ("uint8", (24, 40), "grid"),
        "positions": ("int32", (8, 10), "entities"),
        "inner": ("int32", (8, 6), ""),
        "tick": ("int32", (), "scalar"),
        "totals": ("int32", (5,), "scalar"),
    }
    assert fields["positions"].columns == COLUMNS
    assert fields["totals"].columns == list(TERMS)
    assert {value: name for value, (name, _) in fields["positions"].categories.items()} == {
        FISH: "fish", CRAB: "crab", EEL: "eel", SHARK: "shark"
    }  # fmt: skip
    names = [name for name, _ in fields["terrain"].categories.values()]
    assert names == ["deep water", "water", "shallows", "sand", "kelp", "coral", "rock"]
    colours = [rgb for field in ("terrain", "positions") for _, rgb in fields[field].categories.values()]
    assert len(set(colours)) == len(colours)
    assert all(0 < rgb <= 0xFFFFFF for rgb in colours)


def test_every_field_lies_in_the_instance_and_stays_where_it_is():
    host = make(2)
    first = {name: field.address for name, field in host.exported(1).items()}
    begin = host.instances[1].ctypes.data
    host.step(np.full(32, GATHER))
    host.reset()
    for name, field in host.exported(1).items():
        assert field.stable == (name == "terrain")  # the others change with every step, and are copied
        assert field.address == first[name]
        assert begin <= field.address and field.address + field.data.nbytes <= begin + host.instance_bytes


def test_world_is_empty_before_the_first_reset():
    host = StateHost("envs/reef/reef.c")
    state = host.state()
    assert (state["positions"][:, [R, C]] == -1).all()
    assert state["terrain"].shape == (64, 64)
    assert state["tick"] == 0


def test_ticks_of_all_environments_advance_together_and_a_reset_zeroes_them():
    host = make(3)
    for tick in range(1, 6):
        host.step(np.full(48, STAY))
        assert [int(host.state(env)["tick"]) for env in range(3)] == [tick] * 3
    old = host.state(1)
    host.step(np.full(48, STAY), [0, 1, 0])
    assert [int(host.state(env)["tick"]) for env in range(3)] == [6, 0, 6]
    new = check_world(host, 1)
    assert totals(new) | {"food_left": 0} == dict.fromkeys(TERMS, 0) | {"enemies": 16}
    assert (new["terrain"] != old["terrain"]).any(), "a reset makes a new map"


# ---- Maps ----


def test_environments_seeded_differently_have_different_terrain():
    host = make(32)
    maps = {host.state(env)["terrain"].tobytes() for env in range(32)}
    assert len(maps) == 32


@pytest.mark.parametrize("size", [(8, 8), (16, 16), (64, 64), (8, 300), (90, 33)], ids=str)
def test_whatever_is_not_rock_is_one_piece_of_at_least_half_the_map(size):
    rocky = 0
    for seed in range(20):
        terrain = make(seed=seed, height=size[0], width=size[1], num_agents=2, num_enemies=2).state()[
            "terrain"
        ]
        (piece,) = pieces(terrain)
        assert 2 * piece >= terrain.size
        rocky += bool((terrain == ROCK).any())
    assert rocky > 0, "or nothing was shown"


def test_maps_are_smooth_and_have_everything():
    for seed in range(20):
        terrain = make(seed=seed).state()["terrain"]
        shares = np.bincount(terrain.ravel(), minlength=7) / terrain.size
        assert (shares[[DEEP, SAND, ROCK]] > 0.04).all(), shares
        assert shares[KELP] + shares[CORAL] > 0.05, shares
        assert (terrain[:, 1:] == terrain[:, :-1]).mean() > 0.75
        assert (terrain[1:] == terrain[:-1]).mean() > 0.75


# ---- Rules ----


def test_idle_fish_starves_and_respawns_in_the_same_step():
    host = make(seed=1, num_agents=1, num_enemies=0)
    hungry = 2 * FULL + 2 * START_HP  # a point of energy, then of health, every second step
    for step in range(1, hungry + 1):
        host.step(STAY)
        assert bool(host.terminated[0]) == (step == hungry)
        assert host.rewards[0] == (-1 if step == hungry else 0)
    state = check_world(host)
    assert state["positions"][0, HP] == START_HP
    assert state["inner"][0, ENERGY] == FULL
    assert state["terrain"][tuple(state["positions"][0, [R, C]])] in (SAND, SHALLOWS)
    assert state["tick"] == hungry and totals(state)["fallen"] == 1


def test_food_is_eaten_once_and_grows_back():
    host = make(seed=2, num_agents=1, num_enemies=0)
    rng = np.random.default_rng(0)
    while host.observations["map"][0, 5, 5, 1] == 0:
        host.step(scripted(host.observations, rng))
    before = check_world(host)
    host.step(GATHER)
    after = check_world(host)
    check_step(host, before, after)
    assert host.rewards[0] == 0.1
    place = tuple(after["positions"][0, [R, C]])
    assert after["food"][place] == 0 and (before["food"] != after["food"]).sum() == 1
    assert after["inner"][0, ENERGY] > before["inner"][0, ENERGY] + 5
    assert after["positions"][0, ANIM] == 2
    for step in range(1, REGROWTH + 1):
        host.step(GATHER if step < REGROWTH else STAY)  # nothing is left to gather
        assert host.rewards[0] == 0
        assert host.state()["food"][place] == (step == REGROWTH)
    host.step(GATHER)
    assert host.rewards[0] == 0.1


def fought(seed):
    """The states of a long play on a crowded map."""
    host = make(seed=seed, height=40, width=40, num_agents=24, num_enemies=30)
    return play(host, scripted, 400, np.random.default_rng(seed))


def test_beaten_enemy_returns_after_some_steps():
    states = fought(0)
    hp = np.stack([state["positions"][24:, HP] for state in states])
    absences = []
    for column in hp.T:
        gone = np.flatnonzero(np.diff(np.concatenate([[0], column == 0, [0]])))
        absences += [end - start for start, end in gone.reshape(-1, 2) if end < len(column)]
    assert len(absences) > 10
    assert set(absences) == {AWAY}


def test_fast_loss_of_health_comes_from_a_neighbour():
    states = fought(1)
    bitten = 0
    for before, after in zip(states, states[1:], strict=False):
        lost = before["positions"][:24, HP] - after["positions"][:24, HP]
        moved = abs(after["positions"][:24, [R, C]] - before["positions"][:24, [R, C]]).sum(1)
        biting = after["positions"][24:][after["positions"][24:, ANIM] == BITE]
        for fish in np.flatnonzero((lost > 1) & (moved <= 1)):
            distances = abs(biting[:, [R, C]] - after["positions"][fish, [R, C]]).sum(1)
            assert (distances == 1).any()
            assert after["positions"][fish, IN_COMBAT] == 1
            bitten += 1
    assert bitten > 20


def test_beating_enemies_raises_level_and_strength():
    states = fought(2)
    fish = np.stack([state["positions"][:24] for state in states])
    best = fish[..., COMB].max()
    assert best > 2
    assert (fish[..., HP_MAX] == START_HP + 4 * (fish[..., COMB] - 1)).all()
    assert fish[..., PROF].max() > 2


def test_enemies_keep_to_their_waters():
    for seed in range(5):
        states = play(make(seed=seed, num_enemies=100), random, 60, np.random.default_rng(seed))
        for state in states[::5]:
            for kind, waters in HABITATS.items():
                own = state["positions"][
                    (state["positions"][:, KIND] == kind) & (state["positions"][:, R] >= 0)
                ]
                assert len(own) > 5
                assert set(state["terrain"][own[:, R], own[:, C]].tolist()) <= waters


def test_fish_do_not_bite_each_other():
    host = make(seed=0, height=8, width=8, num_agents=16, num_enemies=0)
    for _ in range(100):
        host.step(np.full(16, ATTACK))
        assert (host.state()["positions"][:, HP] == START_HP).all()


# ---- The same every time ----


def test_the_same_seed_gives_the_same_bytes_whatever_was_there_before():
    first, second = make(2, seed=9), make(2, seed=9)
    for host in (first, second):
        for step in range(50):
            host.step(np.random.default_rng(step).integers(0, 7, 32))
    np.testing.assert_array_equal(first.instances, second.instances)
    used, fresh = first, StateHost("envs/reef/reef.c", 2, 77)
    for env in range(2):
        used.seed(env, 77 + env)
    used.reset()
    fresh.reset()
    np.testing.assert_array_equal(used.instances, fresh.instances)


def test_any_number_of_threads_gives_the_same_bytes():
    traces = []
    for threads in (1, 2, 3):
        with shoal.make_vec("Reef-v0", 200, num_threads=threads, height=16, width=16, num_agents=4) as envs:
            observations, _ = envs.reset(seed=4)
            rng, trace = np.random.default_rng(1), []
            for _ in range(60):
                observations, rewards, terminated, _, _ = envs.step(rng.integers(0, 7, 800))
                trace += [observations["map"].tobytes(), observations["self"].tobytes(), rewards.tobytes()]
            traces.append(trace)
    assert traces[0] == traces[1] == traces[2]


def test_restored_world_continues_as_before():
    with shoal.make_vec("Reef-v0", 2) as envs:
        observations, _ = envs.reset(seed=0)
        rng = np.random.default_rng(0)
        for _ in range(100):
            observations, *_ = envs.step(scripted(observations, rng))
        envs.restore_env(1, envs.save_env(0))
        for _ in range(50):
            actions = np.tile(rng.integers(0, 7, 16), 2)
            observations, rewards, *_ = envs.step(actions)
            np.testing.assert_array_equal(observations["map"][:16], observations["map"][16:])
            np.testing.assert_array_equal(rewards[:16], rewards[16:])


# ---- Play ----


@pytest.mark.parametrize("seed", range(5))
def test_scripted_policy_is_better_than_random(seed):
    returns = {}
    for policy in (random, scripted):
        with shoal.make_vec("Reef-v0", 2, max_episode_steps=500) as envs:
            observations, _ = envs.reset(seed=100 * seed)
            rng, total = np.random.default_rng(seed), 0.0
            for _ in range(500):
                observations, rewards, _, truncated, _ = envs.step(policy(observations, rng))
                total += rewards.sum() / envs.num_envs
            assert truncated.all()
            returns[policy] = total
    assert returns[random] < 0 and returns[scripted] > 3, returns


def test_an_episode_is_truncated_after_a_thousand_steps_and_the_next_has_another_map():
    with shoal.make_vec("Reef-v0", 1, num_agents=4) as envs:
        first, _ = envs.reset(seed=0)
        rng = np.random.default_rng(0)
        for step in range(1, 1001):
            _, _, terminated, truncated, _ = envs.step(rng.integers(0, 7, 4))
            assert truncated.all() == truncated.any() == (step == 1000)
            assert not terminated.all(), "a fish that dies lives on in its world"
        observations, rewards, *_ = envs.step(rng.integers(0, 7, 4))
        assert (rewards == 0).all()
        assert (observations["self"][:, 0] == 1).all()
        assert (observations["map"] != first["map"]).any()


def test_a_large_world_keeps_its_invariants():
    host = make(seed=1, height=512, width=512, num_agents=1024, num_enemies=2000)
    states = play(host, scripted, 30, np.random.default_rng(0))
    assert totals(states[-1])["eaten"] > 100
    assert totals(states[-1])["beaten"] > 0


def test_reef_can_be_rendered():
    with shoal.make_vec("Reef-v0", 2, render_mode="rgb_array", height=32, width=48) as envs:
        envs.reset(seed=0)
        frames = envs.render()
        assert frames[0].shape == (32 * 15, 48 * 15, 3)
        assert len(np.unique(frames[0].reshape(-1, 3), axis=0)) > 100
        assert (frames[0] != frames[1]).any()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"height": 7}, "height and width must be from 8 to 4096"),
        ({"width": 4097}, "height and width must be from 8 to 4096"),
        ({"num_agents": 0}, "num_agents must be from 1"),
        ({"height": 8, "width": 8, "num_agents": 17}, "quarter of the map"),
        ({"num_enemies": -1}, "num_enemies must be 0 or more"),
        ({"height": 8, "width": 8, "num_agents": 8, "num_enemies": 9}, "quarter of the map"),
        ({"window": 4}, "window must be odd, from 3 to 63"),
        ({"window": 1}, "window must be odd, from 3 to 63"),
        ({"window": 65}, "window must be odd, from 3 to 63"),
    ],
    ids=str,
)
def test_options_out_of_range_are_errors(options, words):
    with pytest.raises(shoal.errors.PluginError, match=words):
        shoal.make_vec("Reef-v0", 1, **options)
