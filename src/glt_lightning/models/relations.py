"""Decoders of knowledge graphs: each edge type, a relation, has learned numbers between the embeddings of its ends."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from glt_lightning.base import OptionError


class DistMult(nn.Module):
    """The inner product of both embeddings and a vector of the relation (Yang et al., 2015), alike in both directions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.relation = nn.Parameter(torch.empty(width))
        nn.init.uniform_(self.relation, 0.5, 1.5)  # about an inner product

    def transformed(self, source: Tensor) -> Tensor:
        """Returns [..., D]: rows whose inner products with destinations are the scores."""
        return source * self.relation

    def forward(self, source: Tensor, destination: Tensor) -> Tensor:
        """Returns scores [...] of embeddings [..., D] and [..., D], which broadcast."""
        return (self.transformed(source) * destination).sum(dim=-1)

    def all_pairs(self, source: Tensor, destination: Tensor) -> Tensor:
        """Returns scores [P, K] of each of P sources with each of K destinations."""
        return self.transformed(source) @ destination.T


class ComplEx(DistMult):
    """The real part of the product of both embeddings, whose halves are real and imaginary parts, the second conjugate, and a
    complex vector of the relation (Trouillon et al., 2016)."""

    def __init__(self, width: int) -> None:
        super().__init__(_even("complex", width))
        with torch.no_grad():
            self.relation[width // 2 :].uniform_(-0.5, 0.5)

    def transformed(self, source: Tensor) -> Tensor:
        (re, im), (rel_re, rel_im) = source.chunk(2, dim=-1), self.relation.chunk(2)
        return torch.cat([re * rel_re - im * rel_im, im * rel_re + re * rel_im], dim=-1)


class _Distance(nn.Module):
    """The base of decoders whose scores are a learned margin less a distance."""

    norm = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.margin = nn.Parameter(torch.tensor(1.0))

    def moved(self, source: Tensor) -> Tensor:
        """Returns [..., D]: where destinations should be."""
        raise NotImplementedError

    def placed(self, destination: Tensor) -> Tensor:
        """Returns [..., D]: where destinations are."""
        return destination

    def forward(self, source: Tensor, destination: Tensor) -> Tensor:
        """Returns scores [...] of embeddings [..., D] and [..., D], which broadcast."""
        apart = self.moved(source) - self.placed(destination)
        return self.margin - torch.linalg.vector_norm(apart, ord=self.norm, dim=-1)

    def all_pairs(self, source: Tensor, destination: Tensor) -> Tensor:
        """Returns scores [P, K] of each of P sources with each of K destinations."""
        return self.margin - torch.cdist(self.moved(source), self.placed(destination), p=self.norm)


class TransE(_Distance):
    """The distance (L1) between the source, moved by a vector of the relation, and the destination, both of length one (Bordes et
    al., 2013)."""

    norm = 1.0

    def __init__(self, width: int) -> None:
        super().__init__()
        self.relation = nn.Parameter(torch.empty(width))
        nn.init.uniform_(self.relation, -1 / math.sqrt(width), 1 / math.sqrt(width))

    def moved(self, source: Tensor) -> Tensor:
        return self.placed(source) + self.relation

    def placed(self, destination: Tensor) -> Tensor:
        return functional.normalize(destination, p=self.norm, dim=-1)


class RotatE(_Distance):
    """The distance between the source, rotated by angles of the relation, and the destination; the halves of embeddings are real
    and imaginary parts (Sun et al., 2019)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.angle = nn.Parameter(torch.empty(_even("rotate", width) // 2))
        nn.init.uniform_(self.angle, -math.pi, math.pi)

    def moved(self, source: Tensor) -> Tensor:
        (re, im), cos, sin = source.chunk(2, dim=-1), self.angle.cos(), self.angle.sin()
        return torch.cat([re * cos - im * sin, re * sin + im * cos], dim=-1)


DECODERS: dict[str, Any] = {"distmult": DistMult, "complex": ComplEx, "transe": TransE, "rotate": RotatE}


def _even(name: str, width: int) -> int:
    if width % 2:
        raise OptionError(f"decoder: {name}: hidden_channels: expected an even number, got {width}.")
    return width
