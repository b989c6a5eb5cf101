"""Few edges between parts, by METIS: the whole graph in memory.

METIS balances nodes and edges. Seeds it would balance at half its speed again; `refine` evens them out in seconds.
"""

from __future__ import annotations

import numpy as np

from glt_lightning.ops.metis import metis_parts
from glt_lightning.partition.assign.base import Assigner, Assignment, GraphToPartition
from glt_lightning.partition.assign.refine import refine
from glt_lightning.partition.interrupt import interruptible


class MetisAssigner(Assigner):
    """Edges count in both directions and alike, whatever their type; balance as DGL's ``partition_graph`` offers it."""

    deterministic = False

    def assign(self, graph: GraphToPartition) -> Assignment:
        topology, options = graph.topology, graph.options
        indptr, neighbors = adjacency(graph)
        weights = graph.weights()
        structure = graph.weights(without="seeds")
        with graph.progress.phase("METIS", topology.total, "nodes") as done:
            parts = interruptible(
                lambda: metis_parts(
                    indptr,
                    neighbors,
                    graph.num_parts,
                    weights=(structure if structure.size else weights).astype(np.int64),
                    imbalance=options.imbalance,
                    seed=options.seed,
                )
            )
            done(topology.total)
        return topology.split(refine(graph, parts, weights))


def adjacency(graph: GraphToPartition) -> tuple[np.ndarray, np.ndarray]:
    """int64 indptr [N + 1] and neighbours [E]: each edge in both directions, without loops."""
    topology = graph.topology
    indptr = np.zeros(topology.total + 1, np.int64)
    neighbors = np.empty(topology.num_neighbors, np.int64)
    filled = 0
    for rows in topology.neighbors():
        sizes, kept = np.diff(rows.indptr), rows.neighbors
        node = np.repeat(np.arange(rows.first, rows.first + len(rows), dtype=kept.dtype), sizes)
        if (loops := kept == node).any():
            sizes, kept = sizes - np.bincount(node[loops] - rows.first, minlength=len(rows)), kept[~loops]
        neighbors[filled : filled + len(kept)] = kept
        indptr[rows.first + 1 : rows.first + 1 + len(rows)] = sizes
        filled += len(kept)
    np.cumsum(indptr, out=indptr)
    return indptr, neighbors[:filled]
