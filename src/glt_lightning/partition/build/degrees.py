"""The first pass over the edges: checks their ids and counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from glt_lightning.base import DataError, EdgeType, NodeType, counted, edge_type_str
from glt_lightning.kernels import count_ids
from glt_lightning.partition.build.edge_types import StoredEdgeType
from glt_lightning.partition.sources.base import counted_by, read_edges

if TYPE_CHECKING:
    from glt_lightning.partition.build.stored_graph import StoredGraph

_CHUNK = 1 << 20  # edges counted at once: two int64 columns take 16 MiB


@dataclass(frozen=True)
class Degrees:
    """Degrees in the user's edge types, before parallel edges are merged.

    Attributes:
        out: Edge type -> out-degrees, int32 or int64 [N of the source type], by user id.
        into: Edge type -> in-degrees, int32 or int64 [N of the destination type], by user id.
    """

    out: dict[EdgeType, np.ndarray]
    into: dict[EdgeType, np.ndarray]

    def in_degree(self, stored_type: StoredEdgeType) -> np.ndarray:
        """int32 or int64 [N]: number of stored edges per destination, by user id."""
        first, *more = self._ends(stored_type, into=True)
        return first if not more else first + more[0]

    def num_edges(self, stored_type: StoredEdgeType) -> int:
        return int(self.into[stored_type.source].sum()) * (2 if stored_type.both else 1)

    def occurrences(
        self, node_type: NodeType, stored_types: Sequence[StoredEdgeType], begin: int, end: int
    ) -> np.ndarray:
        """int64 [end - begin]: number of stored edges, of all edge types, that start at each node of a range of a type."""
        total = np.zeros(end - begin, np.int64)
        for stored_type in stored_types:
            if stored_type.edge_type[0] == node_type:
                for counts in self._ends(stored_type, into=False):
                    total += counts[begin:end]
        return total

    def _ends(self, stored_type: StoredEdgeType, into: bool) -> list[np.ndarray]:
        """The counts whose sum is the number of stored edges into, or out of, each node."""
        if stored_type.both:
            return [self.out[stored_type.source], self.into[stored_type.source]]
        return [(self.into if into != stored_type.flip else self.out)[stored_type.source]]


def count_degrees(graph: StoredGraph, edge_type: EdgeType, piece: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Reads the edges [begin, end) of a type of the user's. Returns their out-degrees [N of the sources] and in-degrees [N of the
    destinations].

    Raises `DataError` for an edge whose node does not exist.
    """
    ends = [
        (name, t, np.zeros(graph.num_nodes[t], np.int64))
        for name, t in zip(("source", "destination"), edge_type[::2], strict=True)
    ]
    column, end = piece
    for chunk in read_edges(graph.edges[edge_type], _CHUNK, column, end):
        for (name, node_type, counts), ids in zip(ends, chunk, strict=True):
            bad = count_ids(ids, counts)
            if bad is not None:
                raise DataError(
                    f"edges of type {edge_type_str(edge_type)}: column {column + bad} has {name} {ids[bad]}, but "
                    f"{known_nodes(node_type, len(counts))}{counted_by(graph.source, node_type)}."
                )
        column += len(chunk[0])
    return _narrowed(ends[0][2]), _narrowed(ends[1][2])


def known_nodes(node_type: NodeType, count: int) -> str:
    """``node type 'paper' has 3 nodes (0..2)``, for errors about ids that are out of range."""
    return f"node type {node_type!r} has " + (f"{counted(count, 'node')} (0..{count - 1})" if count else "no nodes")


def _narrowed(counts: np.ndarray) -> np.ndarray:
    """Converts counts to int32 if the sum of two of them, the degree of a node in both directions, fits int32."""
    return counts.astype(np.int32) if counts.max(initial=0) < 1 << 30 else counts
