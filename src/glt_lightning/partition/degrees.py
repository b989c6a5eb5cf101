"""The first pass over the edges: checks their ids and counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from glt_lightning.errors import DataError
from glt_lightning.ops.build import count_ids
from glt_lightning.partition.relations import Relation
from glt_lightning.partition.sources.base import EdgeList
from glt_lightning.types import EdgeType, NodeType, edge_type_str

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Degrees:
    """Counts by user id, before parallel edges are merged.

    Attributes:
        hotness: Node type -> int64 [N], appearances as a source in all stored relations.
        in_degree: Stored edge type -> int64 [N of its destination], edges.
    """

    hotness: dict[NodeType, np.ndarray]
    in_degree: dict[EdgeType, np.ndarray]


def count_degrees(
    edges: Mapping[EdgeType, EdgeList],
    relations: Sequence[Relation],
    num_nodes: Mapping[NodeType, int],
    done: Callable[[int], object],
) -> Degrees:
    """Reads each edge type of the user once. Raises `DataError` for an edge whose node does not exist."""
    degrees = Degrees({t: np.zeros(n, np.int64) for t, n in num_nodes.items()}, {})
    for edge_type, edge_list in edges.items():
        out, into = _count(edge_type, edge_list, num_nodes, done)
        src, _, dst = edge_type
        for relation in relations:
            if relation.source != edge_type:
                continue
            if relation.both:
                hot, sources, destinations = src, out + into, out + into
            elif relation.flip:
                hot, sources, destinations = dst, into, out
            else:
                hot, sources, destinations = src, out, into
            degrees.hotness[hot] += sources
            degrees.in_degree[relation.edge_type] = destinations
    return degrees


def _count(
    edge_type: EdgeType, edges: EdgeList, num_nodes: Mapping[NodeType, int], done: Callable[[int], object]
) -> tuple[np.ndarray, np.ndarray]:
    """int64 [N of the sources], int64 [N of the destinations]: edges by end."""
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
                    f"node type {node_type!r} has {num_nodes[node_type]} nodes (0..{num_nodes[node_type] - 1})."
                )
        column += len(chunk[0])
        done(len(chunk[0]))
    return ends[0][2], ends[1][2]
