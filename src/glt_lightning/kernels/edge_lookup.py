"""The lookup of edges in the mapped parts."""

from __future__ import annotations

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.kernels.graph import GraphView
from glt_lightning.kernels.native import I32, I64, P, Signatures, bind, call, check

_SIGNATURES: Signatures = {
    "glt_has_edges": [P, I32, P, P, I64, I32, P, P],
}
_library = bind(_SIGNATURES)


def has_edges(graph: GraphView, edge_type: int, dst: np.ndarray, src: np.ndarray, *, threads: int = 1) -> np.ndarray:
    """Returns bool [n]: True if the edge type has an edge from ``src[i]`` to ``dst[i]``; in a view with weights, an edge whose
    weight is not 0.

    dst: int64 [n], gids of destination nodes, all local.  src: int64 [n], gids of source nodes, local or not. The row of
    each dst is read until its source is found.  threads: the most threads that share the pairs.

    Raises `DataError` for ids that `require_pairs` refuses, or whose part is not mapped; `PartitionError` for a damaged row.
    """
    require_pairs(graph, edge_type, dst, src)
    dst, src = (np.ascontiguousarray(ids, dtype=np.int64) for ids in (dst, src))
    found = np.empty(len(dst), dtype=np.bool_)
    status, detail = call(_library().glt_has_edges, graph.address, edge_type, dst, src, len(dst), threads, found)
    check(status, detail, "has_edges")
    return found


def require_pairs(graph: GraphView, edge_type: int, dst: np.ndarray, src: np.ndarray, what: str = "has_edges") -> None:
    """Raises `DataError` unless these can be the ends of edges: two integer arrays [n] of gids of the edge type's node types.
    what: the beginning of the errors."""
    if not isinstance(edge_type, (int, np.integer)) or not 0 <= edge_type < graph.num_edge_types:
        raise DataError(
            f"{what}: expected the index of an edge type, 0 to {graph.num_edge_types - 1}, got {edge_type!r:.100}."
        )
    for name, ids in (("dst", dst), ("src", src)):
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise DataError(f"{what}: {name}: expected gids, integers [n], got {ids.dtype} {list(ids.shape)}.")
    if len(dst) != len(src):
        raise DataError(f"{what}: expected as many dst as src, got {len(dst)} and {len(src)}.")
    types = (("dst", dst, graph.dst_types[edge_type]), ("src", src, graph.src_types[edge_type]))
    for name, ids, node_type in types:
        begin, end = graph.type_offsets[node_type], graph.bounds[(node_type + 1) * graph.num_parts]
        outside = np.flatnonzero((ids < begin) | (ids >= end))
        if len(outside):
            raise DataError(
                f"{what}: {name}: gid {ids[outside[0]]} at position {outside[0]} is no node of type {node_type}, whose gids "
                f"are {begin} to {end - 1}. dst are nodes of the edge type's destination type, src of its source type."
            )
