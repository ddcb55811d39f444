"""Infos of numbers travel through shared memory, others as messages; both equal Gymnasium's."""

import copy
import functools

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.vector import ProcessVectorEnv, reports
from shoal_lab.chaos.faults import copy_with_trap
from tests.vector.test_process_envs import END, RAISE, Counter, Scripted, assert_same, logged

NUMBERS = {
    "Python": {"a": 1.5, "b": -(2**63), "c": True, "d": float("nan")},
    "NumPy": {"a": np.float32(0.1), "b": np.uint64(2**64 - 1), "c": np.bool_(True), "d": np.complex64(1j)},
    "rare NumPy": {"a": np.float16(0.5), "b": np.longdouble(0.1), "c": np.int8(-3)},
    "arrays": {"a": np.arange(3.0), "b": np.ones((2, 0), np.int8), "c": np.array(7), "d": np.eye(2) > 0},
    "other byte order": {"a": np.arange(3, dtype=">i4")},
    "odd keys": {"": 1.0, "\u00e9 \ud800": 2},
    "nested": {"a": {"b": 1.0, "c": {"d": np.float32(2)}, "e": {}}, "f": 3},
}
OTHERS = {
    "text": {"a": "text"},
    "None": {"a": 1.0, "b": None},
    "a list": {"a": [1, 2]},
    "nested text": {"a": {"b": "text"}},
    "a large array": {"a": np.arange(1000.0)},
    "an array of objects": {"a": np.array([None, 1], object)},
    "a date": {"a": np.datetime64("2020-01-01")},
    "a key that is not a string": {1: 1.0},
    "a key that is like a mask": {"a": 1.0, "_a": 2.0},
    "a final observation": {"final_obs": 1.0},
    "many keys": {f"key {i}": float(i) for i in range(500)},
}


def makers_of(scripts):
    return [functools.partial(Scripted, script) for script in scripts]


def assert_same_infos(scripts, mode=AutoresetMode.NEXT_STEP, steps=6, **kwargs):
    """Plays scripts in workers and in SyncVectorEnv: the same results, or an exception of the same type.

    An OverflowError of Gymnasium is none of ours.
    """
    theirs = SyncVectorEnv(makers_of(copy.deepcopy(scripts)), autoreset_mode=mode)
    kept = []
    with ProcessVectorEnv(makers_of(scripts), autoreset_mode=mode, **kwargs) as ours:
        for number in range(steps):
            calls = [
                functools.partial(envs.step, [0] * len(scripts)) if number else envs.reset
                for envs in (ours, theirs)
            ]
            try:
                expected = calls[1]()
            except OverflowError:
                try:
                    calls[0]()
                except OverflowError:
                    raise
                except Exception:  # Gymnasium has not come to the key that this is about
                    pass
                return
            except Exception as error:
                with pytest.raises(type(error)):
                    calls[0]()
                return
            found = calls[0]()
            assert_same(found, expected)
            kept.append((found[-1], copy.deepcopy(found[-1])))
    for info, before in kept:  # a later step must not change what the caller keeps
        assert_same(info, before)


@pytest.fixture
def messages(monkeypatch):
    """The infos that arrived as messages."""
    seen, batch_infos = [], reports.batch_infos

    def spy(messages, *rest):
        seen.extend(info for _, info in messages)
        return batch_infos(messages, *rest)

    monkeypatch.setattr(reports, "batch_infos", spy)
    return seen


@pytest.mark.parametrize("kwargs", [{}, {"caller_steps": True}], ids=["workers", "and the caller"])
@pytest.mark.parametrize("name", NUMBERS)
def test_infos_of_numbers_need_no_messages_and_equal_gymnasiums(messages, name, kwargs):
    assert_same_infos([[(NUMBERS[name], False)]] * 3, num_workers=2, **kwargs)
    assert messages == []


@pytest.mark.parametrize("name", OTHERS)
def test_other_infos_are_messages_and_equal_gymnasiums(messages, name):
    assert_same_infos([[(OTHERS[name], False)]] * 3, num_workers=2)
    assert len(messages) == 3 * 6


def step_infos(infos, **kwargs):
    """The infos of one step, in which each environment has one of these."""
    scripts = [[({}, False), (info, False)] for info in infos]
    with ProcessVectorEnv(makers_of(scripts), **kwargs) as envs:
        envs.reset()
        return envs.step([0] * len(infos))[4]


LARGE = 10**30


@pytest.mark.parametrize("kwargs", [{"num_workers": 1}, {"num_workers": 2, "caller_steps": True}], ids=str)
def test_an_integer_that_is_too_large_for_an_array_of_its_key_makes_it_one_of_objects(kwargs):
    """Gymnasium's own vectors raise OverflowError then."""
    found = step_infos([{"a": 1, "b": 2}, {}, {"b": 3, "a": LARGE}], **kwargs)
    assert list(found) == ["a", "_a", "b", "_b"]
    assert found["a"].tolist() == [1, None, LARGE] and found["_a"].tolist() == [True, False, True]
    assert found["b"].tolist() == [2, 0, 3] and found["b"].dtype == np.int64
    found = step_infos([{"a": {"b": -LARGE, "c": {}}}, {"a": {"b": 1.5}}, {"a": {"c": {"d": 1}}}], **kwargs)
    assert found["a"]["b"].tolist() == [-LARGE, 1.5, None]
    assert found["a"]["_b"].tolist() == [True, True, False] and found["_a"].all()
    assert found["a"]["c"]["d"].tolist() == [0, 0, 1] and found["a"]["_c"].tolist() == [True, False, True]
    found = step_infos([{"a": np.uint8(1)}, {"a": 300}], **kwargs)
    assert found["a"].tolist() == [1, 300]
    found = step_infos([{"a": 1, "_a": 0.5}, {"a": LARGE}], **kwargs)  # a key that is like a mask
    assert found["a"].tolist() == [1, LARGE]


KEYS = st.sampled_from(["a", "b", "c", "_a", "nested"])
DTYPES = st.sampled_from(["f8", "f4", "i8", "u1", "?", "c8", ">f8"])
SHAPES = st.sampled_from([(), (1,), (3,), (2, 2), (0,)])
ARRAYS = st.builds(
    lambda dtype, shape, value: np.full(shape, value, dtype), DTYPES, SHAPES, st.integers(0, 9)
)
SCALARS = st.one_of(
    st.floats(),
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.builds(
        lambda kind, value: kind(value),
        st.sampled_from([np.float32, np.float64, np.int8, np.int64, np.uint64, np.complex64, np.bool_]),
        st.integers(0, 9),
    ),
)
VALUES = st.one_of(SCALARS, SCALARS, SCALARS, ARRAYS, st.none(), st.text(max_size=2))
INFOS = st.dictionaries(KEYS, st.one_of(VALUES, st.dictionaries(KEYS, VALUES, max_size=2)), max_size=4)
ALIKE = st.fixed_dictionaries({"a": st.floats(), "b": st.integers(0, 9), "c": st.just(np.arange(2.0))})
LINES = st.lists(st.tuples(st.one_of(ALIKE, ALIKE, INFOS), st.booleans()), min_size=1, max_size=6)


@settings(max_examples=120)
@given(
    scripts=st.lists(LINES, min_size=1, max_size=5),
    mode=st.sampled_from([AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]),
    num_workers=st.integers(1, 2),
    caller_steps=st.booleans(),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
def test_any_sequence_of_infos_equals_gymnasiums(scripts, mode, num_workers, caller_steps):
    assert_same_infos(scripts, mode, steps=8, num_workers=num_workers, caller_steps=caller_steps)


def test_infos_with_different_types_and_keys_equal_gymnasiums():
    infos = [{"a": 1.5, "b": 1}, {"b": 2.5, "c": True}, {}, {"a": 3, "nested": {"a": 1}}, {"c": "text"}]
    scripts = [[(info, False) for info in infos[turn:] + infos[:turn]] for turn in range(len(infos))]
    assert_same_infos(scripts, steps=12, num_workers=2)


def test_a_key_whose_type_changes_from_step_to_step_equals_gymnasiums():
    arrays = [np.arange(2.0), np.arange(2), np.arange(2, dtype=np.float32), np.arange(4.0), np.ones((2, 1))]
    scalars = [True, 1, 1.5, np.float64(2.5), np.float32(3.5), np.int64(4), np.uint64(5), np.bool_(True)]
    script = [({"a": value}, False) for value in [*scalars, *arrays, {"b": 1.5}, {"b": 2}, {}] * 3]
    assert_same_infos([script], steps=len(script), num_workers=1)


@pytest.mark.parametrize("values", [(True, np.bool_(False)), (np.bool_(False), True), (1.5, 2), (2, True)])
def test_infos_with_different_types_of_one_key_equal_gymnasiums(values):
    assert_same_infos([[({"a": value}, False)] for value in values], num_workers=2)


def test_more_schemas_at_once_than_the_table_holds_equal_gymnasiums():
    scripts = [[({f"key {env}": float(env), "all": env}, False)] for env in range(24)]
    assert_same_infos(scripts, num_workers=1)


def test_a_new_schema_in_each_of_many_steps_equals_gymnasiums():
    scripts = [[({"a": np.arange(float(t)), "b": t}, False) for t in range(60)]] * 2
    assert_same_infos(scripts, steps=180, num_workers=1)


def test_info_that_the_environment_changes_later_keeps_its_values():
    class Reusing(Counter):
        info = {"who": -1, "count": 0.0, "both": np.zeros(2), "nested": {"count": 0}}

        def step(self, action):
            *rest, _ = super().step(action)
            self.info["who"], self.info["count"] = self.who, float(self.count)
            self.info["both"][:] = self.who, self.count
            self.info["nested"]["count"] = self.count
            return *rest, self.info

    with ProcessVectorEnv([functools.partial(Reusing, who) for who in range(4)], num_workers=1) as envs:
        envs.reset()
        kept = [envs.step([0] * 4)[4] for _ in range(3)]
    for count, info in enumerate(kept, 1):
        assert info["who"].tolist() == [0, 1, 2, 3] and info["count"].tolist() == [count] * 4
        assert info["both"].tolist() == [[who, count] for who in range(4)]
        assert info["nested"]["count"].tolist() == [count] * 4


def test_a_strided_array_is_copied_as_it_is_seen():
    class Strided(Counter):
        def step(self, action):
            *rest, _ = super().step(action)
            columns = np.arange(12.0).reshape(3, 4)
            return *rest, {"a": columns[:, 1] if self.count % 2 else columns[:, 0].copy()}

    with ProcessVectorEnv([Strided] * 2, num_workers=1) as envs:
        envs.reset()
        seen = [envs.step([0, 0])[4]["a"].tolist() for _ in range(4)]
        assert seen == [[[1, 5, 9]] * 2, [[0, 4, 8]] * 2] * 2


class Wordy(Counter):
    """A Counter whose infos hold several numbers, and text where the action is 1; 5 kills it in its info."""

    def reset(self, *, seed=None, options=None):
        seen, _ = super().reset(seed=seed, options=options)
        return seen, {"who": self.who, "begun": float(self.episode)}

    def step(self, action):
        *rest, _ = super().step(action)
        both = np.array([self.who, self.count] + [0] * 98, np.int64)
        both = copy_with_trap(both, 400) if action == 5 else both
        info = {"who": self.who, "count": self.count, "both": both}
        return *rest, {**info, "text": "one"} if action == 1 else info


def wordies(number):
    return [functools.partial(Wordy, who) for who in range(number)]


def assert_whole(info, counts):
    """The info that steps of Wordies give, by position: (environment, count), None where there is none."""
    present = [count is not None for count in counts]
    assert info["_count"].tolist() == info["_both"].tolist() == present
    for position, count in enumerate(counts):
        if count is not None:
            assert (info["who"][position], info["count"][position]) == count
            assert tuple(info["both"][position][:2]) == count


def test_infos_of_send_and_recv_are_by_position_and_of_the_last_step(messages):
    with ProcessVectorEnv(wordies(4), num_workers=2, batch_size=2) as envs:
        envs.async_reset(seed=0)
        info = envs.recv([3, 1])[4]
        assert info["who"].tolist() == [3, 1] and info["begun"].tolist() == [1, 1]
        assert list(info) == ["who", "_who", "begun", "_begun", "env_id"]
        assert envs.recv([0, 2])[4]["who"].tolist() == [0, 2]
        for count in (1, 2, 3):
            for pair in ([2, 0], [1, 3]):
                envs.send([0, 0], pair)
                assert_whole(envs.recv(pair)[4], [(pair[0], count), (pair[1], count)])
        assert messages == []
        envs.send([1, 0], [2, 0])
        info = envs.recv([0, 2])[4]
        assert_whole(info, [(0, 4), (2, 4)])
        assert info["_text"].tolist() == [False, True] and info["text"].tolist() == [None, "one"]


def test_rows_are_batched_for_any_number_of_environments():
    with ProcessVectorEnv(wordies(3), num_workers=2) as envs:
        envs.reset(seed=0)
        envs.step([0] * 3)
        for env_ids in ([2, 0], [1], [0, 1, 2]):
            assert_whole(envs._backend.workers.infos.batch(env_ids), [(env, 1) for env in env_ids])


def test_infos_of_a_rollout_equal_those_of_a_step():
    with ProcessVectorEnv(wordies(3), num_workers=2) as envs:
        rollout = envs.rollout(4)
        rollout.start(envs.reset(seed=0)[0])
        for count, action in enumerate((0, 0, 1, 0), 1):
            info = rollout.step(np.full(3, action))
            assert_whole(info, [(who, count) for who in range(3)])
            assert ("text" in info) == (action == 1)


def test_infos_of_a_step_with_actions_as_messages_are_the_same():
    with ProcessVectorEnv(wordies(3), num_workers=2) as envs:
        envs.reset(seed=0)
        envs.step_async([0.0, 0.0, 0.0])
        assert_whole(envs.step_wait()[4], [(who, 1) for who in range(3)])


def test_a_reset_with_a_mask_has_no_infos_of_the_others():
    with ProcessVectorEnv(wordies(4), num_workers=2) as envs:
        envs.reset(seed=0)
        envs.step([0] * 4)
        info = envs.reset(options={"reset_mask": np.array([False, True, False, True])})[1]
        assert list(info) == ["who", "_who", "begun", "_begun"]
        assert info["_who"].tolist() == [False, True, False, True] and info["begun"].tolist() == [0, 2, 0, 2]


def test_an_environment_that_raises_has_no_info_of_the_step_before():
    with ProcessVectorEnv(wordies(3), num_workers=1) as envs:
        envs.reset(seed=0)
        envs.step([0] * 3)
        with logged(), pytest.raises(RuntimeError) as caught:
            envs.step([0, RAISE, 0])
        info = caught.value.results[4]
        assert_whole(info, [(0, 2), None, (2, 2)])
        assert info["_fault"].tolist() == [False, True, False]
        info = envs.step([0] * 3)[4]
        assert info["_begun"].tolist() == [False, True, False] and info["_count"].tolist() == [
            True,
            False,
            True,
        ]


def test_final_infos_of_same_step_hold_the_numbers_of_the_last_step():
    with ProcessVectorEnv(wordies(3), num_workers=2, autoreset_mode=AutoresetMode.SAME_STEP) as envs:
        envs.reset(seed=0)
        info = envs.step([0, END, 0])[4]
        assert_whole(info, [(0, 1), None, (2, 1)])
        assert info["final_info"]["count"].tolist() == [0, 1, 0]
        assert info["who"].tolist() == [0, 1, 2] and info["begun"].tolist() == [0, 2, 0]


@pytest.mark.filterwarnings("ignore:.*ERROR")
def test_a_worker_that_dies_while_it_writes_an_info_leaves_no_part_of_it():
    with ProcessVectorEnv(wordies(4), num_workers=2, on_fault="restart") as envs:
        envs.reset(seed=0)
        envs.step([0] * 4)
        info = envs.step([0, 0, 0, 5])[4]
        assert_whole(info, [(0, 2), (1, 2), None, None])
        assert info["_fault"].tolist() == info["_begun"].tolist() == [False, False, True, True]
        assert info["who"].tolist() == [0, 1, 2, 3] and info["begun"].tolist() == [0, 0, 1, 1]
        envs.step([0] * 4)
        assert_whole(envs.step([0] * 4)[4], [(0, 4), (1, 4), (2, 1), (3, 1)])


@pytest.mark.filterwarnings("ignore:.*ERROR")
def test_infos_finished_before_a_death_are_kept():
    with ProcessVectorEnv(wordies(2), num_workers=1, batch_size=1, on_fault="restart") as envs:
        envs.async_reset(seed=0)
        envs.recv([0]), envs.recv([1])
        envs.send([0], [0])
        board = envs._backend.workers.pool.board
        while board["ticket"][0] != board["finished"][0]:
            pass
        envs.send([5], [1])
        info = envs.recv([1])[4]
        assert info["_fault"].tolist() == [True] and "count" not in info and info["begun"].tolist() == [1]
        info = envs.recv([0])[4]
        assert_whole(info, [(0, 1)])
        assert "begun" not in info and "fault" not in info
        envs.send([0], [0])
        info = envs.recv([0])[4]  # it was begun anew with its worker
        assert info["_fault"].tolist() == [True] and info["begun"].tolist() == [1] and "count" not in info
        envs.send([0, 0], [0, 1])
        envs.recv([0]), envs.recv([1])
        envs.send([0], [0])
        assert_whole(envs.recv([0])[4], [(0, 1)])


@pytest.mark.filterwarnings("ignore:.*ERROR")
def test_a_worker_that_replaces_another_may_have_other_infos(tmp_path):
    class Changed(Counter):
        def step(self, action):
            liveness_words = tmp_path / "lives"
            if action == 7:
                liveness_words.touch()
            *rest, _ = super().step(action)
            return *rest, {"a": self.count} if liveness_words.exists() else {"a": 0.5, "b": 2.5}

    with ProcessVectorEnv([Changed] * 2, num_workers=1, on_fault="restart") as envs:
        envs.reset(seed=0)
        assert list(envs.step([0, 0])[4]) == ["a", "_a", "b", "_b"]
        envs.step([0, 7])
        envs.step([0, 0])
        info = envs.step([0, 0])[4]
        assert list(info) == ["a", "_a"] and info["a"].dtype == int and info["a"].tolist() == [1, 1]
