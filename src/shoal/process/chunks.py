"""A worker's chunk of Python environments. _core.Chunk steps them; this module does the rest."""

from __future__ import annotations

import contextlib
import copy
import pickle
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import numpy as np
from gymnasium.spaces import Box, Space
from gymnasium.spaces.utils import is_space_dtype_shape_equiv

from shoal import _core
from shoal.memory import Segment
from shoal.process.infos import make_info_writer
from shoal.process.mail import Failure, dumps
from shoal.process.registry import keep_registry
from shoal.process.requests import Bind
from shoal.process.watched import WatchedChunk
from shoal.process.worker import ERROR, INFO
from shoal.spaces import Bounds, Declaration, Memory
from shoal.state.exports import from_python

__all__ = [
    "EnvChunk",
    "Pickled",
    "bind_memory",
    "derive_seed",
]

_FORBIDDEN = ("reset", "step", "close", "_setattr", "_check_spaces")
_OLD_GYM = (
    "if this environment has the old Gym interface, put it into a wrapper that has Gymnasium's interface"
)


@dataclass(frozen=True, slots=True)
class Pickled:
    """A value that was pickled at once, because its owner may change it later."""

    data: bytes

    def load(self) -> Any:
        return pickle.loads(self.data)


def bind_memory(segment: Segment, space: Space[Any], path: str, rows: int, bounds: Bounds) -> Memory:
    """Returns the memory of `rows` values of `space` in a segment that has its fields."""
    return Declaration(bounds).space(space, path, rows)(segment)


class EnvChunk:
    """Python environments that one process steps."""

    def __init__(self, plan: Any, worker: Any) -> None:
        """`worker` is a WorkerSide; where the caller itself steps the chunk, it has only a `board`."""
        self._plan, self._worker = plan, worker
        makers = plan.makers
        self._makers: list[Callable[[], Any]] = pickle.loads(makers) if isinstance(makers, bytes) else makers
        self._envs: list[Any] = []
        self._watched = WatchedChunk(self._envs, plan, worker.board)
        self.publish = self._watched.publish
        for number, maker in enumerate(self._makers, plan.first):
            try:
                with keep_registry():
                    self._envs.append(_require_environment(maker(), number))
            except BaseException as error:
                with contextlib.suppress(Exception):
                    error.env_id = number  # type: ignore[attr-defined]
                self.close()
                raise
        self.interrupted: BaseException | None = None
        """The KeyboardInterrupt that interrupted an environment which the caller steps itself."""
        self._next_seeds: list[int | None] = list(plan.seeds)
        self._seeds: list[int | None] = list(plan.seeds)
        self._repairs = [0] * len(self._envs)
        board = worker.board
        arrays = {
            name: board[name][plan.worker] if per == "worker" else board[name]
            for name, _, per, _ in _core.CHUNK_ARRAYS
        }
        self._produced: list[Any] = [None] * len(self._envs)
        """The last observation of each environment. Rows cannot stand in for it: users may change those."""
        self._copied: list[Any] = [None] * len(self._envs)
        self._core: Any = _core.Chunk(
            self._envs,
            plan.first,
            plan.autoreset,
            arrays,
            self._produced,
            make_info_writer(board, plan),
            self,
        )
        self.serve: Any = self._core.serve
        self._actions: Memory | None = None
        self._action_rows: Any = None
        self._space: Space[Any] | None = None

    def facts(self) -> dict[str, Any]:
        first = self._envs[0]
        return {
            "observation_space": first.observation_space,
            "action_space": first.action_space,
            "metadata": dict(first.metadata),
            "render_mode": first.render_mode,
            "name": _find_name(first),
            "spaces": [env.observation_space for env in self._envs] if self._plan.all_spaces else None,
        }

    def close(self) -> None:
        self._watched.close()
        self.serve = self._core = None  # this object and the core refer to each other: break the cycle
        for env in self._envs:
            with contextlib.suppress(Exception):
                env.close()

    # -- requests -------------------------------------------------------------------------------------

    def on_bind(self, request: Bind) -> list[tuple[bool, bool]]:
        """Opens the memory that came with the request, and compares the spaces of every environment."""
        own = int(request.actions != "message")
        memory = list(map(Segment.from_fileno, self._worker.receive_fds(own + len(request.blocks))))
        same = self.bind(request, memory[0] if own else None)
        for block, of_block in zip(request.blocks, memory[own:], strict=True):
            self.add_slot(of_block, *block)
        for one in memory:
            one.close()
        return same

    def bind(self, request: Bind, segment: Segment | None) -> list[tuple[bool, bool]]:
        """Uses the actions in `segment`; for each environment, whether observation and action space fit."""
        observation, action = request.observation_space, request.action_space
        self._space = observation if request.in_segment else None
        self._watched.begin(self._last_action)
        plan = self._plan
        if segment is not None and request.actions == "array":
            self._action_rows = segment["action"][plan.first : plan.first + len(self._envs)]
            self._core.set_actions(self._action_rows)
        elif segment is not None:
            self._actions = bind_memory(segment, action, "action", plan.num_envs, plan.bounds)
        return [
            (
                _is_same_space(observation, env.observation_space)
                if request.mode == "same"
                else is_space_dtype_shape_equiv(observation, env.observation_space),
                _is_same_space(action, env.action_space),
            )
            for env in self._envs
        ]

    def on_slot(self, number: int, rows: int, ahead: int) -> None:
        """Opens memory for `rows` results, whose observations begin `ahead` rows later."""
        segment = Segment.from_fileno(self._worker.receive_fds(1)[0])
        self.add_slot(segment, number, rows, ahead)
        segment.close()

    def add_slot(self, segment: Segment, number: int, rows: int, ahead: int) -> None:
        memory = blank = None
        if self._space is not None:
            memory = bind_memory(segment, self._space, "observation", rows + ahead, self._plan.bounds)
            leaves = [segment[name] for name in segment if name.startswith("observation")]
            blank = partial(_blank, [leaf.reshape(rows + ahead, -1) for leaf in leaves if leaf.size])
        flags = (segment["reward"], segment["terminated"], segment["truncated"])
        self._core.add_slot(number, memory, blank, *flags, ahead)
        self._watched.add_slot(number, memory, flags, ahead)

    def on_drop(self, numbers: list[int]) -> None:
        for number in numbers:
            self._core.drop_slot(number)
            self._watched.drop_slot(number)

    def on_reset(
        self, slot: int, row: int, seeds: list[int | None], options: Any, mask: list[bool] | None
    ) -> list[Any]:
        """Resets all environments, or those of `mask`; the other rows get their last observations again."""
        reports: list[Any] = []
        for local, seed in enumerate(seeds):
            if mask is not None and not mask[local]:
                self._core.write_again(slot, row, local, reports)
                continue
            if seed is None:
                seed = self._next_seed(local)
            else:
                self._seeds[local], self._next_seeds[local] = seed, None
            given = copy.deepcopy(options)
            try:
                self._core.reset_one(slot, row, local, seed, given, reports)
            except BaseException as error:
                if isinstance(error, TypeError) and "unexpected keyword argument 'seed'" in str(error):
                    error.args = (f"{error}; {_OLD_GYM}",)
                if not self._keep_interrupt(error):
                    number = self._plan.first + local
                    reports.append((number, ERROR, Failure.of(error, number)))
                self._core.write_again(slot, row, local, reports)
        self._core.publish_due(slot, row)
        return reports

    def on_look(self, local: int | None) -> list[Any]:
        """The exported state of one environment, or of each of them."""
        chosen = self._envs if local is None else [self._envs[local]]
        return [from_python(env) for env in chosen]

    def _last_action(self, local: int) -> Any:
        """The last action of an environment; None where actions are messages."""
        if self._action_rows is not None:
            return self._action_rows[local]
        return None if self._actions is None else self._actions.read_one(self._plan.first + local)

    def on_step(self, slot: int, row: int, actions: Any) -> list[Any]:
        reports: list[Any] = self._core.step(slot, row, actions)
        return reports

    def on_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        return self._for_each_env(lambda env, local: _call_attribute(env, name, args, kwargs))

    def on_set(self, name: str, values: list[Any]) -> list[Any]:
        return self._for_each_env(lambda env, local: env.set_wrapper_attr(name, values[local]))

    def _for_each_env(self, act: Callable[[Any, int], Any]) -> list[Any]:
        answers: list[Any] = []
        for local, env in enumerate(self._envs):
            self._copy_produced(local)
            try:
                answers.append(Pickled(dumps(act(env, local))))
            except BaseException as error:
                self._keep_interrupt(error)
                answers.append(Failure.of(error, self._plan.first + local))
        return answers

    def _keep_interrupt(self, error: BaseException) -> bool:
        """Whether this is Ctrl-C in the caller's own chunk: it is raised after the other environments."""
        if not isinstance(error, KeyboardInterrupt) or hasattr(self._worker, "gate"):
            return False
        self.interrupted = error
        return True

    def _copy_produced(self, local: int) -> None:
        """Copies the last observation before a call that may change it, such as the env's state array."""
        produced = self._produced[local]
        if produced is not self._copied[local]:
            with contextlib.suppress(Exception):  # if it cannot be copied, the original has to do
                self._produced[local] = self._copied[local] = copy.deepcopy(produced)

    # -- hooks that _core.Chunk calls (ChunkHooks in _core.pyi) ---------------------------------------

    def actions(self) -> list[Any]:
        return [self.action(local) for local in range(len(self._envs))]

    def action(self, local: int) -> Any:
        assert self._actions is not None
        return copy.deepcopy(self._actions.read_one(self._plan.first + local))

    def reset(self, local: int) -> Any:
        seed = self._next_seed(local)
        return self._envs[local].reset() if seed is None else self._envs[local].reset(seed=seed)

    def reset_in_same_step(self, local: int, observation: Any, info: Any) -> tuple[Any, dict[str, Any]]:
        """SAME_STEP: resets; returns the first observation, and an info that holds the last episode's end."""
        final = {"final_obs": copy.deepcopy(observation), "final_info": copy.deepcopy(info)}
        result = self.reset(local)
        if not isinstance(result, tuple) or len(result) != 2:
            self.raise_bad_result("reset", result, 2)
        return result[0], {**final, **result[1]}

    def handle_exception(self, local: int, error: BaseException, reports: list[Any]) -> Any:
        """Reports an exception of an environment. With on_fault="restart", makes the environment again
        and returns its first observation."""
        number = self._plan.first + local
        self._keep_interrupt(error)
        if self._plan.restarts:
            try:
                with contextlib.suppress(Exception):
                    self._envs[local].close()
                with keep_registry():
                    self._envs[local] = self._makers[local]()
                self._repairs[local] += 1
                seed = derive_seed(self._seeds[local], number, self._repairs[local])
                observation, info = self._envs[local].reset(seed=seed)
            except BaseException as again:
                error = again
            else:
                fault: dict[str, Any] = {"fault": Failure.of(error, number).summary}
                if self._plan.autoreset == _core.AUTORESET_SAME_STEP:
                    fault = {"final_obs": copy.deepcopy(observation), "final_info": dict(fault), **fault}
                reports.append((number, INFO, self.pickle_value({**info, **fault})))
                return observation
        failure = Failure.of(error, number)
        reports.append((number, INFO, self.pickle_value({"fault": failure.summary})))  # for error.results
        if error is not self.interrupted:
            reports.append((number, ERROR, failure))
        return None

    def pickle_value(self, value: Any) -> Pickled:
        return Pickled(dumps(value))

    def reply(self, reports: list[Any]) -> None:
        self._worker.reply(reports)

    def post(self, reports: list[Any]) -> None:
        self._worker.post(reports)

    def raise_bad_result(self, method: str, result: Any, expected: int) -> NoReturn:
        found = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
        raise ValueError(f"env.{method} must return a tuple of {expected}, found {found}; {_OLD_GYM}")

    def raise_bad_value(self, name: str, value: Any) -> NoReturn:
        wanted = "a number" if name == "reward" else "a bool"
        shape = f" of shape {value.shape}" if isinstance(value, np.ndarray) else ""
        found = f"{type(value).__name__}{shape}: {value!r}"
        raise TypeError(f"env.step: {name} must be {wanted}, found {found[:200]}")

    def raise_bad_info(self, info: Any) -> NoReturn:
        raise TypeError(f"an info must be a dict, found {type(info).__name__}: {info!r}")

    def _next_seed(self, local: int) -> int | None:
        seed, self._next_seeds[local] = self._next_seeds[local], None
        return seed


def _blank(leaves: list[Any], row: int) -> None:
    for leaf in leaves:
        leaf[row] = 0


def _find_name(env: Any) -> str:
    spec = getattr(env, "spec", None)
    return str(getattr(spec, "id", None) or type(getattr(env, "unwrapped", env)).__name__)


def derive_seed(seed: int | None, env_id: int, count: int) -> int:
    """Returns the seed of an environment that is made again for the `count`-th time."""
    if seed is None:
        return secrets.randbits(31)
    return int(np.random.SeedSequence([seed, env_id, count]).generate_state(1)[0])


def _require_environment(made: Any, number: int) -> Any:
    if isinstance(made, type) or not hasattr(made, "observation_space"):
        raise TypeError(f"env_fns[{number}] must return an environment, found {made!r}")
    return made


def _call_attribute(env: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if name in _FORBIDDEN:
        raise ValueError(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")
    found = env.get_wrapper_attr(name)
    return found(*args, **kwargs) if callable(found) else found


def _is_same_space(ours: Space[Any], theirs: Space[Any]) -> bool:
    """Returns `ours == theirs`. It compares the bytes of Boxes first: Box's own comparison is far slower."""
    if type(ours) is type(theirs) is Box and ours.dtype == theirs.dtype and ours.shape == theirs.shape:
        if ours.low.tobytes() == theirs.low.tobytes() and ours.high.tobytes() == theirs.high.tobytes():
            return True
    return ours == theirs
