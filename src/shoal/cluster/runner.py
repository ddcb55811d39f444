"""The actor on each node: a vector environment and a policy, which fill a rollout in place.

observations[t] -> policy -> actions[t] -> envs -> observations[t + 1]   ...   returned: Ray makes one copy
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from gymnasium.spaces import Tuple as TupleSpace

from shoal.cluster.messages import FleetRollout, Plan, Request, map_arrays
from shoal.errors import WorkerError
from shoal.vector import make_vec

__all__ = ["Runner"]


class Runner:
    """The environments of one node. A Fleet makes it.

    One method runs at a time; only `offer`, `facts` and `leave` can run beside another. The constructor must
    not raise, because the learner would see any exception of it as the death of the actor.
    """

    def __init__(self, plan: Plan, index: int) -> None:
        self._plan, self._index = plan, index
        self._learner = -1
        self._life = self._number = -1
        self._version, self._offered = 0, (0, None)
        self._envs: Any = None
        self._block: Any = None
        self._now: Any = None
        self._fault: dict[str, Any] | None = None
        self._leaving = False

    # -- called by the learner ------------------------------------------------------------------------

    def take(self, learner: int) -> dict[str, Any]:
        """Accepts this learner instead of earlier ones and makes the environments; returns the facts."""
        self._require(learner)
        envs = self._open_envs()
        spaces = {name: getattr(envs, name) for name in ("single_observation_space", "single_action_space")}
        return self.facts() | spaces | {"num_envs": envs.num_envs, "agents_per_env": envs.agents_per_env}

    def facts(self) -> dict[str, Any]:
        """Returns the runner's plan, learner, process, node and progress."""
        import ray

        context = ray.get_runtime_context()
        return {
            "plan": self._plan,
            "learner": self._learner,
            "pid": os.getpid(),
            "node": context.get_node_id(),
            "placement": ray.util.get_current_placement_group(),
            "life": self._life,
            "number": self._number,
            "version": self._version,
        }

    def offer(self, version: int, weights: list[Any]) -> None:
        """Fetches weights while a rollout is being collected; the next rollout uses them."""
        import ray

        value = ray.get(weights[0])
        if version > self._offered[0]:
            self._offered = version, value

    def collect(self, request: Request) -> FleetRollout | None:
        """Collects one rollout, which Ray copies into the object store when this returns.

        Returns None if a process that is gone had begun this life, or if `leave` cut the rollout short.
        """
        self._require(request.learner)
        envs = self._open_envs()
        if request.life != self._life:
            if request.number != request.first:
                return None
            self._begin(request)
        if self._now is None:  # a step failed, so the state of the environments is unknown
            self._now = envs.reset()[0]
            self._over = np.zeros(envs.num_envs, np.bool_)
        if self._block is None or self._block.length != request.length:
            self._block = envs.rollout(request.length)
        self._adopt(request)
        self._number = request.number
        block, over, fault = self._block, self._over, self._fault
        block.start(self._now)
        extras, faults = self._fill_block(block)
        if self._leaving:
            return None
        self._now = map_arrays(lambda array: array[-1], block.observations)
        self._over, self._fault = block.terminated[-1] | block.truncated[-1], None
        rollout = FleetRollout(
            block.observations,
            block.actions,
            block.rewards,
            block.terminated,
            block.truncated,
            over,
            extras,
            self._version,
            self._index,
            self._node,
            request.number,
            request.life,
        )
        if fault is not None:
            rollout.info["fault"] = fault
        if faults:
            rollout.info["worker_faults"] = faults
        return rollout

    def reset(self, learner: int, seed: Any) -> tuple[Any, dict[str, Any]]:
        """Resets the environments, for `FleetVectorEnv`."""
        self._require(learner)
        self._now = None
        seen, info = self._open_envs().reset(seed=seed)
        self._now, self._over = seen, np.zeros(self._envs.num_envs, np.bool_)
        return seen, info

    def step(self, learner: int, actions: Any) -> Any:
        """Steps the environments, for `FleetVectorEnv`."""
        self._require(learner)
        self._now = None
        result = self._open_envs().step(actions)
        self._now, self._over = result[0], result[2] | result[3]
        return result

    def leave(self) -> None:
        """Cuts the current and queued rollouts short; `close` comes next."""
        self._leaving = True

    def close(self) -> None:
        """Ends the environments and their workers."""
        if self._envs is not None:
            self._envs.close()

    # -- inside ---------------------------------------------------------------------------------------

    def _require(self, learner: int) -> None:
        if learner < self._learner:
            raise WorkerError(
                f"runner {self._index} belongs to another learner, which attached to this fleet later; "
                "end one of the two"
            )
        self._learner = learner

    def _open_envs(self) -> Any:
        if self._envs is None:
            import ray

            plan = self._plan
            self._node = ray.get_runtime_context().get_node_id()
            self._envs = make_vec(plan.env, plan.num_envs, **{"session": None, **plan.options})
        return self._envs

    def _begin(self, request: Request) -> None:
        """Seeds the environments and makes the policy. Each life has its own seeds, so episodes differ."""
        import ray

        envs, life = self._envs, request.life
        source = (self._plan.seed, self._index, request.branch, life)
        words = np.random.SeedSequence(source).generate_state(2, np.uint64)
        if life == 0 and ray.get_runtime_context().was_current_actor_reconstructed:
            self._record_fault("the runner was lost while no learner used it")
        if self._plan.policy is None:
            self._policy: Any = _Random(envs, int(words[1] >> 33))
        else:
            self._policy = self._plan.policy(envs, np.random.default_rng(words[1]))
        self._now = envs.reset(seed=int(words[0] >> 33))[0]
        self._over = np.zeros(envs.num_envs, np.bool_)
        self._life, self._version = life, 0

    def _record_fault(self, error: str) -> None:
        """Stores a fault, which the next rollout reports in its `info`."""
        self._fault = {"runner": self._index, "node": self._node, "lost": 1, "error": error}

    def _adopt(self, request: Request) -> None:
        """Gives the policy the newest weights available, at least those of the request."""
        import ray

        version, weights = self._offered
        if request.weights and request.version > version:
            version, weights = request.version, ray.get(request.weights[0])
        if version > self._version:
            self._policy.set_weights(weights)
            self._version = version

    def _fill_block(self, block: Any) -> tuple[dict[str, Any], dict[int, Any]]:
        """Steps until the block is full; returns the policy's extra arrays, and worker faults by step."""
        extras: dict[str, Any] = {}
        faults: dict[int, Any] = {}
        policy, plain = self._policy, not isinstance(self._envs.single_action_space, TupleSpace)
        seen = block.observations
        nested = not isinstance(seen, np.ndarray)
        t, stepping = 0, False
        try:
            for t in range(block.length):
                stepping = False
                if self._leaving:
                    break
                actions = policy(_row(seen, t) if nested else seen[t])
                if plain and isinstance(actions, tuple):
                    actions, beside = actions
                    for name, value in beside.items():
                        if t == 0:
                            extras[name] = np.empty((block.length, *value.shape), value.dtype)
                        extras[name][t] = value
                stepping = True
                info = block.step(actions)
                if info and "_fault" in info:
                    faults[t] = info["_fault"]
        except BaseException as error:
            # The rollout is lost, but the environments continue from their current row.
            self._now = None if stepping else _row(seen, t)
            if stepping:
                self._record_fault(f"{type(error).__name__}: {error}")
            elif t > 0:
                self._over = block.terminated[t - 1] | block.truncated[t - 1]
            raise
        return extras, faults


def _row(tree: Any, t: int) -> Any:
    return map_arrays(lambda array: array[t], tree)


class _Random:
    """A policy of uniformly random actions."""

    def __init__(self, envs: Any, seed: int) -> None:
        self._space = envs.action_space
        self._space.seed(seed)

    def __call__(self, observations: Any) -> Any:
        return self._space.sample()

    def set_weights(self, weights: Any) -> None:
        """Does nothing: this policy has no weights."""
