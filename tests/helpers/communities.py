"""Graphs with communities, which a good partitioner finds."""

from __future__ import annotations

import numpy as np


def community_graph(num_nodes: int, communities: int = 30, mean_degree: int = 16, seed: int = 0) -> np.ndarray:
    """int64 [2, E], one direction of each edge: four in five inside a community, skewed degrees, shuffled ids."""
    rng = np.random.default_rng(seed)
    count, size = num_nodes * mean_degree // 2, num_nodes // communities
    src = (rng.random(count) ** 1.5 * num_nodes).astype(np.int64)
    inside = src // size * size + (rng.random(count) ** 1.5 * size).astype(np.int64)
    dst = np.where(rng.random(count) < 0.8, inside, rng.integers(0, num_nodes, count))
    return rng.permutation(num_nodes)[np.stack([src, np.minimum(dst, num_nodes - 1)])]
