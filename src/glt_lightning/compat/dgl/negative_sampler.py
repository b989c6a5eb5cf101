"""Negatives of a batch of edges: pairs of nodes as examples of pairs that are no edges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import EdgeType, at_least
from glt_lightning.compat.dgl.exclude import edges_by_type
from glt_lightning.compat.dgl.graph import DistGraph

_ROUNDS = 8  # at a density of 0.5, one pair in 256 is missing after them


class DrawnPairs:
    """What the samplers share. Called with the graph and rows of edges, or rows by edge type, it gives (rows of sources, rows of
    destinations), or these by edge type. Draws follow ``dgl.seed``."""

    def __init__(self, k: int) -> None:
        at_least(f"{type(self).__name__}: k", k, 1)
        self.k = k

    def __call__(self, g: DistGraph, eids: Any) -> Any:
        found = {}
        for edge_type, rows in edges_by_type(g, eids).items():
            random = np.random.Generator(np.random.Philox(key=g.next_key()))
            found[edge_type] = self._drawn(g, rows, edge_type, random)
        return found if isinstance(eids, Mapping) else next(iter(found.values()))

    def _drawn(
        self, g: DistGraph, eids: Tensor, edge_type: EdgeType, random: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class PerSourceUniform(DrawnPairs):
    """For each edge, k destinations for its source, each of all nodes of the type alike; they may be edges by chance, as in DGL.
    Our own loaders of edges draw strict ones (``neg_sampling``).

    Args:
        k: Negatives for each edge.
    """

    def _drawn(
        self, g: DistGraph, eids: Tensor, edge_type: EdgeType, random: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        src = g.find_edges(eids, edge_type)[0].repeat_interleave(self.k)
        return src, torch.from_numpy(random.integers(0, g.num_nodes(edge_type[2]), len(src)))


Uniform = PerSourceUniform


class GlobalUniform(DrawnPairs):
    """For each edge, at most k pairs of nodes that no edge joins.

    Args:
        k: Negatives for each edge.
        exclude_self_loops: No pair is a loop.
        replace: Whether a pair may come twice in a batch.
    """

    def __init__(self, k: int, exclude_self_loops: bool = True, replace: bool = False) -> None:
        super().__init__(k)
        self.exclude_self_loops, self.replace = exclude_self_loops, replace

    def _drawn(
        self, g: DistGraph, eids: Tensor, edge_type: EdgeType, random: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        wanted, found = self.k * len(eids), np.empty((0, 2), np.int64)
        sizes = g.num_nodes(edge_type[0]), g.num_nodes(edge_type[2])
        space = g.space(edge_type, "edge")
        for _ in range(_ROUNDS):
            if len(found) == wanted:
                break
            pairs = np.stack([random.integers(0, size, wanted) for size in sizes], axis=1)
            if self.exclude_self_loops and edge_type[0] == edge_type[2]:
                pairs = pairs[pairs[:, 0] != pairs[:, 1]]
            pairs = pairs[~g.reader.has_edges(space, pairs[:, 0], pairs[:, 1])]
            found = np.concatenate([found, pairs])
            if not self.replace:
                _, first = np.unique(found, axis=0, return_index=True)
                found = found[np.sort(first)]
            found = found[:wanted]
        src, dst = torch.from_numpy(found.copy()).unbind(1)
        return src, dst


__all__ = ["GlobalUniform", "PerSourceUniform", "Uniform"]
