"""Rows times a weight matrix that are not made before something needs them.

Of the projected rows GAT needs a weighted sum for each destination, and their products with a vector. Both are as well made of
the rows as they were: the sum is projected afterwards, for the destinations alone, and the vector is projected instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.nn import Linear

from glt_lightning.loader.aggregation import aggregate, has_kernels
from glt_lightning.loader.gathered import Deferred, Gathered


class ProjectedLinear(Linear):  # type: ignore[misc]  # PyG has no types
    """PyG's `Linear`, without a bias, as a `Projection`."""

    def forward(self, x: Any) -> Any:
        if torch.compiler.is_compiling() or self.bias is not None or self._forward_hooks:
            return super().forward(x)
        if type(x) is not Tensor or x.dim() != 2 or not has_kernels(x):
            return super().forward(x)
        return Projection(x, self.weight, (self.weight.size(0),))


class Projection(Deferred):
    """Stands for x [N, D] times weight [W, D], each row as ``row``: (W,) or (heads, W / heads). Whatever is done to it but the
    products of GAT makes them first, as a tensor."""

    def __init__(self, x: Tensor, weight: Tensor, row: tuple[int, ...]) -> None:
        self.x, self.weight, self.row = x, weight, row
        self._rows: Tensor | None = None

    def rows(self) -> Tensor:
        if self._rows is None:
            self._rows = functional.linear(self.x, self.weight).view(-1, *self.row)
        return self._rows

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.x), *self.row))

    def view(self, *shape: Any) -> Any:
        if len(shape) == 3 and shape[0] == -1 and shape[1] * shape[2] == self.weight.size(0):
            return Projection(self.x, self.weight, shape[1:])
        return self.rows().view(*shape)

    def __mul__(self, other: Any) -> Any:
        if len(self.row) == 2 and isinstance(other, Tensor) and other.shape == (1, *self.row):
            return _Products(self, other)
        return super().__mul__(other)

    def is_narrow(self) -> bool:
        """Whether sums over edges read less of x than of the projected rows. With several heads x is read for each."""
        heads, width = self.row
        return heads == 1 or self.x.size(1) <= width


class _Products(Deferred):
    """Projected rows [N, H, C] times a vector [1, H, C], of which GAT wants the sums [N, H]."""

    def __init__(self, factors: Projection, vector: Tensor) -> None:
        self.factors, self.vector = factors, vector

    @property
    def shape(self) -> torch.Size:
        return self.factors.shape

    def rows(self) -> Tensor:
        return self.factors.rows() * self.vector

    def sum(self, dim: int) -> Tensor:
        if dim != -1:
            return self.rows().sum(dim)
        heads, width = self.factors.row
        weight = self.factors.weight.view(heads, width, -1)
        return functional.linear(self.factors.x, (weight * self.vector.view(heads, width, 1)).sum(1))


class GatheredProjection(Gathered):
    """`Gathered` of a `Projection` [S, H, C]."""

    def __init__(self, rows: Projection, indptr: Tensor, src: Tensor, weights: Tensor | None = None) -> None:
        super().__init__(rows.x, indptr, src, weights)
        self.projection = rows

    def weighted(self, weights: Tensor) -> Gathered:
        return GatheredProjection(self.projection, self.indptr, self.src, weights)

    def aggregate(self, kind: str) -> Tensor:
        if kind not in ("sum", "mean"):
            return Gathered(self.projection.rows(), self.indptr, self.src).aggregate(kind)
        each = [None] if self.weights is None else self.weights.unbind(1)
        heads, width = self.projection.row
        summed = [aggregate(self.x, self.indptr, self.src, kind=kind, weights=w) for w in each]
        parts = self.projection.weight.view(heads, width, -1).unbind(0)
        rows = [functional.linear(summed[h % len(summed)], part) for h, part in enumerate(parts)]
        return torch.stack(rows, dim=1)

    def rows(self) -> Tensor:
        if self._rows is None:
            self._rows = Gathered(self.projection.rows(), self.indptr, self.src, self.weights).rows()
        return self._rows

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.src.size(0), *self.projection.row))
