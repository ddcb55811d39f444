"""Sequence and Graph: spaces without a fixed size, which get a maximum size.

    Sequence, row i:   lengths[i]   feature rows  i*max_length .. i*max_length + lengths[i]
    Graph, row i:      counts[i]    node rows     i*max_nodes ..,  edge rows and links  i*max_edges ..

The subspace's memory has more rows, so features, nodes and edges may be any space, also one of these two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import GraphInstance

from shoal.errors import SpaceError
from shoal.spaces.memory import LeafMemory, Memory, Staged

__all__ = ["GraphMemory", "SequenceMemory"]

_NO_EDGES = -1  # as a count: edges and edge_links are None


class SequenceMemory(Memory):
    """One length and `max_length` rows of the feature space for each row."""

    def __init__(self, path: str, lengths: LeafMemory, feature: Memory, max_length: int, stack: bool) -> None:
        self.path = path
        self.rows = lengths.rows
        self.lengths = lengths
        self.feature = feature
        self.max_length = max_length
        self.stack = stack

    def stage(self, row: int, value: Any, staged: Staged) -> None:
        first = row * self.max_length
        if self.stack:
            count = self.feature.stage_rows(first, self.max_length, value, staged)
        else:
            if not isinstance(value, (tuple, list)):
                raise SpaceError(f"{self.path}: expected a tuple, found {type(value).__name__}")
            count = Memory.stage_rows(self.feature, first, self.max_length, value, staged)
        self.lengths.stage(row, count, staged)

    def read(self, lo: int, hi: int) -> tuple[Any, ...]:
        return tuple(self.read_one(row) for row in range(lo, hi))

    def read_one(self, row: int) -> Any:
        first = row * self.max_length
        end = first + int(self.lengths.read_one(row))
        if self.stack:
            return self.feature.read(first, end)
        return tuple(self.feature.read_one(feature_row) for feature_row in range(first, end))

    def __reduce__(self) -> tuple[Any, ...]:
        return SequenceMemory, (self.path, self.lengths, self.feature, self.max_length, self.stack)


class GraphMemory(Memory):
    """Two counts, `max_nodes` rows of the node space and `max_edges` rows of the edge space for each row."""

    def __init__(
        self,
        path: str,
        counts: LeafMemory,
        nodes: Memory,
        edges: Memory | None,
        links: LeafMemory | None,
    ) -> None:
        self.path = path
        self.rows = counts.rows
        self.counts = counts
        self.nodes = nodes
        self.edges = edges
        self.links = links
        self.max_nodes = nodes.rows // max(1, self.rows)
        self.max_edges = 0 if links is None else links.rows // max(1, self.rows)

    def stage(self, row: int, value: Any, staged: Staged) -> None:
        try:
            nodes, edges, links = value.nodes, value.edges, value.edge_links
        except AttributeError:
            raise SpaceError(f"{self.path}: expected a GraphInstance, found {type(value).__name__}") from None
        node_count = self.nodes.stage_rows(row * self.max_nodes, self.max_nodes, nodes, staged)
        edge_count = _NO_EDGES
        if (edges is None) != (links is None):
            given = "edges" if links is None else "edge_links"
            raise SpaceError(
                f"{self.path}: edges and edge_links must both be given or both be None, found {given} alone"
            )
        if edges is not None:
            edge_count = self._stage_edges(row, edges, links, node_count, staged)
        self.counts.stage(row, (node_count, edge_count), staged)

    def _stage_edges(self, row: int, edges: Any, links: Any, node_count: int, staged: Staged) -> int:
        if self.edges is None or self.links is None:
            raise SpaceError(
                f"{self.path}: the space has no edge space, but the value has edges; pass edges=None"
            )
        first = row * self.max_edges
        count = self.edges.stage_rows(first, self.max_edges, edges, staged)
        linked = self.links.stage_rows(first, self.max_edges, links, staged)
        if linked != count:
            raise SpaceError(f"{self.path}: expected {count} edge_links, one per edge, found {linked}")
        ends = np.asarray(links)
        if count and not (0 <= ends.min() and ends.max() < node_count):
            raise SpaceError(
                f"{self.path}: every edge link must be a node from 0 to {node_count - 1}, found links from "
                f"{ends.min()} to {ends.max()}"
            )
        return count

    def read(self, lo: int, hi: int) -> tuple[GraphInstance, ...]:
        return tuple(self.read_one(row) for row in range(lo, hi))

    def read_one(self, row: int) -> GraphInstance:
        node_count, edge_count = (int(count) for count in self.counts.read_one(row))
        first = row * self.max_nodes
        nodes = self.nodes.read(first, first + node_count)
        if edge_count == _NO_EDGES or self.edges is None or self.links is None:
            return GraphInstance(nodes, None, None)
        first = row * self.max_edges
        end = first + edge_count
        return GraphInstance(nodes, self.edges.read(first, end), self.links.read(first, end))

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphMemory, (self.path, self.counts, self.nodes, self.edges, self.links)
