"""The history of a run: for watchers, after its end and in files, also damaged ones."""

import functools
import gc
import json
import os
import shutil
import signal
import struct
import threading
import time
import warnings
import zlib

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.errors import ClosedError, SessionError
from shoal.memory import Layout, Segment
from shoal.state import History, names, read_history
from shoal.state.history import CURVES, ReadHistory, WriteHistory
from tests.crash.fragile import wait_until

BACKENDS = {
    "threads": {},
    "workers": {"backend": "process", "num_workers": 2},
    "sent": {"batch_size": 8},
}


def step_for(envs, seconds):
    """Steps with random actions; returns the return and length of every episode that ended."""
    rng, until = np.random.default_rng(0), time.monotonic() + seconds
    found = []
    if envs.batch_size is None:
        envs.reset(seed=0)
    else:
        envs.async_reset(seed=0)
    while time.monotonic() < until:
        actions = rng.integers(0, 2, envs.batch_size or envs.num_envs)
        if envs.batch_size is None:
            *_, info = envs.step(actions)
        else:
            *_, info = envs.recv()
            envs.send(actions, info["env_id"])
        if "episode" in info:
            ended = info["_episode"]
            found += zip(info["episode"]["r"][ended], info["episode"]["l"][ended], strict=True)
    return np.array(found)


def total(curve):
    """Mean, lowest, highest and number of all values of a curve."""
    there = curve.weight > 0
    mean = np.average(curve.mean[there].astype(float), weights=curve.weight[there])
    return mean, curve.low[there].min(), curve.high[there].max(), curve.weight.sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_history_has_every_episode_of_the_run(backend, name, tmp_path):
    file = tmp_path / "run.history"
    envs = shoal.make_vec(
        "CartPole-v1", 16, session=name, history=file, episode_stats=backend != "sent", **BACKENDS[backend]
    )
    episodes = step_for(envs, 0.9)
    steps = None if backend == "sent" else envs.stats["steps"]
    with shoal.attach(name) as session:
        wait_until(lambda: len(session.history()) >= 3, 20)
        live = session.history()
        returns = session.returns()
        envs.close()
        ended = session.history()  # the memory outlives the run
    saved = read_history(file)
    assert live.names == saved.names == CURVES and saved.facts["name"] == name
    assert np.array_equal(live.bins, saved.bins[: len(live)])  # so a page that comes late sees the same
    assert np.array_equal(ended.curves, saved.curves) and np.array_equal(ended.bins, saved.bins)
    assert (saved.bins["begin"][1:] == saved.bins["end"][:-1]).all() and saved.bins["begin"][0] == 0
    assert 0 < returns["count"] <= 16 and sum(returns["bins"]) == returns["count"]
    if len(episodes):
        mean, low, high, count = total(saved["return"])
        assert count == len(episodes) == saved.bins["episodes"][-1]
        assert (low, high) == (episodes[:, 0].min(), episodes[:, 0].max())
        assert mean == pytest.approx(episodes[:, 0].mean(), rel=1e-4)
        mean, low, high, count = total(saved["length"])
        assert (low, high) == (episodes[:, 1].min(), episodes[:, 1].max())
        assert mean == pytest.approx(episodes[:, 1].mean(), rel=1e-4)
    else:
        mean, low, high, count = total(saved["return"])
        assert count == saved.bins["episodes"][-1] > 0 and low < mean < high
    if steps is not None:
        assert saved.bins["steps"][-1] == steps
    rate = saved["steps_per_s"]
    assert np.nanmax(rate.mean) > 0 and (rate.low[rate.weight > 0] >= 0).all()


def test_several_agents_and_python_environments_have_histories(name):
    for number, (env, more) in enumerate(
        {"Reef-v0": {"num_agents": 4}, "MountainCar-v0": {"backend": "process"}}.items()
    ):
        envs = shoal.make_vec(env, 2, session=f"{name}-{number}", **more)
        envs.reset(seed=0)
        actions = np.zeros(envs.action_space.shape, envs.action_space.dtype)
        for _ in range(20):
            envs.step(actions)
        with shoal.attach(f"{name}-{number}") as session:
            wait_until(lambda: len(session.history()) >= 2, 20)  # noqa: B023
            assert session.history().bins["steps"][-1] > 0
        envs.close()


# -- logged values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_logged_values_become_curves(backend, name):
    envs = shoal.make_vec("CartPole-v1", 16, session=name, **BACKENDS[backend])
    values = [0.5, -3, np.float32(8), True, np.array(2.0)]
    with shoal.attach(name) as session:
        for value in values:
            envs.log(loss=value, **{"losses/entropy": 7})
        envs.log(loss=float("nan"), other=float("inf"))
        wait_until(lambda: "loss" in session.history().names and session.history()["loss"].weight.any(), 20)
        envs.close()
        history = session.history()
    assert history.names == (*CURVES, "loss", "losses/entropy", "other")
    assert total(history["loss"]) == pytest.approx((1.7, -3, 8, 5), rel=1e-6)
    assert total(history["losses/entropy"]) == (7, 7, 7, 5)
    assert not history["other"].weight.any() and np.isnan(history["other"].mean).all()
    assert np.isnan(history.last["loss"]) and history.last["losses/entropy"] == 7


@pytest.mark.parametrize("session", ["auto", None])
def test_wrong_values_and_names_are_errors_and_nothing_is_kept(session):
    envs = shoal.make_vec("CartPole-v1", 2, session=session)
    envs.log(first=1)
    for values, kind, text in (
        ({"loss": "0.5x"}, TypeError, "got '0.5x' for 'loss'"),
        ({"good": 1, "loss": None}, TypeError, "got None"),
        ({"loss": [1.0]}, TypeError, "must be numbers"),
        ({"loss": 1j}, TypeError, "must be numbers"),
        ({"loss": np.zeros(3)}, TypeError, "must be numbers"),
        ({"": 1}, ValueError, "printable text of 1 to 63 bytes"),
        ({"a\nb": 1}, ValueError, "printable"),
        ({"\ud800": 1}, ValueError, "printable"),
        ({"é" * 32: 1}, ValueError, "63 bytes"),
        ({str(i): i for i in range(24)}, ValueError, "at most 24 names"),
    ):
        with pytest.raises(kind, match=text):
            envs.log(**values)
    envs.log(**{str(i): i for i in range(23)})  # what was refused took no room
    with pytest.raises(ValueError, match="'more' would be one more"):
        envs.log(more=1)
    if session is not None:
        with shoal.attach(envs.session) as watching:
            assert watching.history().names == (*CURVES, "first", *map(str, range(23)))
            assert watching.history().last == {"first": 1.0, **{str(i): float(i) for i in range(23)}}
    envs.close()
    with pytest.raises(ClosedError):
        envs.log(first=2)


# -- files -----------------------------------------------------------------------------------------------


def make_history(count=5, names=("loss",)):
    bins = np.zeros(
        count, np.dtype([("begin", "<f8"), ("end", "<f8"), ("steps", "<u8"), ("episodes", "<u8")])
    )
    bins["begin"], bins["end"] = np.arange(count), np.arange(count) + 1.0
    bins["steps"] = np.arange(count) * 10
    curves = np.random.default_rng(0).random((count, 3 + len(names), 4), np.float32)
    return History({"name": "run", "env": "CartPole-v1"}, bins, curves, (*CURVES, *names), {"loss": 0.5})


def test_a_saved_history_is_read_again(tmp_path):
    history = make_history()
    history.save(tmp_path / "h")
    again = read_history(tmp_path / "h")
    assert np.array_equal(again.bins, history.bins) and np.array_equal(again.curves, history.curves)
    assert (again.facts, again.names, again.last) == (history.facts, history.names, history.last)
    assert os.listdir(tmp_path) == ["h"]
    with pytest.raises(KeyError, match="no curve 'x'; there are return, length"):
        again["x"]
    make_history(0, ()).save(tmp_path / "h")
    assert len(read_history(tmp_path / "h")) == 0


def test_files_that_are_no_histories_are_errors(tmp_path):
    whole = tmp_path / "whole"
    make_history().save(whole)
    data = whole.read_bytes()
    (tmp_path / "text").write_text("once upon a time")
    (tmp_path / "empty").touch()
    (tmp_path / "short").write_bytes(data[:-9])
    (tmp_path / "tiny").write_bytes(data[:10])
    (tmp_path / "newer").write_bytes(data[:8] + struct.pack("<I", 9) + data[12:])
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    os.mkfifo(tmp_path / "fifo")
    for name, text in (
        ("text", "is not a history of Shoal"),
        ("empty", "is not a history"),
        ("short", "damaged or incomplete .its checksum"),
        ("tiny", "damaged or incomplete"),
        ("newer", "format 9"),
        ("huge", "at most 16,777,216"),
        ("fifo", "is not a file"),
        ("absent", "No such file"),
        (".", "Is a directory|is not a file"),
    ):
        with pytest.raises(SessionError, match=text):
            read_history(tmp_path / name)
    with pytest.raises(SessionError, match="null"):
        read_history("a\0b")
    if os.geteuid() != 0:
        whole.chmod(0)
        with pytest.raises(SessionError, match="Permission denied"):
            read_history(whole)


@functools.cache
def saved_bytes(file):
    make_history().save(file)
    return file.read_bytes()


def seal(data):
    """With the right checksum, so that what is behind it is read."""
    return data[:-4] + struct.pack("<I", zlib.crc32(data[:-4]))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_damage_crashes_the_reader(tmp_path_factory, data):
    file = tmp_path_factory.getbasetemp() / "damaged.history"
    content = bytearray(saved_bytes(file))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    if data.draw(st.booleans()):
        content = bytearray(seal(bytes(content)))
    file.write_bytes(content)
    try:
        found = read_history(file)
    except SessionError:
        return
    assert len(found) <= 1 << 16 and found["return"].mean.dtype == np.float32


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(["facts", "names", "last", "bins", None]),
)
def test_no_header_crashes_the_reader(tmp_path_factory, value, key):
    about = {"facts": {"name": "x"}, "names": list(CURVES), "last": {}, "bins": 0}
    text = json.dumps(value if key is None else {**about, key: value}).encode()
    whole = struct.pack("<8sII", b"SHOALHIS", 1, len(text)) + text + zlib.compress(b"") + b"1234"
    file = tmp_path_factory.getbasetemp() / "odd.history"
    file.write_bytes(seal(whole))
    try:
        read_history(file)
    except SessionError:
        pass


def test_a_history_needs_a_session_and_a_file_that_can_be_written(tmp_path):
    with pytest.raises(ValueError, match="needs a session"):
        shoal.make_vec("CartPole-v1", 2, session=None, history=tmp_path / "h")
    with pytest.raises(TypeError, match="history must be the path of a file"):
        shoal.make_vec("CartPole-v1", 2, history=3)
    with pytest.raises(SessionError, match="cannot save the history to .*No such file"):
        shoal.make_vec("CartPole-v1", 2, history=tmp_path / "no" / "h")


def test_a_run_that_forgets_to_close_saves_its_history(tmp_path, run_python):
    run_python(
        "import shoal, sys, time\n"
        "envs = shoal.make_vec('CartPole-v1', 4, history=sys.argv[1])\n"
        "envs.reset(seed=0)\n"
        "end = time.monotonic() + 0.6\n"
        "while time.monotonic() < end:\n"
        "    envs.step([0] * 4)\n"
        "envs.log(loss=1.5)\n",
        tmp_path / "h",
    )
    history = read_history(tmp_path / "h")
    assert len(history) >= 3 and history.bins["episodes"][-1] > 0 and history.last == {"loss": 1.5}


def test_the_history_of_a_killed_run_stays_readable(name, start_python):
    run = start_python(
        "import shoal, sys\n"
        "envs = shoal.make_vec('CartPole-v1', 4, session=sys.argv[1])\n"
        "envs.reset(seed=0)\n"
        "print('there', flush=True)\n"
        "while True:\n"
        "    envs.step([0] * 4)\n",
        name,
    )
    assert run.read() == "there"
    with shoal.attach(name) as session:
        wait_until(lambda: len(session.history()) >= 3, 20)
        os.kill(run.pid, signal.SIGKILL)
        wait_until(lambda: not session.alive, 20)
        assert session.history().bins["episodes"][-1] > 0
    assert name not in [facts["name"] for facts in shoal.state.sessions()]  # and its name is removed


@pytest.mark.parametrize("is_logging", [True, False])
def test_a_killed_run_leaves_a_history_file(name, start_python, tmp_path, is_logging):
    file = tmp_path / "run.history"
    run = start_python(
        "import shoal, sys\n"
        "shoal.state.session._SAVE_S = 0.2\n"
        "envs = shoal.make_vec('CartPole-v1', 4, session=sys.argv[1], history=sys.argv[2])\n"
        "envs.reset(seed=0)\n"
        "print('there', flush=True)\n"
        "while True:\n"
        "    envs.step([0] * 4)\n" + "    envs.log(loss=0.5)\n" * is_logging,
        name,
        file,
    )
    assert run.read() == "there"
    wait_until(lambda: len(read_history(file)) >= 3, 20)
    os.kill(run.pid, signal.SIGKILL)
    found = read_history(file)
    assert found.bins["episodes"][-1] > 0
    assert not is_logging or found["loss"].mean[-1] == 0.5
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["run.history"]
    wait_until(lambda: name not in [path.name for path in names.list_paths()], 20)


def test_a_file_that_cannot_be_saved_meanwhile_is_one_warning(name, tmp_path, monkeypatch, recwarn):
    (tmp_path / "d").mkdir()
    envs = shoal.make_vec("CartPole-v1", 4, session=name, history=tmp_path / "d" / "run.history")
    shutil.rmtree(tmp_path / "d")
    for _ in range(3):
        envs._hosted._file.save()
    envs.close()
    assert sum("cannot be saved" in str(one.message) for one in recwarn) == 1


def test_a_session_that_nobody_refers_to_is_closed_and_its_file_is_saved(name, tmp_path, monkeypatch):
    monkeypatch.setattr(shoal.state.session, "_SAVE_S", 0.01)
    file, threads = tmp_path / "run.history", threading.active_count()
    envs = shoal.make_vec("CartPole-v1", 4, session=name, history=file)
    assert threading.active_count() == threads + 1
    envs.reset(seed=0)
    for _ in range(100):
        envs.step([0] * 4)
    steps = envs.stats["steps"]
    time.sleep(0.05)  # the thread has saved the file some times
    del envs
    gc.collect()
    wait_until(lambda: threading.active_count() == threads, 20)
    assert read_history(file).bins["steps"][-1] == steps > 300


def test_without_a_file_no_thread_is_started(name):
    threads = threading.active_count()
    with shoal.make_vec("CartPole-v1", 4, session=name):
        assert threading.active_count() == threads


def test_a_file_is_not_saved_after_the_session_was_closed(name, tmp_path, monkeypatch):
    monkeypatch.setattr(shoal.state.session, "_SAVE_S", 0.001)
    file = tmp_path / "run.history"
    for _ in range(20):  # the thread is at another point each time
        with shoal.make_vec("CartPole-v1", 4, session=name, history=file) as envs:
            envs.reset(seed=0)
        file.unlink()
    time.sleep(0.02)
    assert not any(tmp_path.iterdir())


def test_a_thread_that_cannot_be_started_is_an_error_and_leaves_nothing(name, tmp_path, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(SessionError, match="cannot start the thread that saves"):
            shoal.make_vec("CartPole-v1", 4, session=name, history=tmp_path / "run.history")
    with shoal.make_vec("CartPole-v1", 4, session=name):  # the name is free
        pass


def test_a_relative_file_stays_where_it_was_when_the_run_began(name, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with shoal.make_vec("CartPole-v1", 4, session=name, history="run.history") as envs:
        envs.reset(seed=0)
        monkeypatch.chdir("other")
    assert read_history(tmp_path / "run.history") is not None
    assert not any((tmp_path / "other").iterdir())


def test_a_warning_that_is_an_error_does_not_end_the_thread(name, tmp_path, monkeypatch):
    monkeypatch.setattr(shoal.state.session, "_SAVE_S", 0.01)
    (tmp_path / "d").mkdir()
    file = tmp_path / "d" / "run.history"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with shoal.make_vec("CartPole-v1", 4, session=name, history=file):
            shutil.rmtree(tmp_path / "d")
            time.sleep(0.1)
            (tmp_path / "d").mkdir()
            wait_until(file.exists, 20)


# -- memory ----------------------------------------------------------------------------------------------


def test_damaged_memory_is_an_error():
    writer = WriteHistory()
    reader = ReadHistory(writer.open_reader())
    assert len(reader.copy({"name": "x"})) == 0
    writer.memory[:8] = 1  # the sequence: its writer died
    with pytest.raises(SessionError, match="damaged: its writer ended"):
        reader.copy({})
    writer.memory[:] = 0
    for value in (255, 1, 127):
        writer.memory[8:] = value
        with pytest.raises(SessionError, match="damaged"):
            reader.copy({})
    writer.close()


def test_watchers_cannot_write_the_history():
    writer = WriteHistory()
    segment = Segment.from_fileno(writer.open_reader(), readonly=True)
    with pytest.raises(ValueError, match="read-only"):
        segment["history"][0] = 1
    with pytest.raises(ValueError, match="read-only"):
        shoal._core.History(segment["history"]).log({"x": 1})
    segment.close()
    writer.close()


def test_memory_that_is_no_history_is_an_error():
    for layout in (Layout({"other": (np.uint8, (64,))}), Layout({"history": (np.uint8, (64,))})):
        with Segment(layout) as segment, pytest.raises(SessionError, match="another version of Shoal"):
            ReadHistory(os.dup(segment.fileno()))


@pytest.mark.parametrize("name", ["return", "length", "steps_per_s"])
def test_a_name_that_every_history_has_is_not_logged(name):
    with shoal.make_vec("CartPole-v1", 2) as envs:
        with pytest.raises(ValueError, match=f"every history has a curve {name}; log yours by another name"):
            envs.log(**{name: 1.0})


ODD = """
#include <math.h>
#include <shoal/env.h>

static const char *describe(const shoal_value *options, shoal_spec *spec) {
    (void)options;
    const shoal_field place = {.dtype = SHOAL_FLOAT32, .kind = SHOAL_BOX, .low = -1, .high = 1};
    const shoal_field move = {.dtype = SHOAL_INT64, .kind = SHOAL_DISCRETE, .high = 1};
    spec->instance_bytes = sizeof(uint32_t); /* episodes so far */
    spec->max_episode_steps = 2;
    spec->add_observation(spec->host, &place);
    spec->add_action(spec->host, &move);
    return 0;
}

static void reset(shoal_envs *envs, uint64_t begin, uint64_t end) {
    for (uint64_t env = begin; env < end; env++) {
        ++*SHOAL_INSTANCE(uint32_t, envs, env);
        *SHOAL_OBSERVATION(float, envs, 0, env) = 0;
    }
}

static void step(shoal_envs *envs, uint64_t begin, uint64_t end) {
    for (uint64_t env = begin; env < end; env++) {
        *SHOAL_OBSERVATION(float, envs, 0, env) = 0;
        envs->rewards[env] = *SHOAL_INSTANCE(uint32_t, envs, env) % 2 ? NAN : 1;
        envs->terminated[env] = 0;
        if (envs->reset[env])
            reset(envs, env, env + 1);
    }
}

const shoal_entry_v1 shoal_entry = {
    .abi_major = SHOAL_ABI_MAJOR, .name = "Odd-v0", .describe = describe, .reset = reset, .step = step};
"""


class Rewarded(gymnasium.Env):
    """Episodes of two steps; the second reward of the first episodes is given, then it is 3."""

    observation_space = Box(-1, 1, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, *odd):
        self.odd, self.episode = list(odd), -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.at = self.episode + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.at += 1
        last = self.odd[self.episode] if self.episode < len(self.odd) else 3.0
        return np.zeros(1, np.float32), last if self.at == 2 else 1.0, self.at == 2, False, {}


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_return_that_is_not_finite_is_left_out_of_the_curve(odd):
    """It would otherwise be in the sum of all later bins."""
    with shoal.make_vec(lambda: Rewarded(odd, 5.0), 2, num_workers=1) as envs:
        step_for(envs, 1.2)
        with shoal.attach(envs.session) as session:
            history, counters = session.history(), session.counters()
        returns, lengths = history["return"], history["length"]
        there = returns.weight > 0
        assert there.sum() >= 3 and np.isfinite(returns.mean[there]).all()
        assert set(np.unique(returns.low[there])) <= {4.0} and returns.high[there].max() == 6.0
        assert (lengths.weight - returns.weight).sum() == 2  # one of each environment
        assert counters["odd_returns"] == 2 and np.isfinite(counters["return_sum"])
        assert np.isnan(envs.stats["mean_return"])  # of all episodes


def test_a_c_environment_with_nan_rewards_has_a_curve_of_the_others(tmp_path):
    source = tmp_path / "odd.c"
    source.write_text(ODD)
    with shoal.make_vec(str(source), 64, num_threads=2) as envs:
        step_for(envs, 1.2)
        with shoal.attach(envs.session) as session:
            history, counters = session.history(), session.counters()
    returns, lengths = history["return"], history["length"]
    there = returns.weight > 0
    assert there.sum() >= 3 and (returns.mean[there] == 2).all() and (returns.low[there] == 2).all()
    assert np.allclose(returns.weight[there] * 2, lengths.weight[there], rtol=0.2)
    assert counters["return_sum"] == 2 * (counters["episodes"] - counters["odd_returns"])
