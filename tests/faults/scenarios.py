"""What must survive the failure of any call: each constructor and save path, made, used and closed."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import shoal
from shoal.memory import Layout, Segment
from shoal.native.build import build
from shoal.process import launcher as launchers
from shoal.replay import PrioritizedSampler, ReplayBuffer, SharedCircularBuffer
from shoal.state import attach
from shoal.state.publish import Publisher
from shoal.state.session import watch_fields
from shoal.state.snapshot import Field, Snapshot
from shoal.vector import ProcessVectorEnv
from shoal.viewer.server import Server

LAYOUT = Layout({"a": (np.float32, (8, 3)), "b": (np.uint8, (5,))})
FIELDS = {"number": (np.uint64, ()), "body": (np.uint8, (24,))}
SCENARIOS: dict[str, Callable[[Path], None]] = {}


def scenario(run: Callable[[Path], None]) -> Callable[[Path], None]:
    SCENARIOS[run.__name__] = run
    return run


def _use(segment: Segment) -> None:
    with segment:
        segment["a"][3] = 2.5
        with segment.reader() as reader:
            assert reader["a"][3, 1] == 2.5


@scenario
def segment_anonymous(directory: Path) -> None:
    _use(Segment(LAYOUT))
    _use(Segment.published(LAYOUT))
    _use(Segment(Layout({"a": (np.float32, (1 << 18, 3))}), huge_pages=True))  # which is aligned to 2 MB


@scenario
def segment_named(directory: Path) -> None:
    with Segment.named(LAYOUT) as segment:
        assert segment.name is not None
        segment["a"][0] = 7
        with Segment.attach(segment.name, LAYOUT, readonly=True) as other:
            assert other["a"][0, 0] == 7


@scenario
def segment_file(directory: Path) -> None:
    path = directory / "a.seg"
    with Segment.file(LAYOUT, path) as segment:
        segment["b"][:] = 9
    try:
        with Segment.open(path) as other:
            assert other["b"].tolist() == [9] * 5
    finally:
        path.unlink()


def _rows(count: int) -> dict[str, Any]:
    return {"number": np.arange(count, dtype=np.uint64), "body": np.full((count, 24), 3, np.uint8)}


@scenario
def replay_plain(directory: Path) -> None:
    with ReplayBuffer(16, FIELDS, seed=0) as buffer:
        buffer.extend(_rows(20))
        assert buffer.latest(16)["number"].tolist() == list(range(4, 20))
        assert (buffer.sample(8)["body"] == 3).all()


@scenario
def replay_prioritized(directory: Path) -> None:
    with ReplayBuffer(16, FIELDS, seed=0) as buffer:
        sampler = PrioritizedSampler(buffer, seed=0)
        buffer.extend(_rows(20))
        batch = sampler.sample(4)
        assert sampler.update_priorities(batch.ids, np.ones(4)) == 4


@scenario
def replay_file(directory: Path) -> None:
    path = directory / "a.ring"
    try:
        with ReplayBuffer(16, FIELDS, path=path, durability="sync", seed=0) as buffer:
            buffer.extend(_rows(20))
        with ReplayBuffer.open(path) as buffer:
            assert buffer.latest(16)["number"].tolist() == list(range(4, 20))
    except OSError as error:
        # What was made before the call that failed is the user's, and can be opened again.
        if path.exists():
            with ReplayBuffer.open(path) as buffer:
                assert buffer.latest(16)["number"].tolist() in ([], list(range(4, 20))), error
        raise
    finally:
        path.unlink(missing_ok=True)


@scenario
def replay_create(directory: Path) -> None:
    """Who could not make a file finds none there."""
    path = directory / "a.ring"
    ReplayBuffer(16, FIELDS, path=path, seed=0).close()
    path.unlink()


@scenario
def replay_snapshot(directory: Path) -> None:
    with ReplayBuffer(16, FIELDS, seed=0) as buffer:
        buffer.extend(_rows(20))
        path = directory / "a.ring"
        path.write_bytes(b"what was there before")
        try:
            buffer.snapshot(path)
        except Exception:
            assert path.read_bytes()[:8] in (b"what was", b"SHOALSEG")
            raise
        finally:
            try:
                if path.read_bytes()[:8] == b"SHOALSEG":
                    with ReplayBuffer.open(path) as other:
                        assert len(other) == 16
            finally:
                path.unlink()


@scenario
def replay_save(directory: Path) -> None:
    with ReplayBuffer(16, FIELDS, seed=0) as buffer:
        buffer.extend(_rows(20))
        place = directory / "saved"
        try:
            buffer.save(place)
            with ReplayBuffer.load(place) as other:
                assert len(other) == 16
        finally:
            for path in sorted(place.rglob("*")) if place.exists() else ():
                path.unlink()
            if place.exists():
                place.rmdir()


@scenario
def replay_trajectories(directory: Path) -> None:
    envs = shoal.make_vec("CartPole-v1", 2, session=None)
    try:
        with ReplayBuffer.for_env(envs, 64, path=directory / "t.ring", seed=0) as buffer:
            assert buffer.capacity == 64
            buffer.snapshot(directory / "s.ring")
    finally:
        envs.close()
        (directory / "t.ring").unlink(missing_ok=True)
        (directory / "s.ring").unlink(missing_ok=True)


@scenario
def circular(directory: Path) -> None:
    buffer = SharedCircularBuffer(4, 2)
    try:
        buffer.push([1, 2], 1, 0.5, [2, 3], False)
        assert buffer.latest(1)["states"] == [[1.0, 2.0]]
    finally:
        buffer.close()


def _native(**keywords: Any) -> None:
    num_envs = 300  # so many that there is work for a second thread
    envs = shoal.make_vec("CartPole-v1", num_envs, num_threads=2, **keywords)
    try:
        observations, _ = envs.reset(seed=0)
        kept = [envs.step(np.zeros(num_envs, np.int64))[0] for _ in range(4)]
        assert observations.shape == (num_envs, 4) == kept[-1].shape
        envs.restore_env(1, envs.save_env(0))
    finally:
        envs.close()


@scenario
def native_leased(directory: Path) -> None:
    _native(session=None, max_slots=3)


@scenario
def native_live(directory: Path) -> None:
    _native(session=None, buffers="live")


@scenario
def native_copy(directory: Path) -> None:
    _native(session=None, buffers="copy", autoreset_mode="SameStep", episode_stats=True)


@scenario
def native_flow(directory: Path) -> None:
    envs = shoal.make_vec("CartPole-v1", 64, batch_size=32, num_threads=2, session=None)
    try:
        envs.async_reset(seed=0)
        for _ in range(4):
            _, _, _, _, info = envs.recv()
            envs.send(np.zeros(32, np.int64), info["env_id"])
    finally:
        envs.close()


@scenario
def native_rollout(directory: Path) -> None:
    envs = shoal.make_vec("CartPole-v1", 8, session=None)
    try:
        observations, _ = envs.reset(seed=0)
        rollout = envs.rollout(4)
        rollout.start(observations)
        for _ in range(4):
            rollout.step(np.zeros(8, np.int64))
    finally:
        envs.close()


@scenario
def session(directory: Path) -> None:
    _native(session="faults")


@scenario
def attached(directory: Path) -> None:
    envs = shoal.make_vec("CartPole-v1", 4, session="faults")
    try:
        envs.reset(seed=0)
        with attach("faults") as watcher:
            assert watcher.facts["num_worlds"] == 4
            watcher.watch([1])
            for _ in range(3):
                envs.step(np.zeros(4, np.int64))
            assert watcher.counters()["steps"] >= 0
    finally:
        envs.close()


@scenario
def publisher(directory: Path) -> None:
    envs = shoal.make_vec("CartPole-v1", 4, session="faults")
    try:
        hosted = envs._hosted
        with attach("faults") as watcher:
            watcher.watch([1])
            memory = {name: np.zeros(shape, dtype) for name, (dtype, shape) in watch_fields(1).items()}
            memory["watched"][:] = -1
            memory["watched"][0] = 1, 1
            address = np.frombuffer(hosted.address.encode(), np.uint8)
            memory["session"][: len(address)] = address
            made = Publisher(memory, 0, 4)
            snapshot = Snapshot(1, 0, 0, 1, {"x": Field("x", np.zeros(3, np.float32))})
            made(lambda env: snapshot, lambda env: None)
            made.close()
    finally:
        envs.close()


class Plain(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones(3, np.float32), 1.0, False, False, {}


def _processes(**keywords: Any) -> None:
    envs = ProcessVectorEnv([Plain] * 4, num_workers=2, **keywords)
    try:
        envs.reset(seed=0)
        assert (envs.step(np.zeros(4, np.int64))[0] == 1).all()
    finally:
        envs.close()


@scenario
def processes_forked(directory: Path) -> None:
    _processes(context="fork", session=None)


@scenario
def processes_launched(directory: Path) -> None:
    _processes(session=None)


@scenario
def processes_session(directory: Path) -> None:
    _processes(context="fork", session="faults")


@scenario
def launcher(directory: Path) -> None:
    """The process that workers are forked from."""
    if launchers._current is not None:
        launchers._current.close()
        launchers._current = None
    _processes(session=None)


_loop: list[asyncio.AbstractEventLoop] = []  # Python's, made before anything fails


@scenario
def viewer(directory: Path) -> None:
    if not _loop:
        _loop.append(asyncio.new_event_loop())
        atexit.register(_loop[0].close)
    envs = shoal.make_vec("CartPole-v1", 4, session="faults")
    try:
        with attach("faults") as watcher:
            server = Server(watcher, {"/": b""})

            async def run() -> None:
                await server.start()
                await server.close()

            _loop[0].run_until_complete(run())
    finally:
        envs.close()


@scenario
def built(directory: Path) -> None:
    source = directory / "one.c"
    source.write_text(Path(__file__).parents[2].joinpath("examples/my_env.c").read_text())
    target = directory / "one.so"
    try:
        assert build(source, output=target).exists()
    finally:
        target.unlink(missing_ok=True)
        source.unlink()
