"""Decoders of knowledge graphs: each relation has learned numbers between the embeddings of its ends.

A relation is an edge type, which has a decoder of its own; or one of ``num_relations`` kinds of edges of one type, whose numbers
are rows of one decoder. Scores of these take ``relation``: the kind of each pair, int64 of the pairs' shape or an int."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from glt_lightning.base import OptionError

Relation = Tensor | int | None


class _Related(nn.Module):
    """The base of the decoders. num_relations: None: the decoder is of one relation."""

    def __init__(self, num_relations: int | None) -> None:
        super().__init__()
        self.num_relations = num_relations

    def _table(self, width: int, low: float, high: float) -> nn.Parameter:
        shape = (width,) if self.num_relations is None else (self.num_relations, width)
        return nn.Parameter(torch.empty(shape).uniform_(low, high))

    def _of(self, table: Tensor, relation: Relation) -> Tensor:
        """Returns the numbers [..., D] of the relation of each pair."""
        assert (relation is None) == (self.num_relations is None)
        return table if relation is None else table[relation]


class DistMult(_Related):
    """The inner product of both embeddings and a vector of the relation (Yang et al., 2015), alike in both directions."""

    def __init__(self, width: int, num_relations: int | None = None) -> None:
        super().__init__(num_relations)
        # About 0: for numbers about 1, an inner product, compositions of relations are not found
        self.relation = self._table(width, -0.5, 0.5)

    def transformed(self, source: Tensor, relation: Relation = None) -> Tensor:
        """Returns [..., D]: rows whose inner products with destinations are the scores."""
        return source * self._of(self.relation, relation)

    def forward(self, source: Tensor, destination: Tensor, relation: Relation = None) -> Tensor:
        """Returns scores [...] of embeddings [..., D] and [..., D], which broadcast."""
        return (self.transformed(source, relation) * destination).sum(dim=-1)

    def all_pairs(self, source: Tensor, destination: Tensor, relation: Relation = None) -> Tensor:
        """Returns scores [P, K] of each of P sources with each of K destinations. relation: of each source, or of all."""
        return self.transformed(source, relation) @ destination.T


class ComplEx(DistMult):
    """The real part of the product of both embeddings, whose halves are real and imaginary parts, the second conjugate, and a
    complex vector of the relation (Trouillon et al., 2016)."""

    def __init__(self, width: int, num_relations: int | None = None) -> None:
        super().__init__(_even("complex", width), num_relations)

    def transformed(self, source: Tensor, relation: Relation = None) -> Tensor:
        (re, im), (rel_re, rel_im) = (rows.chunk(2, dim=-1) for rows in (source, self._of(self.relation, relation)))
        return torch.cat([re * rel_re - im * rel_im, im * rel_re + re * rel_im], dim=-1)


class _Distance(_Related):
    """The base of decoders whose scores are a learned margin less a distance."""

    norm = 2.0

    def __init__(self, num_relations: int | None) -> None:
        super().__init__(num_relations)
        self.margin = nn.Parameter(torch.tensor(1.0))

    def moved(self, source: Tensor, relation: Relation) -> Tensor:
        """Returns [..., D]: where destinations should be."""
        raise NotImplementedError

    def placed(self, destination: Tensor) -> Tensor:
        """Returns [..., D]: where destinations are."""
        return destination

    def forward(self, source: Tensor, destination: Tensor, relation: Relation = None) -> Tensor:
        """Returns scores [...] of embeddings [..., D] and [..., D], which broadcast."""
        apart = self.moved(source, relation) - self.placed(destination)
        return self.margin - torch.linalg.vector_norm(apart, ord=self.norm, dim=-1)

    def all_pairs(self, source: Tensor, destination: Tensor, relation: Relation = None) -> Tensor:
        """Returns scores [P, K] of each of P sources with each of K destinations. relation: of each source, or of all."""
        return self.margin - torch.cdist(self.moved(source, relation), self.placed(destination), p=self.norm)


class TransE(_Distance):
    """The distance (L1) between the source, moved by a vector of the relation, and the destination, both of length one (Bordes et
    al., 2013). Relations begin with that length, too: beside longer ones no difference of nodes changes a sign, and
    relations have no gradient."""

    norm = 1.0

    def __init__(self, width: int, num_relations: int | None = None) -> None:
        super().__init__(num_relations)
        self.relation = self._table(width, -2 / width, 2 / width)  # of length 1 in the mean

    def moved(self, source: Tensor, relation: Relation) -> Tensor:
        return self.placed(source) + self._of(self.relation, relation)

    def placed(self, destination: Tensor) -> Tensor:
        return functional.normalize(destination, p=self.norm, dim=-1)


class RotatE(_Distance):
    """The distance between the source, rotated by angles of the relation, and the destination; the halves of embeddings are real
    and imaginary parts (Sun et al., 2019)."""

    def __init__(self, width: int, num_relations: int | None = None) -> None:
        super().__init__(num_relations)
        self.angle = self._table(_even("rotate", width) // 2, -math.pi, math.pi)

    def moved(self, source: Tensor, relation: Relation) -> Tensor:
        (re, im), angle = source.chunk(2, dim=-1), self._of(self.angle, relation)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([re * cos - im * sin, re * sin + im * cos], dim=-1)


DECODERS: dict[str, Any] = {"distmult": DistMult, "complex": ComplEx, "transe": TransE, "rotate": RotatE}


def _even(name: str, width: int) -> int:
    if width % 2:
        raise OptionError(f"decoder: {name}: hidden_channels: expected an even number, got {width}.")
    return width
