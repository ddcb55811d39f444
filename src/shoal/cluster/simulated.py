"""A Ray cluster of several nodes on one machine, for experiments and fault tests."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
import threading
from functools import cache
from typing import Any

from shoal.cluster import engine

__all__ = ["SimulatedCluster"]

_SETTINGS = {"RAY_AUTH_MODE": "token"}
_RAY_CONFIG = {
    "health_check_period_ms": 500,  # five failed checks mean a lost node; Ray's default period is 3 s
    # By default Ray stores no more objects when 95 % of the disk is used, however many bytes are free.
    # All nodes share this machine's disk, so let them use what is left.
    "local_fs_capacity_threshold": 1.0,
}


class SimulatedCluster:
    """Real Ray nodes as processes of this machine. They communicate only over loopback and need a token.

    with SimulatedCluster(nodes=3) as cluster:
        ...  # this process has joined it
        cluster.remove_node(2)

    The first node is the head node, which this process runs on; it cannot be removed.

    >>> import ray
    >>> if not ray.is_initialized():  # else this process has joined one already
    ...     cluster = SimulatedCluster(nodes=2)
    >>> len(ray.nodes())
    2
    """

    def __init__(self, nodes: int = 2, num_cpus: int = 1, object_store_bytes: int = 256 << 20) -> None:
        ray = self._ray = engine.load()
        if ray.is_initialized():
            raise RuntimeError("this process is in a Ray cluster already; call ray.shutdown() first")
        from ray._common.utils import get_default_ray_temp_dir, try_to_create_directory
        from ray._raylet import Config  # type: ignore[attr-defined, unused-ignore]
        from ray.cluster_utils import Cluster

        self._before = {name: os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
        os.environ.update(_SETTINGS | {"RAY_AUTH_TOKEN": _auth_token()})
        Config.initialize("")  # Ray has read its settings at import; read them again
        # Ray writes the head's address into this directory, but only a node that uses it creates it.
        try_to_create_directory(get_default_ray_temp_dir())
        self._directory = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: it is part of socket names
        self._size = {"num_cpus": num_cpus, "object_store_memory": object_store_bytes}
        self._nodes: list[Any] = []
        self._count = 0
        self._handler = signal.getsignal(signal.SIGTERM)
        self._cluster = Cluster()  # its processes end when this process ends, even if it is killed
        try:
            for _ in range(nodes):
                self.add_node()
            ray.init(
                self._cluster.address, namespace=engine.NAMESPACE, log_to_driver=False, logging_level="ERROR"
            )
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """The address, for RAY_ADDRESS or `Fleet(address=)` in a process that has RAY_AUTH_TOKEN too."""
        return str(self._cluster.address)

    def add_node(self, **settings: Any) -> str:
        """Adds a node and returns its Ray id."""
        first: dict[str, Any] = {"include_log_monitor": False}
        if not self._nodes:
            first |= {"include_dashboard": False, "no_monitor": True, "temp_dir": self._directory}
            first["_system_config"] = _RAY_CONFIG
        if engine.LOOPBACK is not None:  # each node has its own address, like a machine
            network, host = engine.LOOPBACK.rsplit(".", 1)
            first["node_ip_address"] = f"{network}.{int(host) + self._count}"
        self._count += 1
        self._nodes.append(self._cluster.add_node(**{**self._size, **first, **settings}))
        return str(self._nodes[-1].node_id)

    def remove_node(self, node_id: str) -> None:
        """Kills every process of a node at once, like a power failure of a machine."""
        (node,) = [node for node in self._nodes if node.node_id == node_id]
        self._nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        """Ends all nodes and disconnects this process. Idempotent."""
        if self._cluster is not None:
            self._ray.shutdown()
            self._cluster.shutdown()
            self._cluster = None
            shutil.rmtree(self._directory, ignore_errors=True)
            for name, value in self._before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            if threading.current_thread() is threading.main_thread():
                # Ray's handler would kill processes that have ended.
                signal.signal(signal.SIGTERM, self._handler)

    def __enter__(self) -> SimulatedCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@cache
def _auth_token() -> str:
    """Returns one token for all clusters of this process, because Ray keeps the first token it reads."""
    return os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)
