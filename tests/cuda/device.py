"""The device that these tests run on: emulated, or a GPU with SHOAL_TEST_DEVICE=cuda (`make test-gpu`)."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import shoal

DEVICE = os.environ.get("SHOAL_TEST_DEVICE", "emulated")
ON_GPU = DEVICE != "emulated"
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="machine: no GPU; make test-gpu runs it")


def make(env: Any, num_envs: int, **kwargs: Any) -> Any:
    """Environments on the device, without a session unless one is asked for."""
    return shoal.make_vec(env, num_envs, **{"device": DEVICE, "session": None, **kwargs})


def put(value: Any) -> Any:
    """Host arrays as the device's own."""
    if isinstance(value, dict):
        return {key: put(part) for key, part in value.items()}
    if not ON_GPU:
        return value
    import torch

    return torch.as_tensor(value, device=DEVICE)


def host(value: Any) -> Any:
    """The device's arrays as NumPy's, in new memory."""
    if isinstance(value, dict):
        return {key: host(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(map(host, value))
    return value.copy() if isinstance(value, np.ndarray) else value.cpu().numpy()
