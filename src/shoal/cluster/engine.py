"""Imports Ray and connects to it. Ray is imported only when a fleet is made, so Shoal works without it."""

from __future__ import annotations

import os
import re
import socket
import sys
from typing import Any

from shoal.errors import ShoalError

__all__ = ["LOOPBACK", "NAMESPACE", "connect", "load"]

_REACH_S = 10.0
NAMESPACE = "shoal"
"""The Ray namespace of named fleets; it does not depend on the learner's own namespace."""

LOOPBACK = "127.0.0.2" if sys.platform == "linux" else None
"""The address for a Ray that only this machine can reach. Ray replaces 127.0.0.1 by the external address."""


def load() -> Any:
    """Imports and returns the module `ray`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a library must not switch on usage reports
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # without it, Ray prints a FutureWarning
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # requests that were dropped may fail
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ShoalError(
            'a fleet needs Ray, which is not installed: pip install "ray[default]>=2.60"'
        ) from error
    return ray


def connect(ray: Any, address: str | None) -> bool:
    """Joins the cluster at `address` or RAY_ADDRESS; without either, starts a Ray on this machine alone.

    Returns whether this call joined. If the process is in a cluster already, nothing changes.
    """
    if ray.is_initialized():
        return False
    settings: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
    if address is None and not os.environ.get("RAY_ADDRESS"):
        ray.init("local", include_dashboard=False, _node_ip_address=LOOPBACK, **settings)
    else:
        _require_reachable(ray, address or os.environ["RAY_ADDRESS"])
        ray.init(address, **settings)
    return True


def _require_reachable(ray: Any, address: str) -> None:
    """Raises ShoalError if nothing listens at `address`.

    Ray itself would try for minutes and report the failure only in its logs.
    """
    found = re.fullmatch(r"([^:/]+):(\d+)", address)
    if found is None:  # "auto", or ray://
        return
    host, port = found[1], int(found[2])
    hosts = [host, ray.util.get_node_ip_address()] if host in ("127.0.0.1", "localhost") else [host]
    for candidate in hosts:  # Ray replaces the loopback address by the machine's external address
        try:
            socket.create_connection((candidate, port), _REACH_S).close()
            return
        except OSError as error:
            why = error
    raise ShoalError(
        f"no Ray cluster answers at {address} ({why}); `ray start --head` starts one and prints its address; "
        "pass that as address= or RAY_ADDRESS, or set neither to run Ray on this machine alone"
    )
