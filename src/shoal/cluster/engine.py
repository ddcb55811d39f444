"""The way to Ray: imported when a fleet is made and not before, so that Shoal does not need it."""

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
"""Where named fleets are found, whatever namespace the learner itself is in."""

LOOPBACK = "127.0.0.2" if sys.platform == "linux" else None
"""The address of a Ray of this machine alone. Ray takes 127.0.0.1 to mean the machine's outer address."""


def load() -> Any:
    """The module `ray`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a library does not decide to report to anyone
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns of a change to come
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of requests that were given up
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
    """Joins the cluster at `address`, or that of RAY_ADDRESS; without either, one of this machine alone.

    Whether this call did so: a process that has joined already is left as it is.
    """
    if ray.is_initialized():
        return False
    settings: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
    if address is None and not os.environ.get("RAY_ADDRESS"):
        ray.init("local", include_dashboard=False, _node_ip_address=LOOPBACK, **settings)
    else:
        _require_there(ray, address or os.environ["RAY_ADDRESS"])
        ray.init(address, **settings)
    return True


def _require_there(ray: Any, address: str) -> None:
    """Ray itself looks for a cluster that is not there for minutes, and says so only in its logs."""
    found = re.fullmatch(r"([^:/]+):(\d+)", address)
    if found is None:  # "auto", or ray://
        return
    host, port = found[1], int(found[2])
    hosts = [host, ray.util.get_node_ip_address()] if host in ("127.0.0.1", "localhost") else [host]
    for one in hosts:  # Ray takes this machine to mean its outer address
        try:
            socket.create_connection((one, port), _REACH_S).close()
            return
        except OSError as error:
            why = error
    raise ShoalError(
        f"no Ray cluster answers at {address} ({why}); `ray start --head` begins one and says its address; "
        "give that as address= or RAY_ADDRESS, or neither for a Ray of this machine alone"
    )
