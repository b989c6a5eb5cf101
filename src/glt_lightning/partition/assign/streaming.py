"""Few edges between parts in bounded memory: edges are streamed from disk, only nodes are held in memory.

Three steps, each a few passes over rows on disk:

1. Nodes form clusters by label propagation, none larger than a small share of a part (Raghavan, Albert, Kumara 2007;
   the size limit as in Meyerhenke, Sanders, Schulz 2014).
2. METIS assigns clusters to parts, on the graph of clusters weighted by the numbers of edges between them.
3. Nodes move to the part of most of their neighbours, if it has room (`refine`).
"""

from __future__ import annotations

import numpy as np

from glt_lightning.kernels import Labels, PairTable, metis_parts
from glt_lightning.partition.assign.base import Assigner, Assignment, GraphToPartition
from glt_lightning.partition.assign.refine import pass_over, refine

_CLUSTERS_PER_PART = 64  # if all were of full size; most stay smaller
_BYTES_PER_PAIR = 512  # what METIS needs, about, for each pair of clusters
_LEAST_PAIRS = 1 << 16  # 32 MiB by that estimate, however little memory is allowed


class StreamingAssigner(Assigner):
    """Needs a few integers of memory per node, and ``partition.memory_bytes`` for the graph of clusters."""

    deterministic = False  # because METIS is not, across machines and versions

    def assign(self, graph: GraphToPartition) -> Assignment:
        weights = graph.weights()
        clusters, count = _numbered(self._cluster(graph, weights))
        parts = self._join(graph, clusters, count, weights)
        return graph.topology.split(refine(graph, parts[clusters], weights))

    def _cluster(self, graph: GraphToPartition, weights: np.ndarray) -> np.ndarray:
        """int32 [N]: the cluster of each node, named by one of its nodes."""
        topology = graph.topology
        capacity = graph.capacity(weights, graph.num_parts * _CLUSTERS_PER_PART, 0.0)
        labels = Labels(np.arange(topology.total, dtype=np.int32), weights, topology.total)
        pass_over(graph, labels, capacity, "grouping nodes", everywhere=False)
        return labels.labels

    def _join(self, graph: GraphToPartition, clusters: np.ndarray, count: int, weights: np.ndarray) -> np.ndarray:
        """int32 [clusters]: the part of each cluster."""
        room = max(_LEAST_PAIRS, graph.options.memory_bytes // _BYTES_PER_PAIR)
        possible = min(count * (count - 1) // 2, graph.topology.num_neighbors)
        pairs = PairTable(max(1, min(room, possible)))  # for a small graph the rest is 128 MB to clear
        with graph.progress.phase("joining groups", graph.topology.num_neighbors, "edges") as done:
            for rows in graph.topology.neighbors():
                pairs.add(rows, clusters)
                done(len(rows.neighbors))
        low, high, edges = pairs.pairs()
        indptr, neighbors, edge_weights = _both_ways(low, high, edges, count)
        loads = np.stack(
            [np.bincount(clusters, weights=weights[:, c], minlength=count) for c in range(weights.shape[1])], axis=1
        )
        return metis_parts(
            indptr,
            neighbors,
            graph.num_parts,
            weights=loads.astype(np.int64),
            edge_weights=edge_weights,
            imbalance=graph.options.imbalance,
            seed=graph.options.seed,
        )


def _numbered(labels: np.ndarray) -> tuple[np.ndarray, int]:
    """Labels renumbered from 0 without gaps, and the number of different labels."""
    used = np.zeros(int(labels.max(initial=-1)) + 1, np.int32)
    used[labels] = 1
    rank = np.cumsum(used, dtype=np.int32)
    return rank[labels] - 1, int(rank[-1]) if len(rank) else 0


def _both_ways(
    low: np.ndarray, high: np.ndarray, edges: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The symmetric weighted graph of pairs as CSR: indptr [count + 1], neighbours and numbers of edges, all int64."""
    row, other, weight = np.concatenate([low, high]), np.concatenate([high, low]), np.concatenate([edges, edges])
    order = np.argsort(row, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=count))]).astype(np.int64)
    return indptr, other[order], weight[order]
