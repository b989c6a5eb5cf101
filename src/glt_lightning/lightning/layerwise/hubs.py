"""The layers of ready modules and of PyG's models, for a node with many edges: sums and softmaxes over pieces of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, HGTConv

from glt_lightning.inference.pieces import HubPieces, RunningSoftmax, RunningSum, Sources
from glt_lightning.lightning.models.first_layer import aggregates_of, run_aggregated
from glt_lightning.lightning.models.hgt import HGTLayer
from glt_lightning.lightning.models.rgcn import EdgeKindConv, RGCNLayer
from glt_lightning.types import EdgeType


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
    if type(conv) in (GATConv, GATv2Conv, EdgeKindConv):
        return True
    return bool(aggregates_of(conv)) or (type(conv) is GCNConv and not conv.normalize)


def gathering(conv: Any, own: Tensor) -> Any:
    """What `add`s the rows of the sources of a node's edges and at its `end` has the output [1, D] of a convolution. own: [1, D],
    the row of the node. The edges are all that the layer reads: no loop is added or left out."""
    if type(conv) is GATConv:
        return _GAT(conv, own)
    if type(conv) is GATv2Conv:
        return _GATv2(conv, own)
    if type(conv) is GCNConv:
        return _Weighted(conv, own)
    return _Kinds(conv, own) if type(conv) is EdgeKindConv else _Aggregated(conv, own)


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


class _Kinds:
    """RGCN over kinds of edges, which are the values."""

    def __init__(self, conv: EdgeKindConv, own: Tensor) -> None:
        self._conv, self._own = conv, own
        self._sums = [RunningSum(own[0], mean=conv.aggr == "mean") for _ in range(conv.num_relations)]

    def add(self, rows: Tensor, values: Tensor | None) -> None:
        assert values is not None
        for kind in values.unique().tolist():
            self._sums[kind].add(rows[values == kind])

    def end(self) -> Tensor:
        found = torch.stack([each.value() for each in self._sums])[None]
        return self._conv.with_root(self._conv.transformed(found, slice(None)), self._own)


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


# Layers over edge types


def types_gather(layer: Any, node_type: str) -> bool:
    """Whether there is `typed_pieces` for a layer of `HeterogeneousEncoder` and the nodes of a type."""
    if isinstance(layer, (HGTLayer, RGCNLayer)):
        return True
    convs = [conv for e, conv in zip(layer.edge_types, layer.convs, strict=True) if e[2] == node_type]
    return all(gathers(conv) and not getattr(conv, "add_self_loops", False) for conv in convs)


def typed_pieces(layer: Any, node_type: str, own: Tensor, edges: Mapping[EdgeType, Tensor]) -> HubPieces:
    """The layer of one node, with its ReLU. own: [1, D], its row.  edges: int64 [2, E] into it, by edge type."""
    numbers = [number for number, e in enumerate(layer.edge_types) if e[2] == node_type]
    sources = [Sources(layer.edge_types[n][0], edges[layer.edge_types[n]][0]) for n in numbers]
    if isinstance(layer, HGTLayer):
        attention = _HGTNode(layer, node_type, own)
        return HubTypes(sources, [_HGTEdges(attention, layer.edge_types[n]) for n in numbers], attention.end)
    if isinstance(layer, RGCNLayer):
        sums = [RunningSum(own[0], mean=layer.conv.aggr == "mean") for _ in numbers]

        def end() -> Tensor:
            found = [
                layer.conv.transformed(each.value()[None, None], slice(n, n + 1))
                for n, each in zip(numbers, sums, strict=True)
            ]
            return layer.conv.with_root(torch.stack(found).sum(0), own).relu()

        return HubTypes(sources, [_Plain(each) for each in sums], end)
    each = [gathering(layer.convs[n], own) for n in numbers]
    return HubTypes(sources, each, lambda: torch.stack([one.end() for one in each]).sum(0).relu())


class _Plain:
    def __init__(self, found: RunningSum) -> None:
        self._found = found

    def add(self, rows: Tensor, values: Tensor | None) -> None:
        self._found.add(rows)


class _HGTNode:
    """The attention of a node over the edges of all types into it."""

    def __init__(self, layer: HGTLayer, node_type: str, own: Tensor) -> None:
        self.layer, self._type, self._own = layer, node_type, own
        conv: HGTConv = layer.conv
        self._width = conv.out_channels // conv.heads
        self._query = self.heads(layer.queries(node_type, own))
        self._sum = RunningSoftmax(conv.heads, own.new_empty(self._width))

    def heads(self, rows: Tensor) -> Tensor:
        return rows.view(-1, self.layer.conv.heads, self._width)

    def add(self, keys: Tensor, values: Tensor) -> None:
        scores = (self._query * self.heads(keys)).sum(-1) / math.sqrt(self._width)
        self._sum.add(scores, self.heads(values))

    def end(self) -> Tensor:
        return self.layer.mixed(self._type, self._sum.value().flatten()[None], self._own)


class _HGTEdges:
    def __init__(self, node: _HGTNode, edge_type: EdgeType) -> None:
        self._node, self._edge_type = node, edge_type

    def add(self, rows: Tensor, values: Tensor | None) -> None:
        self._node.add(*self._node.layer.keys_and_values(self._edge_type, rows))
