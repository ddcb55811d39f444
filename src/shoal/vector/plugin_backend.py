"""What the backends for C environments in this process share: the native and the cuda one."""

from __future__ import annotations

from typing import Any

from shoal import _core
from shoal.native.plugin import PluginInfo
from shoal.spaces import Bounds
from shoal.vector import arguments
from shoal.vector.backend import Call, Common, Facts, State

__all__ = ["PluginBackend"]

_MAX_ENVS = 2**31


class PluginBackend:
    """Environments of one plug-in, without workers: a call is done, or enqueued, when `post` returns."""

    checks_nan = True
    infos_ns = 0
    info_rows: Any = None
    announce = None
    worker_pids: Any = ()
    builds_infos = True
    _padded: int
    """Rows that are written, including those after the last environment."""

    def __init__(
        self,
        info: PluginInfo,
        num_envs: int,
        common: Common,
        max_episode_steps: int | None,
        render_mode: str | None,
    ) -> None:
        self._info, self._common = info, common
        self._num_envs = arguments.count("num_envs", num_envs, _MAX_ENVS)
        self._rows = self._num_envs * info.agents
        self._render_mode = arguments.render_mode(render_mode, info.plugin)
        self._time_limit = info.max_episode_steps
        if max_episode_steps is not None:
            self._time_limit = arguments.count("max_episode_steps", max_episode_steps, 2**32 - 1)
        self.guard = _core.Guard()
        self._began = self._seeded = False

    def start(self) -> Facts:
        info = self._info
        return Facts(
            info.plugin.name,
            self._num_envs,
            info.agents,
            self._padded,
            info.observation_space,
            info.action_space,
            arguments.batched(info.observation_space, self._rows),
            arguments.render_metadata(info.plugin),
            self._render_mode,
            Bounds(),
            info,
            builds_infos=self.builds_infos,
        )

    def drop_block(self, number: int) -> None: ...

    def require_rollout(self) -> None: ...

    def require_ready(self, name: str) -> None: ...

    def parts(self) -> list[slice]:
        return [slice(0, self._num_envs)]

    def prepare_reset(self, call: Call) -> None: ...

    def post(self, call: Call) -> None:
        try:
            self._run(call)
        except BaseException:
            call.state = State.DONE  # nothing is left to wait for
            raise

    def _run(self, call: Call) -> None:
        raise NotImplementedError

    def wait(self, call: Call, timeout: float | None = None, *, ignore_deaths: bool = False) -> list[Any]:
        call.state = State.DONE
        return []

    def finalize(self, envs: Any) -> None: ...

    def interrupt(self) -> None: ...
