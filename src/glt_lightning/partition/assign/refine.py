"""Better parts from good ones: nodes move where most of their neighbours are, while there is room.

Restreaming (Nishimura and Ugander 2013) of the greedy rule of Stanton and Kliot (2012), begun from parts instead of none.
"""

from __future__ import annotations

import numpy as np

from glt_lightning.ops.assign import Labels
from glt_lightning.partition.assign.base import GraphToPartition


def refine(graph: GraphToPartition, parts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """int32 [N]: parts that cut fewer edges and are more even in each column of weights (int32 [N, C]).

    A part that has more than the imbalance allows gives it up where others have room, even if that cuts edges. One node
    that weighs more than that, or columns that are at odds, leave it so.
    """
    labels = Labels(parts, weights, graph.num_parts)
    capacity = graph.capacity(weights, graph.num_parts, graph.options.imbalance)
    pass_over(graph, labels, capacity, "refining parts", everywhere=True)
    return labels.labels


def pass_over(graph: GraphToPartition, labels: Labels, capacity: np.ndarray, what: str, *, everywhere: bool) -> None:
    """Propagates labels over all rows, ``passes`` times or until nothing moves."""
    passes = graph.options.passes
    with graph.progress.phase(what, passes * graph.topology.num_neighbors, "edges") as done:
        for _ in range(passes):
            moved = 0
            for rows in graph.topology.neighbors():
                moved += labels.propagate(rows, capacity, everywhere=everywhere)
                done(len(rows.neighbors))
            if moved == 0:
                return
