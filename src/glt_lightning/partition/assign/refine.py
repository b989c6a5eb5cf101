"""Improves given parts: nodes move to the part of most of their neighbours, if it has room.

Restreaming (Nishimura and Ugander 2013) of the greedy rule of Stanton and Kliot (2012), started from given parts.
"""

from __future__ import annotations

import numpy as np

from glt_lightning.kernels import Labels
from glt_lightning.partition.assign.base import GraphToPartition


def refine(graph: GraphToPartition, parts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """int32 [N]: parts with fewer edges between them that are better balanced in each column of weights (int32 [N, C]).

    An overfull part gives nodes to parts with room, even if that adds edges between parts. It stays overfull if a single node
    weighs more than ``partition.imbalance`` allows, or if no move improves all columns.
    """
    labels = Labels(parts, weights, graph.num_parts)
    capacity = graph.capacity(weights, graph.num_parts, graph.options.imbalance)
    pass_over(graph, labels, capacity, "refining parts", everywhere=True)
    return labels.labels


def pass_over(graph: GraphToPartition, labels: Labels, capacity: np.ndarray, what: str, *, everywhere: bool) -> None:
    """Propagates labels over all rows, ``partition.passes`` times or until no node moves."""
    passes = graph.options.passes
    with graph.progress.phase(what, passes * graph.topology.num_neighbors, "edges") as done:
        for _ in range(passes):
            moved = 0
            for rows in graph.topology.neighbors():
                moved += labels.propagate(rows, capacity, everywhere=everywhere)
                done(len(rows.neighbors))
            if moved == 0:
                return
