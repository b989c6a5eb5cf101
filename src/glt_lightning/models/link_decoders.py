"""From the embeddings of two nodes to the score of an edge between them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from glt_lightning.base import one_of

_VALUES = 1 << 24  # that all pairs of some sources and destinations take at once


class DotProduct(nn.Module):
    """The inner product of the two embeddings."""

    def forward(self, source: Tensor, destination: Tensor) -> Tensor:
        """[..., D] and [..., D], which broadcast.  Returns [...]."""
        return (source * destination).sum(dim=-1)

    def all_pairs(self, source: Tensor, destination: Tensor) -> Tensor:
        """Scores [P, K] of each of P sources with each of K destinations."""
        return source @ destination.T


class Bilinear(DotProduct):
    """The product with a learned matrix between: the direction of an edge counts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, width))
        nn.init.uniform_(self.weight, -1 / math.sqrt(width), 1 / math.sqrt(width))

    def forward(self, source: Tensor, destination: Tensor) -> Tensor:
        return super().forward(source @ self.weight, destination)

    def all_pairs(self, source: Tensor, destination: Tensor) -> Tensor:
        return super().all_pairs(source @ self.weight, destination)


class PairMLP(nn.Module):
    """Two layers over the embeddings and their elementwise product: the direction of an edge counts."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3 * width, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 1))

    def forward(self, source: Tensor, destination: Tensor) -> Tensor:
        source, destination = torch.broadcast_tensors(source, destination)
        return self.layers(torch.cat([source, destination, source * destination], dim=-1)).squeeze(-1)

    def all_pairs(self, source: Tensor, destination: Tensor) -> Tensor:
        at_once = max(1, _VALUES // max(1, 3 * source.size(1) * len(destination)))
        return torch.cat([self(rows[:, None], destination[None]) for rows in source.split(at_once)])


def make_decoder(name: str, width: int, dropout: float) -> Any:
    """Raises `OptionError` for an unknown name."""
    one_of("decoder", name, ("dot", "bilinear", "mlp"))
    if name == "mlp":
        return PairMLP(width, dropout)
    return DotProduct() if name == "dot" else Bilinear(width)
