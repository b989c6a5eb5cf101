"""Layers of a node with many edges, computed from some of its edges at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sources:
    """Where edges into a node begin. node_type: in a homogeneous graph the empty text.  at: int64 [E], positions among the nodes
    of the batch."""

    node_type: str
    at: Tensor


class HubPieces(Protocol):
    """A layer of one node. `add` gets all its edges, a piece at a time, then `end` is called."""

    @property
    def sources(self) -> Sequence[Sources]:
        """Of its edges, one entry for each edge type."""

    def add(self, number: int, rows: Tensor, piece: slice) -> None:
        """rows: [n, D], of the sources ``piece`` of entry ``number``."""

    def end(self) -> Tensor:
        """[1, D], the output of the node."""


class RunningSum:
    """The sum of rows, or their mean: 0 without rows."""

    def __init__(self, like: Tensor, *, mean: bool) -> None:
        self._mean, self._count, self._sum = mean, 0, torch.zeros_like(like)

    def add(self, rows: Tensor) -> None:
        """rows: [n, ...]."""
        self._sum, self._count = self._sum + rows.sum(0), self._count + len(rows)

    def value(self) -> Tensor:
        """[...]."""
        return self._sum / max(1, self._count) if self._mean else self._sum


class RunningSoftmax:
    """The sum of rows, weighted by the softmax of their scores, which all rows together have: 0 without rows.

    What was added is scaled down when a larger score comes (Milakov and Gimelshein, Online normalizer calculation for softmax,
    2018).

    >>> found = RunningSoftmax(heads=1, like=torch.zeros(2))
    >>> for score, row in ((1000.0, [1.0, 0.0]), (1000.0, [0.0, 1.0])):
    ...     found.add(torch.tensor([[score]]), torch.tensor([[row]]))
    >>> found.value()
    tensor([[0.5000, 0.5000]])
    """

    def __init__(self, heads: int, like: Tensor) -> None:
        """like: [C], a row of a head."""
        self._most = like.new_full((heads,), float("-inf"))
        self._total = like.new_zeros(heads)
        self._sum = like.new_zeros(heads, len(like))

    def add(self, scores: Tensor, rows: Tensor) -> None:
        """scores: [n, H].  rows: [n, H, C]."""
        if not len(scores):
            return
        most = torch.maximum(self._most, scores.amax(0))
        before, weights = (self._most - most).exp(), (scores - most).exp()
        self._total = self._total * before + weights.sum(0)
        self._sum = self._sum * before[:, None] + torch.einsum("nh,nhc->hc", weights, rows)
        self._most = most

    def value(self) -> Tensor:
        """[H, C]."""
        return self._sum / (self._total[:, None] + 1e-16)  # as PyG's softmax
