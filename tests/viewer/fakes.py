"""Sessions without a run: synthetic worlds behind the interface of shoal.state.attach.Session."""

import threading
import time

import numpy as np

from shoal.errors import SessionError
from shoal.state.history import CURVES, History
from shoal.state.recording import Recording
from shoal.state.snapshot import Category, Field, Snapshot

TILES = (Category(0, "water", "#1050a0"), Category(1, "sand", "#d0c080"), Category(2, "rock", "#606060"))
KINDS = (Category(0, "fish", "#ff8000"), Category(1, "shark", "#c0c0c0"))


def reef(env_id, episode, tick, size=512, count=3000):
    """A grid that never changes, entities that move, numbers, an image and an array whose NaN stay NaN."""
    rng = np.random.default_rng(env_id)
    grid = rng.integers(0, 3, (size, size), dtype=np.int8)
    entities = np.zeros((count, 6), np.int16)
    entities[:, :2] = (rng.integers(0, size, (count, 2)) + tick) % size
    entities[:, 2], entities[:, 3:5], entities[:, 5] = np.arange(count) % 2, (7, 10), tick % 4
    image = np.zeros((12, 16, 3), np.uint8)
    image[tick % 12] = 255
    columns = ("r", "c", "kind", "hp", "hp_max", "dir")
    world = {
        "tiles": Field("tiles", grid, "grid", categories=TILES, stable=True),
        "fish": Field("fish", entities, "entities", columns, KINDS),
        "food": Field("food", np.array(tick * 0.5, np.float64), "scalar"),
        "gaps": Field("gaps", np.array([np.nan, 1.0], np.float32)),
        "odd": Field("odd", np.arange(3, dtype=np.uint8)),
        "camera": Field("camera", image, "image"),
    }
    step = {
        "observation": Field("observation", np.full((2, 5), tick, np.float32)),
        "reward": Field("reward", np.array([tick, -1.0])),
        "terminated": Field("terminated", np.array([False, tick == 0])),
    }
    return Snapshot(env_id, episode, tick, time.monotonic_ns(), world, step)


def plain(env_id, episode, tick):
    """As a Gymnasium environment without export_state, that renders."""
    frame = np.full((20, 30, 3), tick % 256, np.uint8)
    step = {
        "observation": Field("observation", np.array([0.1, tick, -1.0, np.inf], np.float32)),
        "action": Field("action", np.array(tick % 2, np.int64)),
        "reward": Field("reward", np.array(1.0)),
        "terminated": Field("terminated", np.array(False)),
        "truncated": Field("truncated", np.array(False)),
        "frame": Field("frame", frame, "image"),
    }
    return Snapshot(env_id, episode, tick, time.monotonic_ns(), {}, step, "export_state() is not there")


def small(env_id, episode, tick):
    return reef(env_id, episode, tick, size=8, count=3)


class FakeSession:
    """Steps when told to; with `auto` once at each question."""

    def __init__(self, make=small, name="reef-1", num_worlds=32, auto=False, pid=1, **facts):
        self.facts = {
            "name": name,
            "env": "Reef-v0",
            "pid": pid,
            "num_envs": num_worlds * 2,
            "num_worlds": num_worlds,
            "agents": 2,
            "workers": 3,
            "backend": "process",
            "started": time.time() - 100,
            "observation_space": "Box(-inf, inf, (5,), float32)",
            "action_space": "Discrete(5)",
            "version": "0.1.0",
            **facts,
        }
        self.alive = True
        self.watched, self.rate_hz, self.wishes = [], None, 0
        self.closed = False
        self.tick = self.steps = self.episodes = 0
        self.return_sum, self.length_sum = 0.0, 0
        self._make, self._auto = make, auto
        self._lock = threading.Lock()

    # -- what tests do ---------------------------------------------------------------------------------

    def step(self, steps=1):
        with self._lock:
            self.tick += steps
            self.steps += steps * self.facts["num_worlds"]

    def finish(self, episode_return, length):
        with self._lock:
            self.episodes += 1
            self.return_sum += episode_return
            self.length_sum += length

    def end(self):
        self.alive = False

    # -- what a session does ---------------------------------------------------------------------------

    def _answer(self):
        if not self.alive:
            raise SessionError("the run has ended")
        if self._auto:
            self.step()
            if self.tick % 10 == 0:
                self.finish(5.0, 10)

    def counters(self):
        self._answer()
        with self._lock:
            return {
                "time_ns": time.monotonic_ns(),
                "steps": self.steps,
                "episodes": self.episodes,
                "return_sum": self.return_sum,
                "length_sum": self.length_sum,
                "odd_returns": 0,
            }

    def history(self):
        """A bin of a quarter of a second for each ten ticks, readable after the end."""
        count = 1 + self.tick // 10
        bins = np.zeros(count, [("begin", "<f8"), ("end", "<f8"), ("steps", "<u8"), ("episodes", "<u8")])
        bins["begin"], bins["end"] = np.arange(count) / 4, np.arange(1, count + 1) / 4
        bins["steps"] = np.arange(1, count + 1) * 10
        curves = np.ones((count, 4, 4), np.float32)
        curves[:, 3, 0] = np.arange(count)
        return History(dict(self.facts), bins, curves, (*CURVES, "loss"), {"loss": float("nan")})

    def returns(self):
        return {"count": 3, "low": -1.0, "high": 5.0, "bins": [1, 0, 2]}

    def ask_for_recording(self, env_id):
        """Records at once, an episode of ten steps; every other one has a higher return."""
        self.recorded = self.recorded + 1 if hasattr(self, "recorded") else 1
        self.recording = self._record(env_id, self.recorded)
        return True

    def _record(self, env_id, number):
        snapshots = tuple(self._make(env_id, number, tick) for tick in range(11))
        return Recording(env_id, number, 10.0 * (number % 2), 10, snapshots)

    def take_recording(self):
        found, self.recording = self.recording, None
        return found

    def cancel_recording(self):
        self.recording = None

    def watch(self, env_ids, rate_hz=20):
        if any(not 0 <= env < self.facts["num_worlds"] for env in env_ids):
            raise IndexError(f"no environment among {env_ids}")
        if len(env_ids) > 16:
            raise ValueError("at most 16 environments")
        if not 0.1 <= rate_hz <= 60:
            raise ValueError(f"rate_hz must be from 0.1 to 60, got {rate_hz}")
        self._answer()
        self.watched, self.rate_hz = list(env_ids), rate_hz
        self.wishes += 1

    def latest(self, env_id, after=0):
        """What was published stays readable after the end, as the windows do."""
        if self.alive and self._auto:
            self.step()
        number = self.tick + 1
        if env_id not in self.watched or number <= after:
            return None
        return number, self._make(env_id, self.tick // 1000, self.tick % 1000)

    def snapshot(self, env_id, timeout_s=1.0):
        if env_id not in self.watched:
            self.watch([*self.watched, env_id])
        found = self.latest(env_id)
        if found is None or not self.alive:
            raise TimeoutError(f"environment {env_id} made no step within {timeout_s} s")
        return found[1]

    def close(self):
        self.closed = True

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
