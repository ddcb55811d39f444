"""The reference pipelines against values worked out by hand and against models in plain Python."""

from __future__ import annotations

import doctest
import os
import random
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import reference
from shoal.errors import SegmentNotFound
from shoal.memory import Segment
from shoal.memory.names import name_directory
from shoal.reference import shared_memory_rl_pipeline, zero_copy_env_simulation

# -- the simulation --------------------------------------------------------------------------------

ONE = ([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [0.5, 1.5], [0, 1])
TWO = ([[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]], [2.5, 3.5], [1, 0])
ZEROS = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


def simulate(script: str, *commands: Any, steps: Sequence[Any] = (ONE, TWO)) -> dict[str, Any]:
    """Runs a script such as "step, store_view v, read v", then `commands`."""
    words = [tuple(line.split()) for line in script.split(",") if line]
    return dict(zero_copy_env_simulation(2, 3, list(steps), [*words, *commands]))


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arrays of every segment the pipelines make, to look at after they have returned."""
    made: list[dict[str, Any]] = []

    class Watched(Segment):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(dict(self))

    monkeypatch.setattr(reference, "Segment", Watched)
    return made


def test_the_examples_in_the_docstrings_run() -> None:
    result = doctest.testmod(reference)
    assert result.failed == 0
    assert result.attempted > 0


def test_the_buffers_are_float64_and_int8_and_zero_at_first(buffers: list[dict[str, Any]]) -> None:
    result = simulate("read_buffer")
    assert result["reads"] == [ZEROS]
    (arrays,) = buffers
    assert {name: (array.dtype.name, array.shape) for name, array in arrays.items()} == {
        "observation": ("float64", (2, 3)),
        "reward": ("float64", (2,)),
        "done": ("int8", (2,)),
    }
    assert not any(array.any() for array in arrays.values())


def test_steps_are_written_in_order_into_the_one_segment(buffers: list[dict[str, Any]]) -> None:
    result = simulate("step, read_buffer, step, read_buffer")
    assert result["reads"] == [ONE[0], TWO[0]]
    (arrays,) = buffers
    assert arrays["reward"].tolist() == [2.5, 3.5]
    assert arrays["done"].tolist() == [1, 0]


def test_a_view_changes_under_you_and_a_copy_does_not() -> None:
    result = simulate("step, store_view v, store_copy c, read v, read c, step, read v, read c")
    assert result["reads"] == [ONE[0], ONE[0], TWO[0], ONE[0]]


def test_only_a_view_shares_memory_with_the_buffer() -> None:
    result = simulate(
        "store_view v, store_copy c, check_alias v, check_alias c, step, check_alias v, check_alias c"
    )
    assert result["alias_checks"] == [True, False, True, False]
    assert all(type(check) is bool for check in result["alias_checks"])


def test_a_name_stored_again_is_the_newer_snapshot() -> None:
    result = simulate("step, store_view x, store_copy x, step, read x, check_alias x")
    assert result["reads"] == [ONE[0]]
    assert result["alias_checks"] == [False]
    assert (result["total_views"], result["total_copies"]) == (1, 1)


def test_auto_reset_zeroes_observation_and_reward_of_done_environments_in_place(
    buffers: list[dict[str, Any]],
) -> None:
    result = simulate("step, store_view v, store_copy c, auto_reset, read v, read c, read_buffer")
    reset = [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]
    assert result["reads"] == [reset, ONE[0], reset]
    assert buffers[0]["reward"].tolist() == [0.5, 0.0]
    assert buffers[0]["done"].tolist() == [0, 1]  # the flags stay
    assert result["buffer_reallocs"] == 0


def test_totals_count_views_and_copies_and_the_bytes_views_saved() -> None:
    result = simulate("store_view a, store_view b, store_copy c, store_view d")
    assert result["total_views"] == 3
    assert result["total_copies"] == 1
    assert result["total_bytes_saved"] == 3 * 2 * 3 * 8
    assert result["reads"] == result["alias_checks"] == []


def test_no_commands_give_an_empty_result() -> None:
    assert simulate("") == {
        "reads": [],
        "alias_checks": [],
        "total_copies": 0,
        "total_views": 0,
        "total_bytes_saved": 0,
        "buffer_reallocs": 0,
    }


def test_reads_are_rounded_to_four_decimals_and_the_buffer_is_not(buffers: list[dict[str, Any]]) -> None:
    step = ([[1.23456, -0.00004, 2 / 3]], [0.1], [False])
    result = zero_copy_env_simulation(1, 3, [step], [("step",), ("read_buffer",)])
    assert result["reads"] == [[[1.2346, 0.0, 0.6667]]]
    assert type(result["reads"][0][0][0]) is float
    assert buffers[0]["observation"].tolist() == [[1.23456, -0.00004, 2 / 3]]


def test_arrays_booleans_and_numpy_sizes_are_accepted() -> None:
    step = (np.ones((2, 1), np.float32), np.array([1, 2]), np.array([True, False]))
    commands = [["step"], ["auto_reset"], ["read_buffer"]]
    result = zero_copy_env_simulation(np.int64(2), np.int64(1), [step], commands)  # type: ignore[arg-type]
    assert result["reads"] == [[[0.0], [1.0]]]


def test_reallocations_are_measured_after_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[Any] = []

    class Moving(Segment):
        def __getitem__(self, field: str) -> Any:
            return moved[-1] if moved and field == "observation" else super().__getitem__(field)

    def commands() -> Iterator[tuple[str, ...]]:
        yield ("step",)
        yield ("store_view", "v")
        moved.append(np.zeros((2, 3)))
        yield ("store_view", "w")
        yield ("check_alias", "v")
        yield ("check_alias", "w")

    monkeypatch.setattr(reference, "Segment", Moving)
    result = zero_copy_env_simulation(2, 3, [ONE], commands())
    assert result["buffer_reallocs"] == 3
    assert result["alias_checks"] == [False, True]


WRONG_WORDS = "jump; step x; auto_reset x; read_buffer x; read; store_view; store_copy; check_alias; read v w"
WRONG_COMMANDS = [tuple(line.split()) for line in WRONG_WORDS.split(";")]


@pytest.mark.parametrize("command", [*WRONG_COMMANDS, (), ("read", 3), "step", None, 7], ids=repr)
def test_a_wrong_command_is_a_valueerror_that_says_where_and_what_was_expected(command: Any) -> None:
    with pytest.raises(ValueError) as caught:
        simulate("step, store_view v", command)
    message = str(caught.value)
    assert message.startswith(f"commands[2] {command!r}: expected ")
    assert '("check_alias", name)' in message


@pytest.mark.parametrize("word", ["read", "check_alias"])
def test_an_unknown_name_is_a_keyerror_that_says_what_is_stored(word: str) -> None:
    with pytest.raises(KeyError) as caught:
        simulate("store_view b, store_copy a", (word, "c"))
    assert caught.value.args[0].startswith(f"commands[2] ('{word}', 'c'): expected the name of a stored view")
    assert caught.value.args[0].endswith("found 'c'; stored are ['a', 'b']")


def test_a_step_too_many_is_a_valueerror() -> None:
    with pytest.raises(ValueError) as caught:
        simulate("step, step, step")
    assert str(caught.value).startswith(
        "commands[2] ('step',): expected one more entry of step_data, found only 2"
    )


BAD_STEPS = {
    "rows": ([[1.0, 2.0, 3.0]], [0.5, 1.5], [0, 1]),
    "columns": ([[1.0, 2.0], [4.0, 5.0]], [0.5, 1.5], [0, 1]),
    "ragged": ([[1.0, 2.0, 3.0], [4.0, 5.0]], [0.5, 1.5], [0, 1]),
    "flat": ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0.5, 1.5], [0, 1]),
    "text": ([["1", "2", "3"], ["4", "5", "6"]], [0.5, 1.5], [0, 1]),
    "none": ([[1.0, 2.0, None], [4.0, 5.0, 6.0]], [0.5, 1.5], [0, 1]),
    "complex": ([[1.0, 2.0, 3j], [4.0, 5.0, 6.0]], [0.5, 1.5], [0, 1]),
    "rewards": (ONE[0], [0.5, 1.5, 2.5], [0, 1]),
    "scalar reward": (ONE[0], 0.5, [0, 1]),
    "text reward": (ONE[0], [0.5, "1.5"], [0, 1]),
    "dones": (ONE[0], [0.5, 1.5], [0]),
    "done of two": (ONE[0], [0.5, 1.5], [0, 2]),
    "done of nan": (ONE[0], [0.5, 1.5], [0, float("nan")]),
    "two parts": (ONE[0], [0.5, 1.5]),
    "four parts": (*ONE, {}),
    "not a step": None,
}


@pytest.mark.parametrize("bad", BAD_STEPS.values(), ids=BAD_STEPS)
def test_a_wrong_step_is_a_valueerror_and_nothing_of_it_is_written(
    bad: Any, buffers: list[dict[str, Any]]
) -> None:
    with pytest.raises(ValueError) as caught:
        simulate("step, read_buffer, step", steps=[ONE, bad])
    assert str(caught.value).startswith("commands[2] ('step',): step_data[1]: ")
    assert "expected" in str(caught.value) and "found" in str(caught.value)
    (arrays,) = buffers
    assert [array.tolist() for array in arrays.values()] == list(ONE)


@pytest.mark.parametrize("function", [zero_copy_env_simulation, shared_memory_rl_pipeline])
@pytest.mark.parametrize("num_envs, obs_dim", [(0, 3), (2, 0), (-1, 3), (2, -5)])
def test_sizes_below_one_are_a_valueerror(function: Any, num_envs: int, obs_dim: int) -> None:
    arguments = [[], []] if function is zero_copy_env_simulation else [[]]
    with pytest.raises(ValueError, match=r"expected (num_envs|obs_dim) to be at least 1, found -?\d"):
        function(num_envs, obs_dim, *arguments)


@pytest.mark.parametrize("function", [zero_copy_env_simulation, shared_memory_rl_pipeline])
@pytest.mark.parametrize("size", [2.0, "2", None, True, [2], np.array([1, 2]), np.True_], ids=repr)
def test_sizes_that_are_no_ints_are_a_typeerror(function: Any, size: Any) -> None:
    arguments = [[], []] if function is zero_copy_env_simulation else [[]]
    for sizes in [(size, 3), (2, size)]:
        with pytest.raises(TypeError, match="expected (num_envs|obs_dim) to be an int, found "):
            function(*sizes, *arguments)


numbers = st.integers(-80000, 80000).map(lambda n: n / 8)  # exact in binary, so that sums are exact too
NAMES = st.sampled_from("abc")


@st.composite
def simulations(draw: st.DrawFn) -> tuple[int, int, list[Any], list[Any]]:
    num_envs, obs_dim = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    row = st.lists(numbers, min_size=obs_dim, max_size=obs_dim)
    step = st.tuples(
        st.lists(row, min_size=num_envs, max_size=num_envs),
        st.lists(numbers, min_size=num_envs, max_size=num_envs),
        st.lists(st.sampled_from([0, 1]), min_size=num_envs, max_size=num_envs),
    )
    plain = st.sampled_from([("step",), ("read_buffer",), ("auto_reset",)])
    words = st.sampled_from(["store_view", "store_copy", "read", "check_alias"])
    commands = draw(st.lists(plain | st.tuples(words, NAMES), max_size=30))
    stored: set[str] = set()
    possible = []
    for command in commands:
        if command[0].startswith("store"):
            stored.add(command[1])
        if command[0] in ("read", "check_alias") and command[1] not in stored:
            continue
        possible.append(command)
    needed = possible.count(("step",))
    return num_envs, obs_dim, draw(st.lists(step, min_size=needed, max_size=needed)), possible


def simulation_model(num_envs: int, obs_dim: int, steps: list[Any], commands: list[Any]) -> dict[str, Any]:
    """The same in plain lists: the buffer's rows, and per name either None (a view) or rows of its own."""
    rows, dones = [[0.0] * obs_dim for _ in range(num_envs)], [0] * num_envs
    snapshots: dict[str, Any] = {}
    reads, aliases = [], []
    for command in commands:
        word, name = command[0], command[-1]
        if word == "step":
            rows, _, dones = [list(row) for row in steps[0][0]], steps[0][1], steps[0][2]
            steps = steps[1:]
        elif word == "auto_reset":
            rows = [[0.0] * obs_dim if done else row for row, done in zip(rows, dones, strict=True)]
        elif word == "read_buffer":
            reads.append(rows)
        elif word == "store_view":
            snapshots[name] = None
        elif word == "store_copy":
            snapshots[name] = rows
        elif word == "read":
            reads.append(rows if snapshots[name] is None else snapshots[name])
        else:
            aliases.append(snapshots[name] is None)
    words = [command[0] for command in commands]
    return {
        "reads": [[[round(x, 4) for x in row] for row in read] for read in reads],
        "alias_checks": aliases,
        "total_copies": words.count("store_copy"),
        "total_views": words.count("store_view"),
        "total_bytes_saved": words.count("store_view") * num_envs * obs_dim * 8,
        "buffer_reallocs": 0,
    }


@given(simulations())
def test_any_simulation_agrees_with_the_model(case: tuple[int, int, list[Any], list[Any]]) -> None:
    assert zero_copy_env_simulation(*case) == simulation_model(*case)


# -- the pipeline ----------------------------------------------------------------------------------


def own_names() -> list[str]:
    """Everything of this process in the directory of named segments, under a name or in the making."""
    directory = Path(name_directory())
    patterns = (f"shoal-{os.getuid()}-{os.getpid()}-*", f".shoal-{os.getpid()}-*")
    return sorted(path.name for pattern in patterns for path in directory.glob(pattern))


WRITES: list[Any] = [
    (0, [1.0, 2.0], 1.0, False),
    (1, [3.0, 4.0], 2.0, True),
    (2, [5.0, 6.0], 4.5, 0),
    (0, [7.0, 9.0], 3.0, False),  # a later write wins
]
EXPECTED = {
    "observations": [[7.0, 9.0], [3.0, 4.0], [5.0, 6.0]],
    "rewards": [3.0, 2.0, 4.5],
    "dones": [0, 1, 0],
    "mean_obs": [5.0, 6.3333],
    "mean_reward": 3.1667,
    "num_done": 1,
    "active_mean_reward": 3.75,
    "total_shared_bytes": 3 * 2 * 8 + 3 * 8 + 3,
}


def plain(value: Any) -> bool:
    """Whether `value` is made of plain Python objects only."""
    if type(value) in (list, dict):
        return all(map(plain, value.values() if isinstance(value, dict) else value))
    return type(value) in (int, float)


@pytest.mark.parametrize("num_workers", [0, 1, 2, 5])
def test_the_pipeline_reads_back_what_was_written_last(num_workers: int) -> None:
    result = shared_memory_rl_pipeline(3, 2, WRITES, num_workers=num_workers)
    assert result == EXPECTED
    assert plain(result)


def test_without_writes_everything_is_zero() -> None:
    assert shared_memory_rl_pipeline(2, 1, []) == {
        "observations": [[0.0], [0.0]],
        "rewards": [0.0, 0.0],
        "dones": [0, 0],
        "mean_obs": [0.0],
        "mean_reward": 0.0,
        "num_done": 0,
        "active_mean_reward": 0.0,
        "total_shared_bytes": 34,
    }


def test_the_active_mean_is_zero_when_all_are_done() -> None:
    result = shared_memory_rl_pipeline(2, 1, [(0, [1.0], 5.0, True), (1, [1.0], 7.0, 1)])
    assert (result["num_done"], result["mean_reward"], result["active_mean_reward"]) == (2, 6.0, 0.0)


def test_an_environment_can_become_active_again() -> None:
    result = shared_memory_rl_pipeline(1, 1, [(0, [1.0], 5.0, True), (0, [2.0], 7.0, False)])
    assert (result["dones"], result["active_mean_reward"]) == ([0], 7.0)


def test_means_come_from_the_values_before_rounding() -> None:
    values = [0.00004, 0.00004, 0.00004, 0.0001]
    result = shared_memory_rl_pipeline(4, 1, [(i, [x], x, False) for i, x in enumerate(values)])
    assert result["rewards"] == [0.0, 0.0, 0.0, 0.0001]
    assert result["observations"] == [[0.0], [0.0], [0.0], [0.0001]]
    # The mean is 0.000055; of the rounded values it would be 0.000025, which rounds to 0.
    assert result["mean_reward"] == result["active_mean_reward"] == 0.0001
    assert result["mean_obs"] == [0.0001]


def test_the_data_is_read_through_read_only_blocks_attached_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Segment] = []
    attached: list[Segment] = []

    class Watched(Segment):
        @classmethod
        def named(cls, *args: Any, **options: Any) -> Segment:
            made.append(Segment.named(*args, **options))
            return made[-1]

        @classmethod
        def attach(cls, *args: Any, **options: Any) -> Segment:
            assert len(own_names()) == 3
            assert not any(segment.closed for segment in made)
            attached.append(Segment.attach(*args, **options))
            return attached[-1]

    rounded: list[Any] = []
    monkeypatch.setattr(reference, "_round_rows", lambda array: rounded.append(array) or array.tolist())
    monkeypatch.setattr(reference, "Segment", Watched)
    assert shared_memory_rl_pipeline(3, 2, WRITES) == EXPECTED
    assert rounded[0].flags.owndata  # copied out, not looked at through the block
    assert [segment.name for segment in attached] == [segment.name for segment in made]
    assert len({segment.name for segment in made}) == 3
    assert all(segment.readonly for segment in attached)
    assert [str(layout) for segment in made for layout in segment.layout.values()] == [
        "float64[3, 2]",
        "float64[3]",
        "int8[3]",
    ]
    assert not {segment._address for segment in made} & {segment._address for segment in attached}
    assert all(segment.closed for segment in made + attached)


BAD_WRITES: dict[str, tuple[Any, type[Exception], str]] = {
    "too large": ((3, [1.0, 2.0], 1.0, False), IndexError, "expected an env_id from 0 to 2, found 3"),
    "negative": ((-1, [1.0, 2.0], 1.0, False), IndexError, "expected an env_id from 0 to 2, found -1"),
    "float id": ((1.0, [1.0, 2.0], 1.0, False), ValueError, "expected an int as env_id, found 1.0"),
    "bool id": ((True, [1.0, 2.0], 1.0, False), ValueError, "expected an int as env_id, found True"),
    "text id": (("1", [1.0, 2.0], 1.0, False), ValueError, "expected an int as env_id, found '1'"),
    "short": ((1, [1.0], 1.0, False), ValueError, "expected numbers of shape (2,), found shape (1,)"),
    "long": ((1, [1.0, 2.0, 3.0], 1.0, False), ValueError, "of shape (2,), found shape (3,)"),
    "nested": ((1, [[1.0, 2.0]], 1.0, False), ValueError, "of shape (2,), found shape (1, 2)"),
    "ragged": ((1, [1.0, [2.0]], 1.0, False), ValueError, "of shape (2,), found [1.0, [2.0]]"),
    "text": ((1, ["1", "2"], 1.0, False), ValueError, "of shape (2,), found ['1', '2']"),
    "none": ((1, [1.0, None], 1.0, False), ValueError, "of shape (2,), found [1.0, None]"),
    "reward": ((1, [1.0, 2.0], "1.0", False), ValueError, "reward: expected numbers of shape (), found '1"),
    "no reward": ((1, [1.0, 2.0], None, False), ValueError, "reward: expected numbers of shape (), found N"),
    "rewards": ((1, [1.0, 2.0], [1.0], False), ValueError, "of shape (), found shape (1,)"),
    "done": ((1, [1.0, 2.0], 1.0, 2), ValueError, "done: expected False or True, 0 or 1, found 2"),
    "text done": ((1, [1.0, 2.0], 1.0, "no"), ValueError, "done: expected numbers"),
    "three parts": ((1, [1.0, 2.0], 1.0), ValueError, "expected (env_id, observation, reward, done), found"),
    "no entry": (None, ValueError, "expected (env_id, observation, reward, done), found None"),
}


@pytest.mark.parametrize("entry, kind, message", BAD_WRITES.values(), ids=BAD_WRITES)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_wrong_entry_is_an_error_that_names_its_position(
    entry: Any, kind: type[Exception], message: str, num_workers: int
) -> None:
    with pytest.raises(kind) as caught:
        shared_memory_rl_pipeline(3, 2, [*WRITES, entry], num_workers=num_workers)
    assert str(caught.value).startswith("step_data[4]: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("num_workers, kind", [(-1, ValueError), (1.0, TypeError), (True, TypeError)])
def test_a_wrong_number_of_workers_is_refused(num_workers: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="expected num_workers to be"):
        shared_memory_rl_pipeline(3, 2, WRITES, num_workers=num_workers)


class Broken(Exception):
    pass


def test_an_error_while_writing_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaking(arrays: Mapping[str, Any], writes: Sequence[Any]) -> None:
        assert len(own_names()) == 3  # so there is something to clean up
        arrays["observations"][0] = 1.0
        raise Broken

    monkeypatch.setattr(reference, "_write", breaking)
    with pytest.raises(Broken):
        shared_memory_rl_pipeline(3, 2, WRITES)
    assert own_names() == []


@pytest.mark.parametrize("method, good", [("named", 1), ("named", 2), ("attach", 0), ("attach", 2)])
def test_an_error_while_making_or_attaching_a_block_leaves_nothing_behind(
    method: str, good: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Segment] = []

    class Breaking(Segment):
        pass

    def breaking(*args: Any, **options: Any) -> Segment:
        if len(calls) == good:
            raise Broken
        calls.append(getattr(Segment, method)(*args, **options))
        return calls[-1]

    monkeypatch.setattr(Breaking, method, breaking)
    monkeypatch.setattr(reference, "Segment", Breaking)
    with pytest.raises(Broken):
        shared_memory_rl_pipeline(3, 2, WRITES)
    assert own_names() == []
    assert all(segment.closed for segment in calls)


# What workers run instead, found by name in the new process.


def write_own_pid(names: Mapping[str, str], writes: Sequence[Any]) -> None:
    with Segment.attach(names["rewards"]) as block:
        for env_id, *_ in writes:
            block["rewards"][env_id] = os.getpid()


def raise_in_one_worker(names: Mapping[str, str], writes: Sequence[Any]) -> None:
    if any(write[0] == 1 for write in writes):
        raise Broken("worker of environment 1")


def die_in_one_worker(names: Mapping[str, str], writes: Sequence[Any]) -> None:
    if any(write[0] == 1 for write in writes):
        os.kill(os.getpid(), signal.SIGKILL)


def test_each_environment_is_written_by_the_one_process_that_owns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "_write_by_name", write_own_pid)
    writes: list[Any] = [(env_id, [0.0], 0.0, False) for env_id in range(6)]
    pids = shared_memory_rl_pipeline(6, 1, writes, num_workers=3)["rewards"]
    assert pids[:3] == pids[3:]
    assert len(set(pids)) == 3
    assert 0.0 not in pids and os.getpid() not in pids


def test_an_exception_in_a_worker_reaches_the_caller_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference, "_write_by_name", raise_in_one_worker)
    with pytest.raises(Broken, match="worker of environment 1"):
        shared_memory_rl_pipeline(3, 2, WRITES, num_workers=2)
    assert own_names() == []


def test_a_worker_that_is_killed_is_an_error_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference, "_write_by_name", die_in_one_worker)
    with pytest.raises(BrokenProcessPool):
        shared_memory_rl_pipeline(3, 2, WRITES, num_workers=2)
    assert own_names() == []


def test_a_worker_that_finds_no_block_of_that_name_says_so() -> None:
    names = dict.fromkeys(["observations", "rewards", "dones"], "there-is-no-such-block")
    with pytest.raises(SegmentNotFound, match="there-is-no-such-block"):
        reference._write_in_workers(names, [], 1)


def test_workers_give_what_one_process_gives() -> None:
    chance = random.Random(7)
    writes: list[Any] = [
        (
            chance.randrange(10),
            [chance.gauss(0, 100) for _ in range(4)],
            chance.random(),
            chance.random() < 0.5,
        )
        for _ in range(500)
    ]
    assert shared_memory_rl_pipeline(10, 4, writes, num_workers=3) == shared_memory_rl_pipeline(10, 4, writes)


def pipeline_model(num_envs: int, obs_dim: int, writes: list[Any]) -> dict[str, Any]:
    rows = {env_id: ([0.0] * obs_dim, 0.0, False) for env_id in range(num_envs)}
    rows.update({env_id: rest for env_id, *rest in writes})
    observations, rewards, dones = (list(part) for part in zip(*rows.values(), strict=True))
    active = [reward for reward, done in zip(rewards, dones, strict=True) if not done]
    return {
        "observations": [[round(x, 4) for x in row] for row in observations],
        "rewards": [round(reward, 4) for reward in rewards],
        "dones": [int(done) for done in dones],
        "mean_obs": [round(sum(column) / num_envs, 4) for column in zip(*observations, strict=True)],
        "mean_reward": round(sum(rewards) / num_envs, 4),
        "num_done": sum(dones),
        "active_mean_reward": round(sum(active) / len(active), 4) if active else 0.0,
        "total_shared_bytes": num_envs * (8 * obs_dim + 9),
    }


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[int, int, list[Any]]:
    num_envs, obs_dim = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    row = st.lists(numbers, min_size=obs_dim, max_size=obs_dim)
    write = st.tuples(st.integers(0, num_envs - 1), row, numbers, st.booleans())
    return num_envs, obs_dim, draw(st.lists(write, max_size=12))


@given(pipelines())
def test_any_pipeline_agrees_with_the_model(case: tuple[int, int, list[Any]]) -> None:
    result = shared_memory_rl_pipeline(*case)
    assert result == pipeline_model(*case)
    assert own_names() == []
