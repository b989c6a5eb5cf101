"""Convolutions of PyG, made by name, and those that run in another way here: `HGTConv` and `RGCNConv`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import HGTConv, MessagePassing, RGCNConv, conv as pyg_convs

from glt_lightning.base import EdgeType, NodeType, OptionError
from glt_lightning.inference import RunningSoftmax, RunningSum
from glt_lightning.loader import fuse_layers, plain
from glt_lightning.models.edges import EdgeInput, WeightedSAGE, options_for_edges

NO_VALUES: Mapping[EdgeType, Tensor] = MappingProxyType({})


def conv_names() -> list[str]:
    """Names of the convolutions of PyG that `make_conv` may make."""
    return [name for name in pyg_convs.__all__ if name.endswith("Conv")]


def make_conv(
    name: str, width: int, options: Mapping[str, Any], *, two_types: bool, edges: EdgeInput | None = None
) -> nn.Module:
    """Makes a convolution of PyG, [N, width] -> [N, width]; with ``two_types`` from nodes [N_src, width] to nodes [N_dst, width].

    edges: what it reads of edges; None: nothing.
    Raises `OptionError` for one that needs more than that, x and edge_index, which is detected by running it once.
    """
    refuse_cached(name, options)
    kind = WeightedSAGE if name == "SAGEConv" and edges is not None else getattr(pyg_convs, name)
    known = inspect.signature(getattr(pyg_convs, name).__init__).parameters
    options = options_for_edges(name, kind, edges, width, options)
    if "heads" in known and "concat" in known:
        options.setdefault("concat", False)  # heads are averaged, so that the width stays
    if two_types and "add_self_loops" in known:
        options.setdefault("add_self_loops", False)
    reason = ""
    for width_in in ((width, width), width) if two_types else (width,):
        try:
            conv = _constructed(kind, name, width_in, width, options)
            _try(conv, width, two_types, edges)
            return conv
        except Exception as error:  # PyG does not document what its classes raise
            reason = (
                reason or f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            )
    what = "edges between two node types" if two_types else "x and edge_index"
    what += "" if edges is None else f", and {edges.name},"
    raise OptionError(
        f"encoder: {name} cannot be used here: with {what} alone, width {width} and encoder_kwargs {dict(options)} it raises "
        f"{reason[:200]}. Choose another encoder, or correct encoder_kwargs."
    )


def _constructed(kind: type, name: str, width_in: Any, width: int, options: Mapping[str, Any]) -> Any:
    if name == "GINEConv":  # whose network has the widths
        return kind(**options)
    return kind(width_in, **options) if name == "CGConv" else kind(width_in, width, **options)


def refuse_cached(name: str, options: Mapping[str, Any]) -> None:
    """Raises `OptionError` for ``cached``, with which PyG keeps the edges of a layer's first call for all later ones."""
    if options.get("cached"):
        raise OptionError(
            f"{name}: cached: expected false, got {options['cached']!r}: PyG would use the edges of the first batch for all "
            "batches. Remove it."
        )


def _try(conv: nn.Module, width: int, two_types: bool, edges: EdgeInput | None) -> None:
    edge_index = torch.tensor([[0, 1, 2], [1, 0, 1]])
    x: Any = (torch.zeros(3, width), torch.zeros(2, width)) if two_types else torch.zeros(3, width)
    values = () if edges is None else (edges.example(3),)
    with torch.no_grad():
        out = conv.eval()(x, edge_index, *values)
    conv.train()
    if not isinstance(out, Tensor) or out.shape != (2 if two_types else 3, width):
        raise ValueError(f"its output is {list(out.shape) if isinstance(out, Tensor) else type(out).__name__}")


def made(name: str, kind: type[MessagePassing], *arguments: Any, **options: Any) -> Any:
    """Constructs a convolution of PyG. Raises `OptionError` for arguments that it refuses."""
    try:
        return kind(*arguments, **options)
    except (TypeError, ValueError, AssertionError, ZeroDivisionError) as error:
        raise OptionError(f"encoder: {name} with encoder_kwargs {options}: {error or type(error).__name__}.") from None


# HGT over the edge types of a batch.


class HGTLayer(nn.Module):
    """PyG's `HGTConv` over some edge types: attention with matrices for each node type and edge type.

    Its messages and parameters are PyG's. PyG's ``forward`` is not called: it reads numbers of rows from tensors, at which
    `torch.compile` breaks, copies every row several times to multiply it with the matrix of its edge type, and computes all
    nodes, not only the destinations. Here each edge type's matrix is multiplied with that of the node type first.
    """

    activate = False  # the convolution has its own

    def __init__(self, width: int, options: Mapping[str, Any], edge_types: list[EdgeType]) -> None:
        super().__init__()
        self.edge_types = edge_types
        destinations = {dst for _, _, dst in edge_types}
        types = sorted(destinations | {src for src, _, _ in edge_types})
        self.conv = fuse_layers(made("HGT", HGTConv, width, width, (types, edge_types), **options))
        for node_type in set(types) - destinations:  # sources alone have no output, and DDP wants every gradient
            del self.conv.out_lin.lins[node_type], self.conv.skip[node_type]

    def forward(
        self,
        x: dict[NodeType, Tensor],
        edges: dict[EdgeType, Tensor],
        destinations: dict[NodeType, int],
        values: Mapping[EdgeType, Tensor] = NO_VALUES,
    ) -> dict[NodeType, Tensor]:
        out = {}
        for node_type in sorted({dst for _, _, dst in self.edge_types}):
            rows = x[node_type][: destinations[node_type]]
            out[node_type] = self.mixed(node_type, self._attend(node_type, rows, x, edges), rows)
        return out

    def mixed(self, node_type: NodeType, sent: Tensor, rows: Tensor) -> Tensor:
        """Returns the outputs [D, width] of nodes of a type, from the attention over their edges and their own rows, both
        [D, width]."""
        share = self.conv.skip[node_type].sigmoid()
        return share * self.conv.out_lin.lins[node_type](functional.gelu(sent)) + (1 - share) * rows

    def queries(self, node_type: NodeType, rows: Tensor) -> Tensor:
        """Returns the queries [D, width] of nodes of a type."""
        lin = self.conv.kqv_lin.lins[node_type]
        return functional.linear(rows, lin.weight.tensor_split(3)[1], lin.bias.tensor_split(3)[1])

    def _attend(
        self, node_type: NodeType, rows: Tensor, x: dict[NodeType, Tensor], edges: dict[EdgeType, Tensor]
    ) -> Tensor:
        """Returns [D, width]: the attention of the nodes of a type over the edges of all types into them."""
        into = [e for e in self.edge_types if e[2] == node_type]
        keys, values = zip(*(self.keys_and_values(e, x[e[0]]) for e in into), strict=True)
        shape = (-1, self.conv.heads, self.conv.out_channels // self.conv.heads)
        # The factors of the edge types are in the keys. Of a scalar the scores would stay in bfloat16 under autocast.
        one = rows.new_ones(1, 1)
        sent: Tensor = self.conv.propagate(
            merge_edges([edges[e] for e in into], [len(x[e[0]]) for e in into]),
            k=_one(keys).view(shape),
            q=self.queries(node_type, rows).view(shape),
            v=_one(values).view(shape),
            edge_attr=one,
            size=(sum(map(len, keys)), len(rows)),
        )
        return sent

    def keys_and_values(self, edge_type: EdgeType, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the keys and the values [S, width] of the sources of an edge type."""
        conv, lin = self.conv, self.conv.kqv_lin.lins[edge_type[0]]
        heads, width, number = conv.heads, conv.out_channels // conv.heads, self.edge_types.index(edge_type)
        of_nodes = torch.cat([lin.weight, lin.bias[:, None]], dim=1).tensor_split(3)
        of_edges = [m.weight.view(heads, -1, width, width)[:, number].mT for m in (conv.k_rel, conv.v_rel)]
        factor = conv.p_rel["__".join(edge_type)].view(heads, 1, 1)
        pairs = (of_edges[0] * factor, of_nodes[0]), (of_edges[1], of_nodes[2])
        key, value = ((e @ n.view(heads, width, -1)).flatten(0, 1) for e, n in pairs)
        return functional.linear(x, key[:, :-1], key[:, -1]), functional.linear(x, value[:, :-1], value[:, -1])

    def gathering(self, node_type: NodeType, own: Tensor) -> tuple[list[Any], Callable[[], Tensor]]:
        """Makes the accumulators for one node (`glt_lightning.inference.TypedLayers`)."""
        node = _HGTNode(self, node_type, own)
        return [_HGTEdges(node, e) for e in self.edge_types if e[2] == node_type], node.end


class _HGTNode:
    """The attention of a node over the edges of all types into it."""

    def __init__(self, layer: HGTLayer, node_type: NodeType, own: Tensor) -> None:
        self.layer, self._type, self._own = layer, node_type, own
        self._width = layer.conv.out_channels // layer.conv.heads
        self._query = self.heads(layer.queries(node_type, own))
        self._sum = RunningSoftmax(layer.conv.heads, own.new_empty(self._width))

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


def _one(rows: Sequence[Tensor]) -> Tensor:
    return rows[0] if len(rows) == 1 else torch.cat(list(rows))


def merge_edges(parts: Sequence[Tensor], sources: Sequence[int]) -> Tensor:
    """Merges lists of edges [2, E] into the same nodes to one that ascends by destination; edges of a node keep the order of the
    lists. The sources of a list are numbered after those of the lists before.

    A merge that counts positions, as each list ascends already, takes as long as the sort (8,000 edges: 0.2 ms, 100,000: 5 ms).
    """
    if len(parts) == 1:
        return parts[0]
    starts = accumulate(sources, initial=0)
    moved = [torch.stack([row + start, col]) for (row, col), start in zip(map(plain, parts), starts, strict=False)]
    together = torch.cat(moved, dim=1)
    return together[:, together[1].argsort(stable=True)]


# RGCN over the edge types of a batch, and over the kinds of its edges.


class EdgeKindConv(RGCNConv):  # type: ignore[misc]  # PyG has no types
    """PyG's `RGCNConv` without masks of the edges of each kind, whose sizes depend on values, at which `torch.compile` breaks.

    Its parameters, messages and aggregation are PyG's.
    """

    def forward(self, x: tuple[Tensor, Tensor], edge_index: Tensor, edge_type: Tensor) -> Tensor:
        """Returns [destinations, width]. x: rows of sources and of destinations.  edge_type: int64 [E], the kind of each edge.

        A pair of destination and kind is treated as one destination, so that one aggregation and one product serve all kinds.
        The rows that this makes are those that PyG stores for the gradient as well.
        """
        (sources, rows), (src, dst), kinds = x, plain(edge_index), self.num_relations
        known = ((edge_type >= 0) & (edge_type < kinds)).all()
        torch._assert_async(
            known, f"encoder: RGCN: an edge_type is outside of 0 to {kinds - 1}. Correct num_relations ({kinds}) or it."
        )
        kept_apart = dst * kinds + edge_type
        order = kept_apart.argsort(stable=True)
        edges = torch.stack([src[order], kept_apart[order]])
        found = self.aggregated(sources, edges, len(rows) * kinds).view(len(rows), kinds, -1)
        return self.with_root(self.transformed(found, slice(None)), rows)

    def aggregated(self, sources: Tensor, edges: Tensor, destinations: int) -> Tensor:
        """Returns [destinations, width]: the aggregate of the sources' rows over the edges."""
        size = (len(sources), destinations)
        found: Tensor = self.propagate(edges, x=sources, edge_type_ptr=None, size=size)
        return found

    def transformed(self, found: Tensor, kinds: slice) -> Tensor:
        """Returns [D, width]: the sum over kinds of ``found`` [D, kinds, width] times the matrix of each kind."""
        if self.num_blocks is not None:
            blocks = found.unflatten(2, (self.num_blocks, -1))
            return torch.einsum("dkbi,kbio->dbo", blocks, self.weight[kinds]).flatten(1)
        weight = self.weight
        if self.num_bases is not None:
            weight, kinds = torch.einsum("kb,bio->kio", self.comp[kinds], weight), slice(None)
        return found.flatten(1) @ weight[kinds].flatten(0, 1)

    def with_root(self, out: Tensor, rows: Tensor) -> Tensor:
        """Adds the nodes' own rows times the root matrix, and the bias."""
        if self.root is not None:
            out = out + rows @ self.root
        return out if self.bias is None else out + self.bias

    def gathering(self, own: Tensor) -> Any:
        """Makes the accumulator for one node (`glt_lightning.inference.ConvLayers`). own: [1, D], its row."""
        return _Kinds(self, own)


class RGCNLayer(nn.Module):
    """PyG's `RGCNConv` over some edge types: a matrix for each, and one for a node itself."""

    activate = True

    def __init__(self, width: int, options: Mapping[str, Any], edge_types: list[EdgeType]) -> None:
        super().__init__()
        self.edge_types = edge_types
        self.conv: EdgeKindConv = fuse_layers(made("RGCN", EdgeKindConv, width, width, len(edge_types), **options))

    def forward(
        self,
        x: dict[NodeType, Tensor],
        edges: dict[EdgeType, Tensor],
        destinations: dict[NodeType, int],
        values: Mapping[EdgeType, Tensor] = NO_VALUES,
    ) -> dict[NodeType, Tensor]:
        sums: dict[NodeType, Tensor] = {}
        for r, edge_type in enumerate(self.edge_types):
            src, _, dst = edge_type
            found = self.conv.aggregated(x[src], edges[edge_type], destinations[dst])
            out = self.conv.transformed(found[:, None], slice(r, r + 1))
            sums[dst] = sums[dst] + out if dst in sums else out
        return {t: self.conv.with_root(out, x[t][: destinations[t]]) for t, out in sums.items()}

    def gathering(self, node_type: NodeType, own: Tensor) -> tuple[list[Any], Callable[[], Tensor]]:
        """Makes the accumulators for one node (`glt_lightning.inference.TypedLayers`)."""
        numbers = [r for r, e in enumerate(self.edge_types) if e[2] == node_type]
        sums = [RunningSum(own[0], mean=self.conv.aggr == "mean") for _ in numbers]

        def end() -> Tensor:
            found = [
                self.conv.transformed(each.value()[None, None], slice(r, r + 1))
                for r, each in zip(numbers, sums, strict=True)
            ]
            return self.conv.with_root(torch.stack(found).sum(0), own).relu()

        return sums, end


class _Kinds:
    """Accumulates RGCN for one node; the values are the kinds of the edges."""

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
