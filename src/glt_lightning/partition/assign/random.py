"""Random parts of equal size."""

from __future__ import annotations

import hashlib

import numpy as np

from glt_lightning.base import NodeType
from glt_lightning.partition.assign.base import Assigner, Assignment, GraphToPartition


class RandomAssigner(Assigner):
    """Assigns each node type separately; sizes of parts differ by at most one."""

    def assign(self, graph: GraphToPartition) -> Assignment:
        parts, seed = graph.num_parts, graph.options.seed
        return {t: random_parts(n, parts, seed, t) for t, n in graph.num_nodes.items()}


def random_parts(num_nodes: int, num_parts: int, seed: int, node_type: NodeType) -> np.ndarray:
    """int32 [N]: a random part for each node; the parts' sizes differ by at most one.

    Nodes are ranked by a keyed 64-bit hash of their id, so that the result does not depend on a library's random generator.
    """
    key = hashlib.blake2b(f"{seed}\x1f{node_type}".encode(), digest_size=8).digest()
    rank = np.argsort(_mix(np.arange(num_nodes, dtype=np.uint64) ^ np.frombuffer(key, "<u8")[0]))
    parts = np.empty(num_nodes, np.int32)
    sizes = [(num_nodes * (p + 1)) // num_parts - (num_nodes * p) // num_parts for p in range(num_parts)]
    parts[rank] = np.repeat(np.arange(num_parts, dtype=np.int32), sizes)
    return parts


def _mix(z: np.ndarray) -> np.ndarray:
    """The output function of splitmix64 (Steele, Lea, Flood 2014): a bijection, so no two nodes tie."""
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = z ^ (z >> np.uint64(31))
    return mixed
