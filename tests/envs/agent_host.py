"""The ctypes host for plug-ins with several agents, canaries on both sides of its rows, and pictures.

Checkpoints here are those of plug-ins whose instance is all there is: the host copies it and the generator.
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, c_uint8, c_uint32, c_uint64
from pathlib import Path
from typing import Any

import numpy as np

from .plugin_harness import _ADD, CANARY, Host, _Envs, _Spec

_PER_ROW = ("observations", "actions", "rewards", "terminated", "truncated")
_MARGIN = 4096


class _Render(ctypes.Structure):
    _fields_ = [
        ("fps", c_uint32),
        ("reserved", c_uint32),
        ("size", CFUNCTYPE(None, POINTER(_Envs), c_uint64, POINTER(c_uint32), POINTER(c_uint32))),
        ("draw", CFUNCTYPE(None, POINTER(_Envs), c_uint64, POINTER(c_uint8))),
    ]


class AgentHost(Host):
    """`num_envs` environments of `agents` rows each, in the order of environments, then agents.

    Rows are rubbish before each step: a plug-in must write every byte of them.
    """

    def __init__(self, library: Path, num_envs: int, seed: int = 0, **options: Any) -> None:
        super().__init__(library, num_envs, seed, **options)
        spec = _Spec(lanes=1, agents=1)
        spec.add_observation = spec.add_action = _ADD(lambda _, field: None)
        assert self._entry.describe(self._envs.options, spec) is None
        self.agents, self.instance_bytes = spec.agents, spec.instance_bytes
        self.num_rows = num_envs * spec.agents
        self._rooms: dict[str, np.ndarray[Any, Any]] = {}
        for name, array in self.arrays.items():
            count = self.num_rows if name in _PER_ROW else num_envs
            self.arrays[name] = self._placed(name, array[:num_envs], count)
        for name in ("instances", "rng", "rewards", "terminated", "truncated", "reset"):
            setattr(self._envs, name, self.arrays[name].ctypes.data)
        self._envs.observations[0] = self.arrays["observations"].ctypes.data
        self._envs.actions[0] = self.arrays["actions"].ctypes.data

    def _placed(self, name: str, like: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
        row_bytes = like.strides[0]
        room = np.full(2 * _MARGIN + count * row_bytes + 64, CANARY, np.uint8)
        start = _MARGIN + (-(room.ctypes.data + _MARGIN) % 64)
        inside = room[start : start + count * row_bytes]
        inside[:] = CANARY if name in _PER_ROW else like.reshape(-1).view(np.uint8)
        self._rooms[name] = room
        return inside.view(like.dtype).reshape(count, *like.shape[1:])

    def __getattr__(self, name: str) -> np.ndarray[Any, Any]:
        try:
            return self.__dict__["arrays"][name]
        except KeyError:
            raise AttributeError(name) from None

    def step(self, actions: Any, resets: Any = 0, ranges: list[tuple[int, int]] | None = None) -> None:
        for name in ("observations", "rewards", "terminated"):
            self.arrays[name].view(np.uint8)[:] = CANARY
        super().step(actions, resets, ranges)

    def check_canaries(self) -> None:
        for name, room in self._rooms.items():
            array = self.arrays[name]
            start = array.ctypes.data - room.ctypes.data
            assert (room[:start] == CANARY).all(), f"{name} were written before their start"
            assert (room[start + array.nbytes :] == CANARY).all(), f"{name} were written past their end"

    def save(self, env: int) -> bytes:
        checkpoint = self._checkpoint()
        assert not checkpoint.size and not checkpoint.save and not checkpoint.restore
        return self.instances[env].tobytes() + self.rng[env].tobytes()

    def restore(self, env: int, saved: bytes) -> str | None:
        self.instances[env] = np.frombuffer(saved, np.uint8, self.instance_bytes)
        self.rng[env] = np.frombuffer(saved, np.uint64, offset=self.instance_bytes)
        return None

    def draw(self, env: int) -> np.ndarray[Any, Any]:
        """The environment as an RGB picture."""
        address = self._entry.get_extension(b"shoal.render/1")
        assert address is not None
        render = _Render.from_address(address)
        height, width = c_uint32(), c_uint32()
        render.size(self._envs, env, height, width)
        room = np.full(height.value * width.value * 3 + 2 * _MARGIN, CANARY, np.uint8)
        inside = room[_MARGIN:-_MARGIN]
        render.draw(self._envs, env, inside.ctypes.data_as(POINTER(c_uint8)))
        assert (room[:_MARGIN] == CANARY).all() and (room[-_MARGIN:] == CANARY).all()
        return inside.reshape(height.value, width.value, 3)
