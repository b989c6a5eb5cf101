"""Parts by expected accesses: each node goes to the part that reads it most; edges between parts are not considered.

The rule of GraphLearn-for-PyTorch's FrequencyPartitioner: training seeds are split, in the user's order, into one share per
part. Each node goes to the part whose share needs it most, in blocks of ids of which every part gets equally many.
"""

from __future__ import annotations

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.partition.assign.base import Assigner, Assignment, GraphToPartition
from glt_lightning.partition.hotness.vip import inclusion_of_each

_BLOCK = 10_000  # ids per part; GLT's default chunk_size


class FrequencyAssigner(Assigner):
    """Probabilities are the expected accesses per batch (`inclusion`)."""

    def assign(self, graph: GraphToPartition) -> Assignment:
        if "train" not in graph.splits or not len(graph.splits["train"][1]):
            raise DataError(
                "partition.algorithm: frequency counts accesses by training seeds, but the data has none. "
                "Give a training split, or use random, metis or streaming."
            )
        node_type, seeds = graph.splits["train"]
        shares = [(node_type, share) for share in np.array_split(seeds, graph.num_parts)]
        wanted = inclusion_of_each(graph.topology, shares, graph.options, graph.topology.folder, graph.progress)
        return {t: frequency_parts(p) for t, p in graph.topology.split(wanted.T).items()}


def frequency_parts(wanted: np.ndarray, block: int = _BLOCK) -> np.ndarray:
    """int32 [N]: a part for each node. wanted: float [N, P], expected accesses of each node by each part's seeds."""
    num_nodes, num_parts = wanted.shape
    parts = np.empty(num_nodes, np.int32)
    for number, begin in enumerate(range(0, num_nodes, block * num_parts)):
        piece = np.ascontiguousarray(wanted[begin : begin + block * num_parts])
        gain = piece * np.float32(num_parts + 1) - piece.sum(axis=1, keepdims=True)
        free = np.arange(len(piece))
        for turn in range(num_parts):  # in each block another part chooses first, so that none gets all hot nodes
            part = (turn + number) % num_parts
            count = -(-len(free) // (num_parts - turn))
            order = np.argsort(-gain[free, part], kind="stable")
            parts[begin + free[order[:count]]] = part
            free = np.sort(free[order[count:]])
    return parts
