"""Graphs as METIS takes them."""

from __future__ import annotations

import numpy as np

Adjacency = tuple[np.ndarray, np.ndarray]


def adjacency_of(edges: np.ndarray, num_nodes: int) -> Adjacency:
    """int64 indptr, neighbours: both directions of each edge (integers [2, E]), without loops."""
    pairs = np.concatenate([edges, edges[::-1]], axis=1)
    keys = np.unique(pairs[0].astype(np.int64) * num_nodes + pairs[1]) if num_nodes else np.empty(0, np.int64)
    src, dst = np.divmod(keys, max(1, num_nodes))
    src, dst = src[src != dst], dst[src != dst]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(src, minlength=num_nodes))])
    return indptr.astype(np.int64), np.ascontiguousarray(dst)


def random_adjacency(num_nodes: int, num_edges: int) -> Adjacency:
    """The hardest to cut for its size."""
    return adjacency_of(np.random.default_rng(0).integers(0, num_nodes, (2, num_edges)), num_nodes)
