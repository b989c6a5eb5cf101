"""Convolutions for a node with many edges: sums and softmaxes over pieces of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv

from glt_lightning.inference.pieces import RunningSoftmax, RunningSum, Sources
from glt_lightning.loader import aggregates_of, run_aggregated


class HubConv:
    """A convolution over the edges into one node. own: [1, D], the node's row.  after: what follows the convolution.

    at: int64 [E], positions of the sources of its edges.  values: [E], what the layer reads of each edge.
    """

    def __init__(
        self, gathering: Any, at: Tensor, values: Tensor | None = None, after: Callable[[Tensor], Tensor] = lambda x: x
    ) -> None:
        self.sources = [Sources("", at)]
        self._gathering, self._values, self._after = gathering, values, after

    def add(self, number: int, rows: Tensor, piece: slice) -> None:
        self._gathering.add(rows, None if self._values is None else self._values[piece])

    def end(self) -> Tensor:
        return self._after(self._gathering.end())


class HubTypes:
    """One convolution for each edge type into a node, whose outputs are summed; or what they bring together, as one output."""

    def __init__(self, sources: Sequence[Sources], gathering: Sequence[Any], end: Callable[[], Tensor]) -> None:
        self.sources, self._gathering, self.end = sources, gathering, end

    def add(self, number: int, rows: Tensor, piece: slice) -> None:
        self._gathering[number].add(rows, None)


def gathers(conv: Any) -> bool:
    """Whether there is a `gathering` for a convolution."""
    if getattr(conv, "flow", None) != "source_to_target" or getattr(conv, "edge_dim", None) is not None:
        return False
    if type(conv) in (GATConv, GATv2Conv) or hasattr(conv, "gathering"):
        return True
    return bool(aggregates_of(conv)) or (type(conv) is GCNConv and not conv.normalize)


def gathering(conv: Any, own: Tensor) -> Any:
    """What `add`s the rows of the sources of a node's edges and at its `end` has the output [1, D] of a convolution. own: [1, D],
    the row of the node. The edges are all that the layer reads: no loop is added or left out. A convolution of another class
    has a method ``gathering(own)`` of its own."""
    if type(conv) is GATConv:
        return _GAT(conv, own)
    if type(conv) is GATv2Conv:
        return _GATv2(conv, own)
    if type(conv) is GCNConv:
        return _Weighted(conv, own)
    own_way = getattr(conv, "gathering", None)
    return _Aggregated(conv, own) if own_way is None else own_way(own)


class _Aggregated:
    """GraphSAGE and GIN."""

    def __init__(self, conv: Any, own: Tensor) -> None:
        self._conv, self._own = conv, own
        self._sum = RunningSum(own[0], mean=aggregates_of(conv) == ("mean",))

    def add(self, rows: Tensor, values: Tensor | None) -> None:
        self._sum.add(rows)

    def end(self) -> Tensor:
        return run_aggregated(self._conv, self._own, self._sum.value()[None])


class _Weighted:
    """GCN, with its factors as values; without values each is 1."""

    def __init__(self, conv: Any, own: Tensor) -> None:
        self._conv, self._sum = conv, RunningSum(own[0], mean=False)

    def add(self, rows: Tensor, values: Tensor | None) -> None:
        self._sum.add(rows if values is None else rows * values[:, None].to(rows.dtype))

    def end(self) -> Tensor:
        out: Tensor = self._conv.lin(self._sum.value()[None])
        return out if self._conv.bias is None else out + self._conv.bias


class _Attention:
    """What GAT and GATv2 share."""

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
