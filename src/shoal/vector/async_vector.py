"""ProcessVectorEnv: a vector environment in worker processes with AsyncVectorEnv's constructor."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv

from shoal.state.session import AUTO
from shoal.vector.backend import Common
from shoal.vector.env import VectorEnv
from shoal.vector.plans import PluginEnvs
from shoal.vector.process import ProcessBackend

__all__ = ["ProcessVectorEnv"]


class ProcessVectorEnv(VectorEnv):
    """Steps environments in worker processes: a drop-in for AsyncVectorEnv.

    >>> import gymnasium, shoal
    >>> envs = shoal.vector.ProcessVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 8, num_workers=2)
    >>> observations, info = envs.reset(seed=0)
    >>> observations, rewards, terminated, truncated, info = envs.step(envs.action_space.sample())
    >>> observations.shape, len(envs.worker_pids)
    ((8, 4), 2)
    >>> envs.close()

    The arguments up to `max_concurrency` are AsyncVectorEnv's.

    Args:
        env_fns: Functions that make the environments. They are called in the workers.
        shared_memory: False lets observations of spaces without a layout travel as messages.
        copy: True: results are leased, and arrays that you keep never change. False: the next step
            overwrites the observations.
        context: How workers are started; None: from a clean process (no `__main__` guard is needed).
        daemon: False lets environments start processes of their own.
        worker: Not supported. Use a wrapper, or the arguments below, in place of a custom worker.
        observation_mode: "same", "different", or a tuple of (batched, single) observation space.
        autoreset_mode: NEXT_STEP, SAME_STEP or DISABLED, as Gymnasium defines them.
        max_concurrency: At most this many environments step at a time, so at most this many workers run.
        buffers: "leased", "live" or "copy"; it overrides `copy`. None: use `copy`.
        max_slots: How many results you can hold before results are copied (`stats["copies"]` counts copies).
        batch_size: Step asynchronously with `send` and `recv`, which returns the first `batch_size` ready.
        check: What is checked in each step: "actions" (they are in the space), "nan" (no observation or
            reward is NaN).
        episode_stats: Put return and length of finished episodes into `info["episode"]`.
        session: The name by which `shoal.attach` and `shoal watch` find this run; "auto": the environment's
            name and the process id. None: no session.
        history: A file for the run's history, written every 30 seconds, on closing and at exit; `shoal watch
            FILE` opens it.
        num_workers: The number of processes; each gets a contiguous chunk of environments. None: one per
            core.
        caller_steps: The caller steps a chunk itself while the workers step theirs. For light environments
            you trust: they run in your process, so timeouts do not apply, and Ctrl-C can interrupt them.
            "auto" makes one environment here first and measures some steps; the caller steps a chunk only
            if that takes less than 200 us.
        observation_space: The space of one environment, if you know it.
        action_space: The space of one environment, if you know it.
        max_length: The bound for Sequence spaces, which they need to be in shared memory.
        max_nodes: The bound for nodes of Graph spaces.
        max_edges: The bound for edges of Graph spaces.
        on_fault: "raise", or "restart": replace dead workers, and make an environment again if it raised.
        step_timeout_s: Kill a worker whose step takes longer than this many seconds; None: warn after a
            minute.
        reset_timeout_s: The same for a reset, and for each stage of making a replacement (None: a minute if
            `step_timeout_s` is given).
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]] | PluginEnvs,
        shared_memory: bool = True,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: Any = None,
        observation_mode: Any = "same",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
        *,
        buffers: Literal["leased", "live", "copy"] | None = None,
        max_slots: int = 64,
        batch_size: int | None = None,
        check: Any = None,
        episode_stats: bool = False,
        session: str | None = AUTO,
        history: str | os.PathLike[str] | None = None,
        num_workers: int | None = None,
        caller_steps: bool | Literal["auto"] = False,
        observation_space: Space[Any] | None = None,
        action_space: Space[Any] | None = None,
        max_length: int | None = None,
        max_nodes: int | None = None,
        max_edges: int | None = None,
        on_fault: Literal["raise", "restart"] = "raise",
        step_timeout_s: float | None = None,
        reset_timeout_s: float | None = None,
    ) -> None:
        self.env_fns = env_fns
        self.shared_memory, self.copy, self.context, self.daemon = shared_memory, copy, context, daemon
        self.worker, self.observation_mode, self.max_concurrency = worker, observation_mode, max_concurrency
        if worker is not None:
            raise ValueError(
                "a custom `worker` is not supported, because Shoal's workers step whole chunks; wrap the "
                "environment in its env_fn, or use autoreset_mode, on_fault or check"
            )
        chosen = buffers or ("leased" if copy else "live")
        default_check: tuple[str, ...] = ("actions",) if isinstance(env_fns, PluginEnvs) else ()
        common = Common.from_arguments(
            autoreset_mode,
            chosen,
            max_slots,
            check,
            episode_stats,
            batch_size,
            session,
            default_check,
            history,
        )
        backend = ProcessBackend(
            env_fns,
            common,
            shared_memory=shared_memory,
            context=context,
            daemon=daemon,
            observation_mode=observation_mode,
            max_concurrency=max_concurrency,
            num_workers=num_workers,
            caller_steps=caller_steps,
            observation_space=observation_space,
            action_space=action_space,
            max_length=max_length,
            max_nodes=max_nodes,
            max_edges=max_edges,
            on_fault=on_fault,
            step_timeout_s=step_timeout_s,
            reset_timeout_s=reset_timeout_s,
        )
        super().__init__(backend, common)
        # Gymnasium's copy=False shares only the observations.
        self._has_fresh_flags = buffers is None and not copy

    __repr__ = GymnasiumVectorEnv.__repr__
