"""Few edges between parts, by METIS (Karypis and Kumar 1998), with the whole graph in memory.

METIS balances nodes and edges. Balancing seeds as well would double its time; `refine` does that afterwards in seconds.
"""

from __future__ import annotations

import numpy as np

from glt_lightning.kernels import MetisGraph
from glt_lightning.partition.assign.base import Assigner, Assignment, GraphToPartition
from glt_lightning.partition.assign.refine import refine


class MetisAssigner(Assigner):
    """All edge types count the same, in both directions. Balances what DGL's ``partition_graph`` can balance."""

    deterministic = False

    def assign(self, graph: GraphToPartition) -> Assignment:
        weights = graph.weights()
        parts = _cut(graph, weights)
        return graph.topology.split(refine(graph, parts, weights))


def _cut(graph: GraphToPartition, weights: np.ndarray) -> np.ndarray:
    """int32 [N]: the parts by METIS. The graph is freed when this returns."""
    topology, options = graph.topology, graph.options
    structure = graph.weights(without="seeds")
    with MetisGraph(structure if structure.size else weights, topology.num_neighbors) as metis:
        fill(metis, graph)
        with graph.progress.phase("METIS", topology.total, "nodes") as done:
            parts = metis.cut(graph.num_parts, imbalance=options.imbalance, seed=options.seed)
            done(topology.total)
    return parts


def fill(metis: MetisGraph, graph: GraphToPartition) -> None:
    """Adds each edge in both directions; self-loops are left out."""
    filled = 0
    for rows in graph.topology.neighbors():
        sizes, neighbors = np.diff(rows.indptr), rows.neighbors
        node = np.repeat(np.arange(rows.first, rows.first + len(rows), dtype=neighbors.dtype), sizes)
        if (loops := neighbors == node).any():
            sizes, neighbors = sizes - np.bincount(node[loops] - rows.first, minlength=len(rows)), neighbors[~loops]
        metis.neighbors[filled : filled + len(neighbors)] = neighbors
        metis.indptr[rows.first + 1 : rows.first + 1 + len(rows)] = sizes
        filled += len(neighbors)
    np.cumsum(metis.indptr, out=metis.indptr)
