"""Cases that AsyncVectorEnv gets wrong: stale results, dropped actions, half a step, final observations."""

import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.vector import AutoresetMode

from shoal import ReplayBuffer
from shoal.errors import WorkerDied
from shoal.vector import ProcessVectorEnv
from tests.vector.test_process_envs import (
    DIE,
    END,
    RAISE,
    SLOW,
    Broken,
    Counter,
    Words,
    counters,
    logged,
    wait_for,
)

EXPIRED = multiprocessing.TimeoutError


@pytest.fixture
def gate(tmp_path):
    return tmp_path / "gate"


def expire(envs, gate, name, *arguments):
    """Begins what waits for the gate, does not wait for it, and then opens the gate."""
    gate.unlink(missing_ok=True)
    getattr(envs, f"{name}_async")(*arguments)
    with pytest.raises(EXPIRED, match=f"`{name}_wait` has timed out after 0.01 second"):
        getattr(envs, f"{name}_wait")(timeout=0.01)
    gate.touch()


def assert_of_step(results, count):
    observations, rewards, *_, info = results
    assert observations[:, 2].tolist() == rewards.tolist() == info["count"].tolist() == count


# -- after a timeout ----------------------------------------------------------------------------------


@pytest.mark.parametrize("caller_steps", [False, True])
@pytest.mark.parametrize("buffers", ["leased", "live", "copy"])
def test_after_a_timeout_observation_reward_and_info_belong_to_the_same_step(tmp_path, buffers, caller_steps):
    gates = [tmp_path / "first", tmp_path / "second", None]
    makers = [lambda who=who: Counter(who, gates[who]) for who in range(3)]
    with ProcessVectorEnv(makers, num_workers=2, buffers=buffers, caller_steps=caller_steps) as envs:
        envs.reset(seed=0)
        expire(envs, gates[1], "step", [0, SLOW, 0])
        assert_of_step(envs.step([0, 0, 0]), [2, 2, 2])
        expire(envs, gates[0], "step", [SLOW, 0, 0])
        expire(envs, gates[1], "step", [0, SLOW, 0])  # two in a row
        for count in (5, 6, 7):
            assert_of_step(envs.step([0, 0, 0]), [count] * 3)


def test_interrupted_wait_keeps_results_of_the_callers_chunk(gate):
    class Cut(Exception):
        pass

    def cut(number, frame):
        raise Cut

    with ProcessVectorEnv(counters(3, gate=gate), num_workers=1, caller_steps=True) as envs:
        envs.reset(seed=0)
        before = signal.signal(signal.SIGALRM, cut)
        try:
            envs.step_async([SLOW, 0, 0])
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Cut):
                envs.step_wait()
        finally:
            signal.signal(signal.SIGALRM, before)
        gate.touch()
        assert_of_step(envs.step_wait(), [1, 1, 1])  # the infos of the caller's own, too
        assert_of_step(envs.step([0, 0, 0]), [2, 2, 2])


def test_after_a_timeout_of_a_reset_or_a_call_nothing_is_stale(gate):
    class SlowReset(Counter):
        def reset(self, *, seed=None, options=None):
            if options:
                wait_for(options["gate"])
            return super().reset(seed=seed)

        def wait(self, gate):
            wait_for(gate)
            return "late"

    with ProcessVectorEnv([SlowReset] * 2, num_workers=2) as envs:
        envs.reset(seed=0)
        expire(envs, gate, "reset", 5, {"gate": gate})
        observations, rewards, *_, info = envs.step([0, 0])
        assert observations[:, 1:].tolist() == [[2, 1], [2, 1]] and rewards.tolist() == [1, 1]
        expire(envs, gate, "call", "wait", gate)
        assert envs.call("add", 1) == (1, 1)
        assert_of_step(envs.step([0, 0]), [2, 2])


def test_masked_reset_after_a_timeout_returns_current_observations_of_others(gate):
    with ProcessVectorEnv(counters(3, gate=gate), num_workers=2) as envs:
        kept = [envs.reset(seed=0), envs.step([0, 0, 0])]
        expire(envs, gate, "step", [SLOW, 0, 0])
        observations, _ = envs.reset(options={"reset_mask": np.array([True, False, False])})
        assert observations.tolist() == [[0, 2, 0], [1, 1, 2], [2, 1, 2]]
        assert len(kept) == 2


def test_observations_by_message_are_not_stale_after_a_timeout_an_error_or_a_death(gate):
    class Speaking(Counter):
        observation_space = Dict(words=Words(), count=Discrete(99))

        def _seen(self):
            return {"words": [f"{self.who}:{self.count}"], "count": self.count}

    makers = [lambda who=who: Speaking(who, gate) for who in range(2)]
    with ProcessVectorEnv(makers, num_workers=2, shared_memory=False) as envs:
        kept = [envs.reset(seed=0), envs.step([0, 0])]
        mask = {"reset_mask": np.array([True, False])}
        expire(envs, gate, "step", [SLOW, 0])
        assert envs.reset(options=mask)[0]["words"] == (["0:0"], ["1:2"])
        with logged(), pytest.raises(Broken):
            envs.step([RAISE, 0])
        assert envs.reset(options=mask)[0]["words"] == (["0:0"], ["1:3"])
        with pytest.raises(WorkerDied):
            envs.step([DIE, 0])
        assert envs.reset(options=mask)[0]["words"] == (["0:0"], ["1:4"])
        assert kept[1][0]["words"] == (["0:1"], ["1:1"])


def test_death_after_a_timeout_is_raised_and_reset_restarts_the_worker(gate):
    class SlowDeath(Counter):
        def step(self, action):
            if action == DIE:
                wait_for(self.gate)
            return super().step(action)

    makers = [lambda who=who: SlowDeath(who, gate) for who in range(2)]
    with ProcessVectorEnv(makers, num_workers=2) as envs:
        envs.reset(seed=0)
        expire(envs, gate, "step", [0, DIE])
        for _ in range(2):
            with pytest.raises(WorkerDied, match="exit code 3"):
                envs.step([0, 0])
        assert envs.reset(seed=0)[0].tolist() == [[0, 2, 0], [1, 2, 0]]
        expire(envs, gate, "step", [SLOW, DIE])
        assert envs.reset(seed=0)[0][:, 2].tolist() == [0, 0]  # the reset itself needs no telling
        assert_of_step(envs.step([0, 0]), [1, 1])
    with ProcessVectorEnv(makers, num_workers=2, on_fault="restart") as envs:
        envs.reset(seed=0)
        expire(envs, gate, "step", [0, DIE])
        observations, rewards, *_ = envs.step([0, 0])
        assert rewards[0] == observations[0, 2] == 2 and observations[1, 2] == rewards[1]
        assert envs.stats["restarts"] == 1


@pytest.mark.parametrize("on_fault", ["raise", "restart"])
def test_a_worker_that_died_before_the_timeout_is_not_forgotten(gate, on_fault):
    with ProcessVectorEnv(counters(2, gate=gate), num_workers=2, on_fault=on_fault) as envs:
        envs.reset(seed=0)
        envs.step_async([SLOW, DIE])
        while envs._backend.workers.pool.is_alive(1):
            time.sleep(0.002)
        raises = on_fault == "raise"
        with pytest.raises(WorkerDied if raises else EXPIRED, match="exit code 3" if raises else None):
            envs.step_wait(timeout=0.05)
        gate.touch()
        if raises:
            with pytest.raises(WorkerDied, match="exit code 3"):
                envs.step([0, 0])
        else:
            assert envs.step([0, 0])[1][0] == 2 and envs.stats["restarts"] == 1


ASKED = {
    "step": lambda envs: envs.step([0, 0]),
    "call": lambda envs: envs.get_attr("who"),
    "rollout": lambda envs: envs.rollout(2).start(np.zeros((2, 3), np.float32)),
}


@pytest.mark.parametrize("ask", ["step", "call", "rollout"])
def test_idle_worker_that_died_gives_no_stale_answer(ask):
    with ProcessVectorEnv(counters(2), num_workers=2) as envs:
        kept = [envs.reset(seed=0)]  # so that a step needs new memory, of which the workers are told
        os.kill(envs.worker_pids[1], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="SIGKILL"):
            ASKED[ask](envs)
            envs.step([0, 0])
        with pytest.raises(WorkerDied, match="SIGKILL"):
            envs.step([0, 0])
        assert envs.reset(seed=0)[0][:, 2].tolist() == [0, 0] and kept


# -- actions ------------------------------------------------------------------------------------------

SPACES = {
    "array": (Discrete(10), lambda n: np.zeros(n, np.int64)),
    "list": (Discrete(10), lambda n: [0] * n),
    "floats": (Box(0, 1, (2,)), lambda n: np.zeros((n, 2))),
    "dict": (
        Dict(a=Discrete(3), b=Box(0, 1, (2,))),
        lambda n: {"a": [0] * n, "b": np.zeros((n, 2), np.float32)},
    ),
    "ragged dict": (Dict(a=Discrete(3), b=Discrete(3)), lambda n: {"a": [0] * n, "b": [0] * 3}),
    "tuple": (Tuple((Discrete(3), Discrete(3))), lambda n: ([0] * n, [0] * n)),
    "messages": (Words(), lambda n: tuple(["a"] for _ in range(n))),
}


@pytest.mark.parametrize("case", SPACES)
def test_a_wrong_number_of_actions_steps_nothing(case):
    space, make = SPACES[case]

    class Own(Counter):
        action_space = space

        def step(self, action):
            return super().step(0)

    with ProcessVectorEnv([Own] * 3, num_workers=2) as envs:
        envs.reset(seed=0)
        for number in (0, 1, 2, 4, 6):
            with pytest.raises(ValueError):
                envs.step(make(number))
            with pytest.raises(ValueError):
                envs.step_async(make(number))
        assert envs.get_attr("count") == (0, 0, 0)
        assert envs.step(make(3))[1].tolist() == [1, 1, 1]


@pytest.mark.parametrize("masked", [False, True])
def test_reset_after_a_finished_episode_drops_no_action(masked):
    with ProcessVectorEnv(counters(3), num_workers=2) as envs:
        envs.reset(seed=0)
        assert envs.step([END, 0, 0])[2].tolist() == [True, False, False]
        options = {"reset_mask": np.array([True, False, False])} if masked else None
        envs.reset(options=options)
        observations, rewards, *_ = envs.step([1, 1, 1])
        assert observations[0].tolist() == [0, 2, 1] and rewards[0] == 1


# -- episodes' ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shared_memory", [True, False])
def test_an_environment_that_reuses_its_observation_and_info_ends_with_the_right_ones(shared_memory):
    class Thrifty(Counter):
        observation_space = (
            Box(-1e6, 1e6, (3,)) if shared_memory else Dict(words=Words(), seen=Box(-1e6, 1e6, (3,)))
        )
        buffer, info = np.zeros(3, np.float32), {"last": [0]}

        def _seen(self):
            self.buffer[:] = self.who, self.episode, self.count
            self.info["last"][0] = self.count
            return self.buffer if shared_memory else {"words": [], "seen": self.buffer}

        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0], self.info

        def step(self, action):
            *rest, _ = super().step(action)
            return *rest, self.info

    makers = [lambda who=who: Thrifty(who) for who in range(4)]  # all of a worker share one buffer
    mode = AutoresetMode.SAME_STEP
    with ProcessVectorEnv(makers, num_workers=2, autoreset_mode=mode, shared_memory=shared_memory) as envs:
        envs.reset(seed=0)
        envs.step([0, 0, 0, 0])
        observations, *_, info = envs.step([END, 0, END, END])
        seen = observations if shared_memory else observations["seen"]
        assert seen.tolist() == [[0, 2, 0], [1, 1, 2], [2, 2, 0], [3, 2, 0]]
        final = [one if one is None or shared_memory else one["seen"] for one in info["final_obs"]]
        assert [None if one is None else one.tolist() for one in final] == [
            [0, 1, 2],
            None,
            [2, 1, 2],
            [3, 1, 2],
        ]
        assert [one and one[0] for one in info["final_info"]["last"]] == [2, None, 2, 2]
        assert [one[0] for one in info["last"]] == [0, 2, 0, 0]


# -- making -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["same", "different"])
def test_every_function_is_called_once_and_never_in_this_process(tmp_path, mode):
    def maker(who):
        def make():
            (tmp_path / f"{who}-{os.getpid()}-{len(list(tmp_path.glob(f'{who}-*')))}").touch()
            return Counter(who)

        return make

    with ProcessVectorEnv([maker(who) for who in range(4)], num_workers=2, observation_mode=mode) as envs:
        calls = sorted(path.name.split("-")[:2] for path in tmp_path.iterdir())
        assert [int(who) for who, _ in calls] == [0, 1, 2, 3]
        assert [int(pid) for _, pid in calls] == [pid for pid in envs.worker_pids for _ in range(2)]
        assert os.getpid() not in envs.worker_pids


def test_caller_makes_only_its_own_chunk():
    class Where(Counter):
        def where(self):
            return os.getpid()

    with ProcessVectorEnv([Where] * 4, num_workers=1, caller_steps=True) as envs:
        assert envs.call("where") == (*envs.worker_pids * 2, os.getpid(), os.getpid())


# -- an environment that raises, Ctrl-C, and replay -------------------------------------------------------


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
def test_results_of_an_exception_mark_the_row_that_was_not_stepped(mode):
    with ProcessVectorEnv(counters(3), num_workers=2, autoreset_mode=mode) as envs:
        buffer = ReplayBuffer.for_env(envs, 100, seed=0)
        buffer.begin(envs.reset(seed=0)[0])
        for turn in range(6):
            actions = np.array([0, RAISE if turn == 2 else 0, 0])
            try:
                with logged():
                    results = envs.step(actions)
            except Broken as error:
                results = error.results
                assert results[4]["_fault"].tolist() == [False, True, False]
                assert "it was told to" in results[4]["fault"][1]
            buffer.add(actions, *results)
            if mode == AutoresetMode.DISABLED and results[3].any():
                observations, _ = envs.reset(options={"reset_mask": results[3]})
                buffer.begin(observations, results[3])
        batch = buffer.sample(64)
        assert (batch["next_obs"][:, 2] == batch["obs"][:, 2] + 1).all()  # never across the exception
        assert (batch["next_obs"][:, 1] == batch["obs"][:, 1]).all()
        buffer.close()


def test_ctrl_c_in_the_callers_chunk_steps_the_others_and_marks_the_row(gate):
    class Interrupted(Counter):
        def step(self, action):
            if action == RAISE:
                raise KeyboardInterrupt  # as a signal that arrives in here
            return super().step(action)

    makers = [lambda who=who: Interrupted(who, gate) for who in range(4)]
    with ProcessVectorEnv(makers, num_workers=1, caller_steps=True) as envs:
        envs.reset(seed=0)
        envs.step([0, 0, 0, 0])
        with pytest.raises(KeyboardInterrupt):
            envs.step([0, 0, RAISE, 0])
        observations, rewards, _, truncated, info = envs.step_wait()  # what the step came to
        assert observations[[0, 1, 3], 2].tolist() == rewards[[0, 1, 3]].tolist() == [2, 2, 2]
        assert truncated.tolist() == info["_fault"].tolist() == [False, False, True, False]
        assert envs.step([0, 0, 0, 0])[0][:, 2].tolist() == [3, 3, 0, 3]


def test_close_waits_for_its_timeout(gate):
    with ProcessVectorEnv(counters(2, gate=gate), num_workers=2) as envs:
        envs.reset(seed=0)
        envs.step_async([SLOW, 0])
        opener = threading.Timer(1.8, gate.touch)
        opener.start()
        begin = time.monotonic()
        with logged():
            envs.close(timeout=6)
        assert 1.7 < time.monotonic() - begin < 5  # it was done then, and nobody was killed
        opener.join()
