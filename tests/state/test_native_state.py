"""envs.state of environments in C: on threads, with send and recv, in worker processes."""

import gc

import numpy as np
import pytest

import shoal
from shoal.errors import ClosedError, PluginError
from tests.state.worlds import CELLS, STATEFUL, is_whole

NATIVE = {"session": None}
PROCESSES = {"backend": "process", "num_workers": 2, "session": None}
FLOW = {"batch_size": 2, "session": None}


def made(num_envs=4, **options):
    return shoal.make_vec(STATEFUL, num_envs, **options)


def begin(envs):
    if envs.batch_size is None:
        envs.reset(seed=0)
    else:
        envs.async_reset(seed=0)


def step(envs):
    if envs.batch_size is None:
        envs.step(np.zeros(envs.num_envs, np.int64))
        return
    ids = envs.recv()[4]["env_id"]
    envs.send(np.zeros(len(ids), np.int64), ids)


@pytest.mark.parametrize("how", [NATIVE, PROCESSES, FLOW], ids=["threads", "processes", "flow"])
def test_every_field_is_there_with_its_type_and_shape(how):
    with made(**how) as envs:
        begin(envs)
        for _ in range(12):
            step(envs)
        for env in range(4):
            state, arrays = envs.state(env), envs.state_arrays(env)
            assert list(state) == ["terrain", "cells", "heap", "entities", "tick"]
            assert is_whole(arrays)
            tick = int(arrays["tick"])
            assert tick > 0
            assert arrays["heap"].tolist() == [tick * 1000003 + i for i in range(tick % 7)]
            assert arrays["entities"].tolist() == [[tick % 8, 1, 5], [2, 3, 4]]
            for name, field in state.items():
                again = np.frombuffer(field["data"], field["dtype"]).reshape(field["shape"])
                assert np.array_equal(again, arrays[name])
                assert not arrays[name].flags.writeable
            assert (state["cells"]["dtype"], state["cells"]["shape"]) == ("<i8", (CELLS,))
            assert isinstance(state["cells"]["data"], bytes)


@pytest.mark.parametrize("how", [NATIVE, PROCESSES, FLOW], ids=["threads", "processes", "flow"])
def test_a_stable_field_is_the_environments_own_memory_and_outlives_it(how):
    with made(**how) as envs:
        begin(envs)
        step(envs)
        view = envs.state(1)["terrain"]["data"]
        assert isinstance(view, memoryview) and view.readonly and view.shape == (8, 8)
        assert np.shares_memory(np.asarray(view), envs.state_arrays(1)["terrain"])
        with pytest.raises((TypeError, ValueError)):
            view[0, 0] = 1
        first = np.array(view)
        if envs.batch_size is None:
            step(envs)
            assert np.array_equal(view, first)
            envs.reset(seed=[9, 10, 11, 12])
            assert not np.array_equal(view, first)  # live: a reset rewrites it
        assert isinstance(envs.state(1)["heap"]["data"], bytes)  # flagged stable, but not in the instance
        last = np.array(view)
    del envs
    gc.collect()
    assert np.array_equal(view, last)


@pytest.mark.parametrize("how", [NATIVE, PROCESSES], ids=["threads", "processes"])
def test_reading_the_state_changes_nothing(how):
    with made(**how) as envs, made(**how) as other:
        for each in (envs, other):
            begin(each)
        for _ in range(5):
            step(envs), step(other)
            first = {name: bytes(field["data"]) for name, field in envs.state(2).items()}
            assert first == {name: bytes(field["data"]) for name, field in envs.state(2).items()}
        for env in range(4):
            one, two = envs.state_arrays(env), other.state_arrays(env)
            assert all(np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("how", [NATIVE, PROCESSES, FLOW], ids=["threads", "processes", "flow"])
def test_all_environments_at_once_are_stacked_where_shapes_agree(how):
    with made(**how) as envs:
        begin(envs)
        for _ in range(3):
            step(envs)
        states = envs.states()
        assert states["terrain"].shape == (4, 8, 8) and states["cells"].shape == (4, CELLS)
        for env in range(4):
            arrays = envs.state_arrays(env)
            assert all(np.array_equal(states[name][env], arrays[name]) for name in arrays)
        assert len({terrain.tobytes() for terrain in states["terrain"]}) == 4


def test_fields_whose_shapes_differ_come_in_a_list():
    with made(2, session=None) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(2, np.int64))
        envs.reset(options={"reset_mask": np.array([True, False])})
        heaps = envs.states()["heap"]
        assert isinstance(heaps, list) and [len(heap) for heap in heaps] == [0, 1]


def test_the_schema_says_how_to_draw_it():
    with made(session=None) as envs:
        envs.reset(seed=0)
        schema = envs.state_schema()
        assert schema["terrain"]["role"] == "grid" and schema["terrain"]["stable"]
        assert schema["terrain"]["categories"][1] == [1, "sand", "#e0c080"]
        assert schema["entities"]["columns"] == ["r", "c", "hp"]
        assert schema["tick"] == {
            "dtype": "<i8", "shape": [], "role": "scalar", "columns": [], "categories": [], "stable": False,
        }  # fmt: skip


@pytest.mark.parametrize("how", [NATIVE, PROCESSES], ids=["threads", "processes"])
@pytest.mark.parametrize("env_id", [-1, 4, 2**40])
def test_env_id_out_of_range_is_an_index_error(how, env_id):
    with made(**how) as envs:
        envs.reset(seed=0)
        with pytest.raises(IndexError, match="out of range for 4 environments"):
            envs.state(env_id)
        with pytest.raises(TypeError, match="must be an int"):
            envs.state(1.0)


def test_without_the_hook_there_is_nothing():
    with shoal.make_vec("Pixels-v0", 2, session=None) as envs:
        envs.reset(seed=0)
        assert envs.state() == {} and envs.states() == {} and envs.state_schema() == {}


def test_closed_environments_raise_closed_error():
    envs = made(session=None)
    envs.close()
    with pytest.raises(ClosedError):
        envs.state()


WRONG = {
    1: "needs a name", 2: "two state fields called 'terrain'", 3: "unknown dtype", 4: "dimension 0 is -1",
    5: "data is NULL", 6: "unknown role 9", 7: "3 columns must name its last dimension", 8: "unknown flags 6",
    9: "7 dimensions, at most 6", 12: "a grid is .* found 1 dimensions of integers", 13: "an image is",
    14: "entities are .count, columns. with names", 10: "category 0 needs a name", 11: "NULL or too many",
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_field_is_an_error_that_names_it(wrong):
    with made(1, wrong=wrong, session=None) as envs:
        envs.reset(seed=0)
        with pytest.raises((PluginError, ValueError), match=WRONG[wrong]):
            envs.state()
        envs.step(np.zeros(1, np.int64))  # the run does not mind


def test_state_can_be_read_while_environments_are_under_way():
    with shoal.make_vec(STATEFUL, 64, batch_size=8, session=None) as envs:
        envs.async_reset(seed=0)
        rng = np.random.default_rng(0)
        for _ in range(200):
            ids = envs.recv()[4]["env_id"]
            envs.send(np.zeros(len(ids), np.int64), ids)
            assert is_whole(envs.state_arrays(int(rng.integers(64))))
