"""The vector environment users hold: Gymnasium's VectorEnv over C environments, results lent from slots.

    reset / step  ->  a slot nobody holds  ->  (observations, rewards, terminated, truncated, info)

Every array is a view of a segment. buffers="leased": a slot is used again when its arrays are let go, so what
you keep never changes. "live": one slot, overwritten by the next step. "copy": fresh arrays.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NoReturn

import gymnasium.vector
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import ShoalError, telling
from shoal.memory import Layout, Segment
from shoal.memory.layout import FieldSpec, array_fields
from shoal.native.look import Looker
from shoal.native.plugin import PluginInfo, rng_words
from shoal.native.told import told
from shoal.state.publish import Publisher
from shoal.state.session import AUTO, checked_session, open_session, watch_fields
from shoal.state.snapshot import Field
from shoal.vector import arguments
from shoal.vector.hooks import Hooks
from shoal.vector.looking import Looking
from shoal.vector.rollout import Rollout
from shoal.vector.slots import Infos, Lent, SlotMaker, native_rollout

__all__ = ["VectorEnv"]

_BUFFERS = {"leased": _core.STEPPER_LEASED, "live": _core.STEPPER_LIVE, "copy": _core.STEPPER_COPY}
_CHECKS = {"actions": _core.STEPPER_CHECK_ACTIONS, "nan": _core.STEPPER_CHECK_NAN}
_MAX_ENVS = 2**31


class VectorEnv(Looking, gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Steps `num_envs` C environments in one call. Made by `shoal.make_vec`.

    >>> envs = shoal.make_vec("CartPole-v1", num_envs=8)
    >>> observations, info = envs.reset(seed=0)
    >>> observations, rewards, terminated, truncated, info = envs.step(envs.action_space.sample())
    >>> observations.shape, rewards.dtype, envs.stats["steps"]
    ((8, 4), dtype('float64'), 8)
    >>> envs.close()

    For environments with several agents the rows of every array are agents, `num_envs` counts rows, and
    `num_worlds` the environments behind them.
    """

    def __init__(
        self,
        info: PluginInfo,
        num_envs: int = 1,
        *,
        num_threads: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        buffers: Literal["leased", "live", "copy"] = "leased",
        max_slots: int = 64,
        max_episode_steps: int | None = None,
        episode_stats: bool = False,
        check: Iterable[str] = ("actions",),
        render_mode: str | None = None,
        batch_size: int | None = None,
        session: str | None = AUTO,
    ) -> None:
        asked = checked_session(session)
        self.num_worlds = arguments.count("num_envs", num_envs, _MAX_ENVS)
        self.agents_per_env = info.agents
        self.num_envs = self.num_worlds * info.agents
        self.autoreset_mode = arguments.autoreset_mode(autoreset_mode)
        arguments.choice("buffers", buffers, list(_BUFFERS))
        checks = arguments.checks(check, ())
        drawable = info.plugin.has_extension("shoal.render/1")
        render_mode = arguments.render_mode(render_mode, drawable, info.plugin.name)
        threads = (
            _core.cpu_count() if num_threads is None else arguments.count("num_threads", num_threads, 4096)
        )
        limit = info.max_episode_steps
        if max_episode_steps is not None:
            limit = arguments.count("max_episode_steps", max_episode_steps, 2**32 - 1)
        self.render_mode = render_mode
        modes = ["rgb_array"] if drawable else []
        self.metadata = {"render_modes": modes, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = info.observation_space
        self.single_action_space = info.action_space
        self.options = dict(info.options)
        self.buffers = buffers
        self._info = info
        self.batch_size = batch_size
        # What is stepped together: everything, or with batch_size units of neighbours in blocks of their own.
        self._unit = info.lanes
        worlds = self.num_worlds
        if batch_size is not None:
            self._unit = self._checked_unit(batch_size)
            worlds = self.num_worlds // self._unit * info.lanes
        self._padded = -(-worlds // info.lanes) * info.lanes * info.agents
        self._guard = _core.Guard()
        self._state = Segment(self._state_layout())  # first: it refuses sizes that nothing below could hold
        self.lent = Lent()
        """The memory that results are lent from (`shoal.torch.pin`)."""
        self._slots = SlotMaker(self.lent, info.observations, self.num_envs, self._padded, self._same_step)
        first_slot = self._slots()
        self.observation_space = arguments.batched(self.single_observation_space, self.num_envs)
        self.action_space = arguments.batched(self.single_action_space, self.num_envs)
        infos = Infos(
            info.observations,
            self._state["last_return"],
            self._state["last_length"],
            episode_stats,
            self.num_envs,
        )
        max_slots = arguments.count("max_slots", max_slots, 2**20)
        self._looker = Looker(info, self._state["instances"])
        self._watching = _Watching(self._looker)
        self._hooks = Hooks(
            info.actions,
            self._slots,
            max_slots,
            infos,
            self.single_observation_space,
            self._batch_maker(batch_size),
            self._watching,
        )
        flags = _BUFFERS[buffers] | sum(_CHECKS[name] for name in checks)
        if episode_stats or self._same_step:
            flags |= _core.STEPPER_INFOS
        self._action_rows = [self._state.rows(f"action/{i}", self.num_envs) for i in range(len(info.actions))]
        self._stepper = _core.Stepper(
            info.plugin,
            info.values,
            worlds,
            threads if batch_size is None else 1,
            arguments.AUTORESET_CODES[self.autoreset_mode],
            limit,
            self._state,
            tuple(self._state[f"action/{i}"] for i in range(len(info.actions))),
            self._hooks,
            flags,
            self._guard,
        )
        self._stepper.add_slot(first_slot)
        if episode_stats and info.keeps_log:
            parts = [(self._state["instances"], self._padded // info.agents)]
            infos.told = told(info, self._stepper.fields(0), parts)
        self._seeded = self._began = False
        self._flow: _core.Flow | None = None
        if batch_size is not None:
            threads = min(threads, self.num_worlds // self._unit)
            with telling(f"start {threads} threads", ShoalError):
                self._flow = _core.Flow(
                    self._stepper, threads, self._unit, batch_size, "nan" in checks, self._hooks
                )
        if asked is not None:
            try:
                self._open_session(asked)
            except BaseException:
                self.close()
                raise
        if self._flow is not None:
            return
        # The bound native method, so that a step is one call with no Python frame of ours in between.
        self.step = self._stepper.step  # type: ignore[method-assign]

    @property
    def _same_step(self) -> bool:
        return self.autoreset_mode == AutoresetMode.SAME_STEP

    def _state_layout(self) -> Layout:
        info, rows = self._info, self._padded
        worlds = rows // info.agents
        fields: dict[str, FieldSpec] = {
            **array_fields(_core.STEPPER_ARRAYS, max(1, info.instance_bytes), row=rows, environment=worlds),
            **watch_fields(1),
        }
        for number, field in enumerate(info.actions):
            fields[f"action/{number}"] = (field.dtype, (rows, *field.shape))
        return Layout(fields)

    # -- Gymnasium's interface ------------------------------------------------------------------------

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes, in all environments or where `options["reset_mask"]` is True."""
        self._require_synchronous("reset", "async_reset")
        mask, others = arguments.reset_mask(options, self.num_envs, self.num_worlds)
        arguments.no_options(others)
        with _core.Operation(self._guard, "reset"):
            if mask is not None and not self._began and not mask.all():
                self._hooks.refuse("never reset")
            self._seed(seed, mask)
            observations = self._stepper.reset(mask)
            self._began = True
            return observations, {}

    def step(self, *actions: Any) -> Any:
        """`step(actions)` steps every environment; `step()` with what was written into `self.actions`."""
        self._require_synchronous("step", "send and recv")
        return self._stepper.step(*actions)

    def close(self, **kwargs: Any) -> None:
        """Ends the threads and environments. Idempotent; arrays that were returned stay valid.

        From another thread than the one that steps: a call that is inside raises ClosedError, and close
        waits until it has.
        """
        with _core.Closing(self._guard) as is_first:
            if not is_first or not self._guard.wait_until_free(math.inf):
                return
            if self._hosted is not None:  # first: its thread reads what the others hold
                self._hosted.close()
            self._watching.close()
            if self._flow is not None:
                self._flow.close()
            self._stepper.close()
            self._state.close()
            self._slots.close()
            self.closed = True

    close_extras = close

    def __enter__(self) -> VectorEnv:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def render(self) -> tuple[NDArray[np.uint8], ...]:
        """A picture of every environment, for render_mode="rgb_array"."""
        if self.render_mode is None:
            if not self.metadata["render_modes"]:
                raise ValueError(arguments.describe_undrawable(self._info.plugin.name))
            raise ValueError('make the environments with render_mode="rgb_array" to draw them')
        with _core.Operation(self._guard, "render"):
            return tuple(self._picture(env) for env in range(self.num_worlds))

    # -- beyond Gymnasium -----------------------------------------------------------------------------

    @property
    def actions(self) -> Any:
        """The action buffer itself: write into it, then call `step()` without arguments."""
        if self._info.actions[0].name is None:
            return self._action_rows[0]
        return {field.name: rows for field, rows in zip(self._info.actions, self._action_rows, strict=True)}

    @property
    def stats(self) -> dict[str, Any]:
        """Steps, episodes, their mean return and length; slots made, results copied for want of one."""
        self._guard.require_open()
        statistics = (self._flow or self._stepper).statistics
        return {**statistics, "copies": self._hooks.copies}

    def async_reset(self, seed: int | Sequence[int | None] | None = None) -> None:
        """Resets every environment; their first observations come with `recv`."""
        flow = self._require_asynchronous("async_reset")
        with _core.Operation(self._guard, "async_reset"):
            if flow.under_way:
                self._hooks.refuse("under way")
            self._seed(seed, None)
            flow.reset()

    def send(self, actions: Any, env_ids: Any) -> None:
        """Hands in the next actions of the environments `env_ids` (`info["env_id"]` of a `recv`)."""
        flow = self._require_asynchronous("send")
        ids = np.asarray(env_ids)
        if ids.dtype.kind not in "iu" or ids.ndim != 1:
            raise TypeError(f"env_ids must be a list of ints, got {ids.dtype} of shape {ids.shape}")
        flow.send(actions, np.ascontiguousarray(ids, np.int64))

    def recv(self) -> Any:
        """A step's five results of the first `batch_size` environments ready; `info["env_id"]` names them."""
        return self._require_asynchronous("recv").recv()

    def shares_buffer(self, array: NDArray[Any]) -> bool:
        """Whether the next step may change this array: True for results of `buffers="live"` alone."""
        return self.buffers == "live" and self._slots.is_first(array)

    def rollout(self, length: int) -> Rollout:
        """Lends a block of `length + 1` rows of every environment; its `step` writes straight into it."""
        self._require_synchronous("rollout", "send and recv")
        self._require_no_final("rollout")
        self._guard.require_open()
        length = arguments.count("length", length, 2**31)
        return native_rollout(
            self._stepper, self._guard, self.lent, self._info, self.num_envs, self._padded, length
        )

    def has_extension(self, id: str) -> bool:
        """Whether the plug-in has an ability, such as "shoal.checkpoint/1"."""
        return self._info.plugin.has_extension(id)

    def save_env(self, env_id: int) -> bytes:
        """All that environment `env_id` is, for `restore_env` of any environments with these options."""
        with _core.Operation(self._guard, "save_env"):
            return self._stepper.save(self._env_id(env_id))

    def restore_env(self, env_id: int, data: bytes) -> None:
        """Makes environment `env_id` what it was when `save_env` gave `data`."""
        if not isinstance(data, bytes):
            raise TypeError(f"a checkpoint is bytes, got {type(data).__name__}")
        with _core.Operation(self._guard, "restore_env"):
            env = self._env_id(env_id)
            if not self._began and self._flow is None:  # the other environments must be somewhere too
                self._stepper.require_checkpoint(env, data)
                self._seed(None, None)
                self._stepper.reset(None)
                self._began = True
            self._stepper.restore(env, data)

    def render_env(self, env_id: int) -> NDArray[np.uint8]:
        """A picture of one environment, [height, width, 3]."""
        with _core.Operation(self._guard, "render_env"):
            return self._picture(env_id)

    def _picture(self, env_id: int) -> NDArray[np.uint8]:
        height, width, pixels = self._stepper.render(self._env_id(env_id))
        return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)

    # -- inside ---------------------------------------------------------------------------------------

    def _open_session(self, asked: str) -> None:
        facts = {
            "env": self._info.plugin.name,
            "num_envs": self.num_envs,
            "num_worlds": self.num_worlds,
            "agents": self.agents_per_env,
            "workers": 0,
            "backend": "native",
            "observation_space": str(self.single_observation_space),
            "action_space": str(self.single_action_space),
        }
        counted = self._flow or self._stepper
        self._hosted = open_session(asked, facts, self.num_worlds, self._state, counted)
        if self._hosted is not None:
            self._watching.publisher = Publisher(self._state, 0, self.num_worlds)
            self._stepper.set_watch(self._state["due"], None)

    def _world(self, env_id: int) -> dict[str, Field]:
        env = arguments.env_id(env_id, self.num_worlds)
        with self._look("state"):
            return self._looker.fields(self._flow or self._stepper, env)

    def _worlds(self) -> list[dict[str, Field]]:
        with self._look("states"):
            source = self._flow or self._stepper
            return [self._looker.fields(source, env) for env in range(self.num_worlds)]

    def _checked_unit(self, batch_size: int) -> int:
        """How many environments flow together: as many as divide num_envs, batch_size and the lanes."""
        batch = arguments.count("batch_size", batch_size, self.num_worlds)
        if self.autoreset_mode != AutoresetMode.NEXT_STEP or self.buffers != "leased":
            raise ValueError(
                "batch_size needs autoreset_mode NEXT_STEP and buffers='leased', found "
                f"{self.autoreset_mode.name} and {self.buffers!r}"
            )
        if self._info.agents > 1:
            raise ValueError(
                f"batch_size is for environments of one agent, this one has {self._info.agents}; leave it "
                "out, and step all of them"
            )
        return math.gcd(self.num_worlds, batch, self._info.lanes)

    def _batch_maker(self, batch_size: int | None) -> SlotMaker | None:
        if batch_size is None:
            return None
        return SlotMaker(self.lent, self._info.observations, batch_size, batch_size, False, ids=batch_size)

    def _place(self, env: int) -> int:
        """Where the engine keeps environment `env`."""
        return env // self._unit * self._info.lanes + env % self._unit

    def _require_asynchronous(self, name: str) -> _core.Flow:
        if self._flow is None:
            raise ShoalError(f"{name} is for environments made with batch_size=; use reset and step")
        return self._flow

    def _require_synchronous(self, name: str, instead: str) -> None:
        if self._flow is not None:
            raise ShoalError(f"{name} is not for environments made with batch_size=; use {instead}")

    def _require_no_final(self, name: str) -> None:
        if self._same_step:
            raise ShoalError(
                f"{name} has no place for the final observations of autoreset_mode SAME_STEP; "
                "use NEXT_STEP or DISABLED"
            )

    def __repr__(self) -> str:
        return f"<{self._info.plugin.name} x {self.num_worlds}, buffers={self.buffers!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "environments are threads and memory of this process and cannot be pickled; make them where they "
            "are used: pass the arguments of make_vec instead"
        )

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__reduce__()

    def _env_id(self, env_id: int) -> int:
        env = arguments.env_id(env_id, self.num_worlds)
        if self._flow is not None and self._flow.under_way:
            self._hooks.refuse("under way")
        return self._place(env)

    def _seed(self, seed: int | Sequence[int | None] | None, mask: NDArray[np.bool_] | None) -> None:
        for env, value in enumerate(arguments.seeds(seed, self.num_worlds)):
            if value is None and not self._seeded:
                value = secrets.randbits(62)
            if value is None or (mask is not None and self._seeded and not mask[env]):
                continue
            if value < 2**64:
                self._stepper.seed(self._place(env), value)
            else:
                self._state["rng"][self._place(env)] = rng_words(value)
        self._seeded = True


class _Watching:
    """What the stepper calls when something watched is due; it holds neither stepper nor environments."""

    def __init__(self, looker: Looker) -> None:
        self._looker = looker
        self.publisher: Publisher | None = None

    def __call__(self, source: Any) -> None:
        if self.publisher is not None:
            self.publisher(lambda env: self._looker.snapshot(source, env))

    def close(self) -> None:
        if self.publisher is not None:
            self.publisher.close()
