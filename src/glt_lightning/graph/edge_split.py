"""The edges of a split of a link task, as a partition stores them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields

import numpy as np


@dataclass(frozen=True, kw_only=True)
class EdgeSplit:
    """Edges to predict, of one edge type and one split. All ids are the user's.

    Attributes:
        edge: int64 [2, S], sources and destinations; positions in it are the ``input_id`` of batches.
        label: Numbers [S, ...], or None.
        time: int64 [S], or None.
        negatives: int64 [S, K], destinations that make no edge with the source of each edge; -1: draw one. None: not given.
        negative_edges: int64 [2, M], pairs without an edge. None: not given.

    Example:
        >>> split = EdgeSplit(edge=np.array([[0, 1], [1, 2]]))
        >>> len(split), sorted(split.arrays)
        (2, ['edge'])
    """

    edge: np.ndarray
    label: np.ndarray | None = None
    time: np.ndarray | None = None
    negatives: np.ndarray | None = None
    negative_edges: np.ndarray | None = None

    def __len__(self) -> int:
        return int(self.edge.shape[1])

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Those that are given, by name."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: array for name, array in found.items() if array is not None}

    @property
    def digest(self) -> str:
        """The same for every partition of the graph."""
        digest = hashlib.blake2b(digest_size=16)
        for name, array in self.arrays.items():
            digest.update(f"{name}:{array.dtype.str}:{array.shape}:".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


EDGE_SPLIT_ARRAYS = tuple(each.name for each in fields(EdgeSplit))

# Edge attribute of a graph that also stores the edges of validation: which edges carry messages in training.
IN_TRAINING = "in_training"
