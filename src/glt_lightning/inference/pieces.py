"""Layers of a node with many edges, computed from some of its edges at a time: sums and softmaxes over pieces of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv

from glt_lightning.loader import aggregates_of, run_aggregated


@dataclass(frozen=True)
class Sources:
    """The sources of edges into a node. node_type: the empty text in a homogeneous graph.  at: int64 [E], positions among the
    nodes of the batch."""

    node_type: str
    at: Tensor


class HubPieces(Protocol):
    """The computation of a layer for one node. `add` is called with all its edges, a piece at a time, then `end`."""

    @property
    def sources(self) -> Sequence[Sources]:
        """The sources of the node's edges, one entry for each edge type."""

    def add(self, number: int, rows: Tensor, piece: slice) -> None:
        """Adds edges. rows: [n, D], the rows of the sources ``piece`` of entry ``number`` of `sources`."""

    def end(self) -> Tensor:
        """Returns [1, D], the output of the node."""


class HubTypes:
    """Convolutions over the edges of some types into one node, some edges at a time.

    gathering: accumulates edges, one for each of ``sources``.  end: combines what they have accumulated to the output [1, D].
    values: [E], what is read of the edges, or None, for each of ``sources``.
    """

    def __init__(
        self,
        sources: Sequence[Sources],
        gathering: Sequence[Any],
        end: Callable[[], Tensor],
        values: Sequence[Tensor | None],
    ) -> None:
        self.sources, self._gathering, self.end, self._values = sources, gathering, end, values

    def add(self, number: int, rows: Tensor, piece: slice) -> None:
        values = self._values[number]
        self._gathering[number].add(rows, None if values is None else values[piece])


class RunningSum:
    """The sum of rows, or their mean: 0 without rows."""

    def __init__(self, like: Tensor, *, mean: bool) -> None:
        self._mean, self._count, self._sum = mean, 0, torch.zeros_like(like)

    def add(self, rows: Tensor, weights: Tensor | None = None) -> None:
        """Adds rows [n, ...], times their weights [n]."""
        if weights is not None:
            rows = rows * weights[:, None].to(rows.dtype)
        self._sum, self._count = self._sum + rows.sum(0), self._count + len(rows)

    def value(self) -> Tensor:
        """Returns the sum or mean [...] of all rows."""
        return self._sum / max(1, self._count) if self._mean else self._sum


class RunningSoftmax:
    """The sum of rows, weighted by the softmax of the scores of all rows: 0 without rows.

    The running sum is scaled down when a larger score arrives (Milakov and Gimelshein, Online normalizer calculation for
    softmax, 2018).

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
        """Adds rows [n, H, C] with scores [n, H]."""
        if not len(scores):
            return
        most = torch.maximum(self._most, scores.amax(0))
        before, weights = (self._most - most).exp(), (scores - most).exp()
        self._total = self._total * before + weights.sum(0)
        self._sum = self._sum * before[:, None] + torch.einsum("nh,nhc->hc", weights, rows)
        self._most = most

    def value(self) -> Tensor:
        """Returns the weighted sum [H, C]."""
        return self._sum / (self._total[:, None] + 1e-16)  # as PyG's softmax


def gathers(conv: Any) -> bool:
    """Tells whether `gathering` supports a convolution."""
    if getattr(conv, "flow", None) != "source_to_target" or getattr(conv, "edge_dim", None) is not None:
        return False
    if type(conv) in (GATConv, GATv2Conv):
        return True
    if hasattr(conv, "gathering"):
        return bool(getattr(conv, "gathers", True))
    return bool(aggregates_of(conv)) or (type(conv) is GCNConv and not conv.normalize)


def gathering(conv: Any, own: Tensor) -> Any:
    """Makes an accumulator for one node of a convolution: ``add`` takes rows of the sources of some of its edges, ``end`` returns
    the output [1, D]. own: [1, D], the row of the node.

    The caller adds self-loops to the edges or leaves them out; the accumulator does neither. A convolution of another class
    provides one by a method ``gathering(own)``.
    """
    if type(conv) is GATConv:
        return _GAT(conv, own)
    if type(conv) is GATv2Conv:
        return _GATv2(conv, own)
    if type(conv) is GCNConv:
        return _Weighted(conv, own)
    own_way = getattr(conv, "gathering", None)
    return _Aggregated(conv, own) if own_way is None else own_way(own)


class _Aggregated:
    """Accumulates the sum or the mean of GraphSAGE and GIN."""

    def __init__(self, conv: Any, own: Tensor) -> None:
        self._conv, self._own = conv, own
        self._sum = RunningSum(own[0], mean=aggregates_of(conv) == ("mean",))

    def add(self, rows: Tensor, values: Tensor | None) -> None:
        self._sum.add(rows)

    def end(self) -> Tensor:
        return run_aggregated(self._conv, self._own, self._sum.value()[None])


class _Weighted:
    """Accumulates the weighted sum of GCN; the values are its factors, 1 without values."""

    def __init__(self, conv: Any, own: Tensor) -> None:
        self._conv, self._sum = conv, RunningSum(own[0], mean=False)

    def add(self, rows: Tensor, values: Tensor | None) -> None:
        self._sum.add(rows, values)

    def end(self) -> Tensor:
        out: Tensor = self._conv.lin(self._sum.value()[None])
        return out if self._conv.bias is None else out + self._conv.bias


class _Attention:
    """The base of the accumulators of GAT and GATv2."""

    def __init__(self, conv: Any, own: Tensor) -> None:
        self._conv, self._own = conv, own
        self._sum = RunningSoftmax(conv.heads, own.new_empty(conv.out_channels))

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.view(-1, self._conv.heads, self._conv.out_channels)

    def end(self) -> Tensor:
        conv, out = self._conv, self._sum.value()
        out = (out.flatten() if conv.concat else out.mean(0))[None]
        if conv.res is not None:
            out = out + conv.res(self._own)
        return out if conv.bias is None else out + conv.bias


class _GAT(_Attention):
    def __init__(self, conv: Any, own: Tensor) -> None:
        super().__init__(conv, own)
        self._source, target = (conv.lin, conv.lin) if conv.lin is not None else (conv.lin_src, conv.lin_dst)
        self._of_node = (self._projected(target, own) * conv.att_dst).sum(-1)

    def _projected(self, layer: Any, rows: Tensor) -> Tensor:
        return self._heads(functional.linear(rows, layer.weight))

    def add(self, rows: Tensor, values: Tensor | None) -> None:
        found = self._projected(self._source, rows)
        scores = (found * self._conv.att_src).sum(-1) + self._of_node
        self._sum.add(functional.leaky_relu(scores, self._conv.negative_slope), found)


class _GATv2(_Attention):
    def __init__(self, conv: Any, own: Tensor) -> None:
        super().__init__(conv, own)
        self._of_node = self._heads(conv.lin_r(own))

    def add(self, rows: Tensor, values: Tensor | None) -> None:
        found = self._heads(self._conv.lin_l(rows))
        scores = functional.leaky_relu(found + self._of_node, self._conv.negative_slope)
        self._sum.add((scores * self._conv.att).sum(-1), found)
