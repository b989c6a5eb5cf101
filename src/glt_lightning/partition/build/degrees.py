"""The first pass over the edges: checks their ids and counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from glt_lightning.errors import DataError
from glt_lightning.ops.build import count_ids
from glt_lightning.partition.build.relations import Relation
from glt_lightning.partition.sources.base import EdgeList
from glt_lightning.types import EdgeType, NodeType, edge_type_str

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Degrees:
    """Edges of the user's types by end, before parallel edges are merged.

    Attributes:
        out: Edge type -> int32 or int64 [N of its source], by user id.
        into: Edge type -> the same [N of its destination], by user id.
    """

    out: dict[EdgeType, np.ndarray]
    into: dict[EdgeType, np.ndarray]

    def in_degree(self, relation: Relation) -> np.ndarray:
        """int32 or int64 [N]: stored edges by destination."""
        if relation.both:
            both: np.ndarray = self.out[relation.source] + self.into[relation.source]
            return both
        return (self.out if relation.flip else self.into)[relation.source]

    def out_degree(self, relation: Relation) -> np.ndarray:
        """int32 or int64 [N]: stored edges by source."""
        if relation.both:
            return self.in_degree(relation)
        return (self.into if relation.flip else self.out)[relation.source]

    def num_edges(self, relation: Relation) -> int:
        return int(self.into[relation.source].sum()) * (2 if relation.both else 1)

    def occurrences(
        self, relations: Sequence[Relation], num_nodes: Mapping[NodeType, int]
    ) -> dict[NodeType, np.ndarray]:
        """Node type -> int64 [N]: how often each node is a source of a stored edge."""
        total = {t: np.zeros(n, np.int64) for t, n in num_nodes.items()}
        for relation in relations:
            total[relation.edge_type[0]] += self.out_degree(relation)
        return total


def count_degrees(
    edges: Mapping[EdgeType, EdgeList],
    num_nodes: Mapping[NodeType, int],
    done: Callable[[int], object],
    counted_by: Callable[[NodeType], str] = lambda node_type: "",
) -> Degrees:
    """Reads each edge type of the user once. Raises `DataError` for an edge whose node does not exist.

    counted_by: who says how many nodes of a type there are, for that error.
    """
    degrees = Degrees({}, {})
    for edge_type, edge_list in edges.items():
        degrees.out[edge_type], degrees.into[edge_type] = _count(edge_type, edge_list, num_nodes, done, counted_by)
    return degrees


def _count(
    edge_type: EdgeType,
    edges: EdgeList,
    num_nodes: Mapping[NodeType, int],
    done: Callable[[int], object],
    counted_by: Callable[[NodeType], str],
) -> tuple[np.ndarray, np.ndarray]:
    """Integers [N of the sources] and [N of the destinations]: edges by end."""
    ends = [
        (name, t, np.zeros(num_nodes[t], np.int64))
        for name, t in zip(("source", "destination"), edge_type[::2], strict=True)
    ]
    column = 0
    for chunk in edges.chunks(_CHUNK):
        for (name, node_type, counts), ids in zip(ends, chunk, strict=True):
            bad = count_ids(ids, counts)
            if bad is not None:
                raise DataError(
                    f"edges of type {edge_type_str(edge_type)}: column {column + bad} has {name} {ids[bad]}, but "
                    f"node type {node_type!r} has {num_nodes[node_type]} nodes (0..{num_nodes[node_type] - 1})"
                    f"{counted_by(node_type)}."
                )
        column += len(chunk[0])
        done(len(chunk[0]))
    return _narrowed(ends[0][2]), _narrowed(ends[1][2])


def _narrowed(counts: np.ndarray) -> np.ndarray:
    """As int32 where the sum of two fits."""
    return counts.astype(np.int32) if counts.max(initial=0) < 1 << 30 else counts
