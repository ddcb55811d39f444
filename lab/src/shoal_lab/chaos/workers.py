"""Kills, stops, hangs and starves worker processes while they are stepped, and checks every row."""

from __future__ import annotations

import signal
import time
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from shoal.errors import WorkerDied
from shoal.vector import ProcessVectorEnv, make_vec
from shoal_lab.chaos.marked import ACTIONS, POINTS, Checker, Marked, Violation
from shoal_lab.chaos.rounds import Outcome, Reporter, Round
from shoal_lab.chaos.scene import Faults, Scene

__all__ = ["stage"]

ENVS, WORKERS = 12, 4
NATIVE_ENVS = 128
LIMIT_S, RESET_S = 0.2, 4.0
CALL_S = 10.0
CLOSE_S = 2.0
SHARES = {"restart": 0.4, "asynchronous": 0.2, "raising": 0.2, "native": 0.15, "timed": 0.05}


def stage(round_: Round, outcome: Outcome, reporter: Reporter) -> None:
    """Runs one round: each scene has its share of the kills."""
    scene = Scene(round_, outcome, reporter)
    only = round_.options.get("scene")
    shares = {only: 1.0} if only else SHARES
    counts = [round(round_.kills * share) for share in shares.values()]
    counts[0] += round_.kills - sum(counts)
    with ProcessVectorEnv(
        [partial(Marked, 0)], num_workers=1
    ) as envs:  # starts the launcher and fills caches
        envs.reset(seed=0)
    if "native" in shares:
        make_vec("shoal/CartPole-v1", NATIVE_ENVS, backend="process", num_workers=1).close()
        make_vec("shoal/CartPole-v1", NATIVE_ENVS).close()
    for name, kills in zip(shares, counts, strict=True):
        if kills > 0:
            with scene.require_no_leaks(f"the scene {name!r}"):
                SCENES[name](scene, kills, round_.options)
            reporter(outcome.kills, "closing")
    scene.signaller.close()


def _make_envs(scene: Scene, **arguments: Any) -> ProcessVectorEnv:
    makers = [partial(Marked, env, 100.0, scene.armed) for env in range(ENVS)]
    return ProcessVectorEnv(makers, num_workers=WORKERS, **arguments)


def _close(scene: Scene, envs: Any) -> None:
    begin = time.monotonic()
    scene.call("close()", CLOSE_S, envs.close)
    scene.outcome.time("close()", time.monotonic() - begin)


# -- on_fault="restart" -----------------------------------------------------------------------------------


def _restart(
    scene: Scene, kills: int, options: dict[str, Any], *, batch: int | None = None, timed: bool = False
) -> None:
    modes = list(AutoresetMode) if batch is None else [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]
    mode = AutoresetMode[options["autoreset"]] if "autoreset" in options else scene.random.choice(modes)
    envs = _make_envs(
        scene,
        autoreset_mode=mode,
        on_fault="restart",
        batch_size=batch,
        step_timeout_s=LIMIT_S if timed else None,
        reset_timeout_s=RESET_S if timed else None,
        context="fork" if scene.random.random() < 0.15 else None,
    )
    checker = Checker(ENVS, mode)
    faults = Faults(scene, envs, checker, timed)
    turns = _step_all if batch is None else _step_some
    last = kills // 5 if kills >= 20 and not timed else 0
    try:
        faults.set_count(kills - last)
        turns(scene, envs, checker, faults, "step with a repair" if not timed else "hang, to repaired", True)
        if last:
            with scene.starve(envs):
                faults.set_count(last)
                turns(scene, envs, checker, faults, "step with a repair, starved", False)
            scene.outcome.count("while starved", last)
    finally:
        faults.clear()
        scene.outcome.rows += checker.rows
    restarts = envs.stats["restarts"]
    _close(scene, envs)
    if restarts < kills // 2:
        raise Violation(3, f"{kills} faults, but {restarts} workers were replaced")


def _step_all(scene: Scene, envs: Any, checker: Checker, faults: Faults, timing: str, first: bool) -> None:
    all_envs = range(ENVS)
    if first:
        observation, _ = scene.call("reset()", CALL_S, envs.reset, seed=scene.seed)
        for env in all_envs:
            checker.check_reset(env, observation, env)
    held: list[Any] = []
    turn = after = 0
    while after < 30:
        after += faults.is_done
        turn += 1
        chosen = faults.actions(all_envs)
        begin = time.perf_counter()
        results = scene.call("step()", CALL_S, envs.step, chosen)
        took = time.perf_counter() - begin
        found = [checker.check(env, env, results) for env in all_envs]
        for env, fault in enumerate(found):
            faults.check_row(env, fault)
        if any(found):
            scene.outcome.time(timing, took)
        if envs.autoreset_mode == AutoresetMode.DISABLED and any(checker.done):
            mask = np.array(checker.done)
            options = {"reset_mask": mask}
            observation, info = scene.call("reset()", CALL_S, envs.reset, options=options)
            lost = info.get("_fault", np.zeros(ENVS, bool))
            for env in np.flatnonzero(mask | lost).tolist():
                checker.check_reset(env, observation, env)
            # The next step reports environments that restarted without being reset, with their neighbours.
            for env in np.flatnonzero(lost & ~mask).tolist():
                first = env - env % (ENVS // WORKERS)
                checker.unreported.update(range(first, first + ENVS // WORKERS))
        held = [*held, results][-(turn % 7) :]  # sometimes new slots are needed, sometimes not


def _step_some(scene: Scene, envs: Any, checker: Checker, faults: Faults, timing: str, first: bool) -> None:
    """Steps with send and recv. At the end it waits for all environments."""
    all_envs = np.arange(ENVS)
    if first:
        scene.call("async_reset()", CALL_S, envs.async_reset, seed=scene.seed)
        for _ in range(2):
            results = scene.call("recv()", CALL_S, envs.recv)
            for row, env in enumerate(results[4]["env_id"]):
                checker.check_reset(int(env), results[0], row)
    envs.send(np.zeros(ENVS, np.int64), all_envs)
    after = 0
    while after < 32:
        after += faults.is_done
        begin = time.perf_counter()
        results = scene.call("recv()", CALL_S, envs.recv)
        took = time.perf_counter() - begin
        ids = results[4]["env_id"].copy()
        found = [checker.check(int(env), row, results) for row, env in enumerate(ids)]
        for env, fault in zip(ids, found, strict=True):
            faults.check_row(int(env), fault)
        if any(found):
            scene.outcome.time(timing, took)
        parts = [ids] if scene.random.random() < 0.7 else np.array_split(ids, 2)
        for part in parts if after <= 30 else []:
            envs.send(faults.actions(part.tolist()), part)


def _timed(scene: Scene, kills: int, options: dict[str, Any]) -> None:
    """Uses a time limit for steps and workers that hang: with step, or with send and recv."""
    some = options.get("asynchronous", scene.random.random() < 0.5)
    _restart(scene, kills, options, batch=ENVS // 2 if some else None, timed=True)


# -- on_fault="raise" -------------------------------------------------------------------------------------


def _raising(scene: Scene, kills: int, options: dict[str, Any]) -> None:
    """Measures the time from the kill to the exception, and from there to a vector that works."""
    envs = _make_envs(scene)
    checker = Checker(ENVS, AutoresetMode.NEXT_STEP)
    observation, _ = scene.call("reset()", CALL_S, envs.reset, seed=scene.seed)
    for env in range(ENVS):
        checker.check_reset(env, observation, env)
    for _ in range(kills):
        w = scene.random.randrange(WORKERS)
        pid, ids = envs.worker_pids[w], list(range(w * ENVS // WORKERS, (w + 1) * ENVS // WORKERS))
        able = [env for env in ids if not checker.done[env]]
        chosen, timing = np.zeros(ENVS, np.int64), ""
        expected: int | None = signal.SIGKILL
        if able and scene.random.random() < 0.2:
            how = scene.random.choice(["segfault", "exit", *POINTS])
            chosen[scene.random.choice(able)] = ACTIONS.index(how)
            expected = {"segfault": signal.SIGSEGV, "row": signal.SIGSEGV, "exit": None}.get(how, expected)
            scene.outcome.count(f"at point {how}" if how in POINTS else how)
        else:
            assert pid is not None
            timing = scene.pause("death to exception")
            scene.signaller.send_signal(pid, signal.SIGKILL, scene.random.random() * 0.01)
            scene.outcome.count("SIGKILL at random")
        try:
            while True:
                results = scene.call("step()", CALL_S, envs.step, chosen)
                for env in range(ENVS):
                    checker.check(env, env, results)
        except WorkerDied as error:
            now = time.monotonic()
            if (error.pid, error.env_ids, error.signal) != (pid, ids, expected):
                expectation = f"worker {pid}, environments {ids} and signal {expected}"
                raise Violation(6, f"expected {expectation}, got: {error}") from error
        if timing:
            sent = scene.signaller.take_result(CALL_S)
            assert sent is not None
            scene.outcome.time(timing, now - sent.moment)
        scene.outcome.kills += 1
        begin = time.perf_counter()
        observation, _ = scene.call("reset()", CALL_S, envs.reset)
        scene.outcome.time("reset() that brings a worker back", time.perf_counter() - begin)
        for env in range(ENVS):
            checker.check_reset(env, observation, env, is_new=env in ids)
    scene.outcome.rows += checker.rows
    _close(scene, envs)


# -- environments in C ------------------------------------------------------------------------------------


def _native(scene: Scene, kills: int, options: dict[str, Any]) -> None:
    """Compares CartPoles in workers with CartPoles in one process: those not lost must have equal bytes."""
    kind = "shoal/CartPole-v1"
    envs: Any = make_vec(kind, NATIVE_ENVS, backend="process", num_workers=WORKERS, on_fault="restart")
    twin = make_vec(kind, NATIVE_ENVS, session=None)
    draws = np.random.default_rng(scene.seed)
    left, sent, timing = kills, True, ""
    while left > 0 or not sent:
        seed = scene.random.randrange(2**31)
        observation, info = scene.call("reset()", CALL_S, envs.reset, seed=seed)
        same = ~info.get("_fault", np.zeros(NATIVE_ENVS, bool))
        _require_twins((observation,), twin.reset(seed=seed)[:1], same)
        for _ in range(60):
            if left > 0 and sent and scene.random.random() < 0.5:
                timing = scene.pause("step with a repair, C environments")
                pid = scene.random.choice(envs.worker_pids)
                number = scene.random.choice([signal.SIGKILL, signal.SIGSEGV])
                sent = not scene.signaller.send_signal(pid, number, scene.random.random() * 0.003)
                scene.outcome.count(f"{number.name} at random, C environments")
            actions = draws.integers(0, 2, NATIVE_ENVS)
            begin = time.perf_counter()
            results = scene.call("step()", CALL_S, envs.step, actions)
            took = time.perf_counter() - begin
            faults = results[4].get("_fault", np.zeros(NATIVE_ENVS, bool))
            if faults.any():
                scene.outcome.time(timing, took)
                lost = results[1][faults].any() or results[2][faults].any() or not results[3][faults].all()
                if lost or (np.abs(results[0][faults]) > 0.05).any():
                    raise Violation(3, f"rows of replaced C environments are not resets: {results}")
            same &= ~faults
            _require_twins(results[:4], twin.step(actions)[:4], same)
            scene.outcome.rows += int(same.sum())
            if not sent and (found := scene.signaller.take_result()) is not None:
                sent = True
                left -= found.hit
                scene.outcome.kills += found.hit
            if not same.any() or (left <= 0 and sent):
                break
    twin.close()
    _close(scene, envs)


def _require_twins(found: Any, expected: Any, same: Any) -> None:
    names = ("observation", "reward", "terminated", "truncated")[: len(found)]
    for name, ours, theirs in zip(names, found, expected, strict=True):
        differ = (ours != theirs).reshape(len(same), -1).any(axis=1) & same
        if differ.any():
            which = np.flatnonzero(differ).tolist()
            raise Violation(3, f"{name} of C environments {which} differs from the same in one process")


SCENES: dict[str, Any] = {
    "restart": _restart,
    "asynchronous": partial(_restart, batch=ENVS // 2),
    "raising": _raising,
    "native": _native,
    "timed": _timed,
}
