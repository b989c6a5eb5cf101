"""Convolutions of a graph with one edge type over the hops of a batch, with the self-loops and GCN's normalisation that are added
once for all of them, and a first layer over what samplers have aggregated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GINConv, SAGEConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from glt_lightning.base import EDGE, NODE, DataError
from glt_lightning.loader.edge_index import plain
from glt_lightning.loader.fuse import sum_of_products
from glt_lightning.loader.trim import BatchLayout, Form, LayerSize, find_form, layer_size, run_layer


class TrimmedConvs:
    """The convolutions of a graph with one edge type, each computed for the nodes of a batch alone on which the outputs of the
    seeds still depend.

    convs: one for each layer, in a list or a `torch.nn.ModuleList`.
    forms: how each runs on the prefix of a batch, as `find_form` says; None: it runs on the whole batch, as all do without forms.
    gcn_loops: whether GCN's normalisation, which is computed here, adds self-loops; None: there is none to compute.
    loops: a self-loop is added to each node before each convolution.
    """

    def __init__(
        self,
        convs: Any,
        forms: Sequence[Form | None] | None,
        *,
        gcn_loops: bool | None = None,
        loops: bool = False,
    ) -> None:
        self.convs, self.forms, self.gcn_loops, self.loops = convs, forms, gcn_loops, loops

    @classmethod
    def taking(
        cls,
        convs: Any,
        widths: Sequence[int],
        values: Tensor | None = None,
        *,
        forms: Sequence[Form] | None = None,
        trims: bool = True,
    ) -> TrimmedConvs:
        """Takes it off convolutions to add self-loops and GCN's normalisation, and finds their forms.

        widths: of their inputs.  values: as in `find_form`.  forms: those that are known already.  trims: False: each runs on
        the whole batch, because of what lies between them.
        """
        gcn_loops = _take_normalization(convs) if len(convs) else None
        loops = bool(len(convs)) and _take_self_loops(convs)
        if forms is None and trims:
            found = [find_form(conv, width, values) for conv, width in zip(convs, widths, strict=True)]
            forms = None if None in found else [form for form in found if form is not None]
        if loops and forms is None:
            _add_loop_sink(convs)
        return cls(convs, forms, gcn_loops=gcn_loops, loops=loops)

    @classmethod
    def as_given(cls, convs: Any, widths: Sequence[Any]) -> TrimmedConvs:
        """Leaves convolutions as they are; those whose form is not found run on whole batches. widths: of their inputs."""
        return cls(convs, [_form(conv, width) for conv, width in zip(convs, widths, strict=True)])

    def run(
        self,
        x: Tensor,
        batch: Data,
        values: Sequence[Tensor],
        activate: Callable[[Tensor], Tensor],
        *,
        aggregates: Sequence[str] = (),
        whole: Callable[..., Tensor] | None = None,
    ) -> Tensor:
        """Outputs of the last convolution, for the first hop of a batch or more of its nodes. x: [N, D], rows of all its nodes.

        values: what convolutions read of the edges, in the order of the batch: one tensor [E, ...], or none.
        activate: applied between convolutions.  aggregates: those that the first one takes.
        whole: computes the outputs from x, edges and values where there are no forms; None: one convolution after the other.
        """
        layout = BatchLayout.of({NODE: batch}, {EDGE: batch}, {NODE: len(x)})
        aggregated = _take_aggregate(batch, aggregates, len(self.convs), has_hops=layout.has_hops)
        edges, values = self._edges(layout, x, values)
        if self.forms is None and whole is not None:
            return whole(x, edges, *values)
        last, hops = len(self.convs) - 1, (layout.nodes_per_hop[NODE], layout.edges_per_hop[EDGE])
        for k, conv in enumerate(self.convs):
            size = layer_size(last - k, *hops)
            if k == 0 and aggregated is not None:
                x = run_aggregated(conv, x[: size.destinations], aggregated[: size.destinations].to(x.dtype))
            elif self.forms is None:
                x = conv(x, edges, *values)
            else:
                needed = size.edges + (size.destinations if self.gcn_loops else 0)
                x = self._trimmed(k, x, size, edges[:, :needed], *(each[:needed] for each in values))
            x = x if k == last else activate(x)
        return x

    def run_one(self, k: int, x: Tensor, seeds: int, edges: Tensor, *values: Tensor) -> Tensor:
        """Outputs of convolution ``k`` for the first nodes of a batch of one hop, its seeds. x: [N, D].  edges: int64 [2, E], all
        into seeds.  values: what it reads of them, [E, ...]."""
        if self.forms is not None and self.forms[k] is not None:
            return self._trimmed(k, x, LayerSize(len(x), seeds, edges.size(1)), edges, *values)
        given = with_self_loops(edges, len(x), *values) if self.loops else (edges, *values)
        found: Tensor = self.convs[k](x, *given)[:seeds]
        return found

    def _trimmed(self, k: int, x: Tensor, size: LayerSize, edges: Tensor, *values: Tensor) -> Tensor:
        assert self.forms is not None
        form = self.forms[k]
        assert form is not None
        run = _run_with_loops if self.loops else run_layer
        return run(self.convs[k], form, x, size, edges, *values)

    def _edges(self, layout: BatchLayout, x: Tensor, values: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        """The edges of a batch, and what convolutions read of them, with what is added to them once for all convolutions."""
        edges, given = layout.edges[EDGE], [layout.take(each, EDGE) for each in values]
        if self.gcn_loops is not None:
            weight, fill = (given[0] if given else None), (2.0 if self.convs[0].improved else 1.0)
            edges, factors = _gcn_weights(edges, len(x), x.dtype, self.gcn_loops, weight, fill)
            return edges, [factors]
        if self.loops and self.forms is None:
            edges, *given = with_self_loops(edges, len(x), *given)
        return edges, given


def _form(conv: nn.Module, width: Any) -> Form | None:
    if not isinstance(width, int):
        return None
    try:
        return find_form(conv, width)
    except Exception:  # classes of PyG that need more of an edge say so in many ways
        return None


# Self-loops in the order of the edges.


def _take_self_loops(convs: Iterable[nn.Module]) -> bool:
    """Takes it off convolutions to add self-loops, if all of them do, with no attributes or the mean of those of a node's edges.
    Whether it did."""
    found: list[Any] = list(convs)
    for conv in found:
        if type(conv) not in (GATConv, GATv2Conv) or not conv.add_self_loops:
            return False
        if conv.edge_dim is not None and conv.fill_value != "mean":
            return False
    for conv in found:
        conv.add_self_loops = False
    return True


def with_self_loops(edge_index: Tensor, num_nodes: int, *values: Tensor) -> tuple[Tensor, ...]:
    """Edges [2, E], ascending in their destinations, and one loop for each node: [2, E + num_nodes], ascending as well.

    The edges' own loops are last, as loops of one more node, whose output is dropped: to leave them out would make the number
    of edges depend on their values, which `torch.compile` cannot follow, and which a read of each batch would have to wait for.

    values: attributes [E, D] of the edges, returned in the order of the edges; a node's loop has the mean over its other edges.
    """
    row, col = plain(edge_index)
    between = row != col
    before = torch.cat([between.new_zeros(1, dtype=torch.int64), between.cumsum(0)])  # of edges between two nodes
    loops = torch.arange(num_nodes, device=col.device)
    loop_place = before[torch.searchsorted(col.contiguous(), loops, right=True)] + loops
    place = torch.where(between, before[:-1] + col, num_nodes + before[-1:] + (~between).cumsum(0) - 1)
    moved = torch.stack([torch.cat([torch.where(between, end, num_nodes), loops]) for end in (row, col)])
    places = torch.cat([place, loop_place])
    edges = torch.empty_like(moved).index_copy(1, places, moved)
    return edges, *(_with_means(each, col, between, num_nodes, places) for each in values)


def _with_means(values: Tensor, col: Tensor, between: Tensor, num_nodes: int, places: Tensor) -> Tensor:
    """Values [E, D] and the means [num_nodes, D] of those of edges ``between`` two nodes by destination, at their places."""
    counted = between[:, None].to(values.dtype)
    sums = values.new_zeros(num_nodes, values.size(1)).index_add(0, col, values * counted)
    counts = values.new_zeros(num_nodes, 1).index_add(0, col, counted)
    both = torch.cat([values, sums / counts.clamp(min=1)])
    return torch.empty_like(both).index_copy(0, places, both)


def _add_loop_sink(convs: Iterable[nn.Module]) -> None:
    """Lets convolutions take all nodes of a batch, with edges that `with_self_loops` returned: of its one node more each makes a
    row, and drops its output."""
    for conv in convs:
        conv.register_forward_pre_hook(_with_sink)
        conv.register_forward_hook(_without_sink)


def _with_sink(conv: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    x, *others = inputs
    return torch.cat([x, x[-1:]]), *others


def _without_sink(conv: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> Tensor:
    return out[:-1]


def _run_with_loops(
    conv: nn.Module, form: Form, x: Tensor, size: LayerSize, edge_index: Tensor, *edge_values: Tensor
) -> Tensor:
    """`run_layer` over the edges into the destinations, and a loop for each of them."""
    edges, *values = with_self_loops(edge_index[:, : size.edges], size.destinations, *edge_values)
    rows = size.destinations + 1
    if len(x) < rows:
        x = torch.cat([x, x[-1:]])
    larger = LayerSize(max(size.sources, rows), rows, edges.size(1))
    return run_layer(conv, form, x, larger, edges, *values)[: size.destinations]


def _take_normalization(convs: Iterable[nn.Module]) -> bool | None:
    """Takes GCN's normalisation off convolutions, so that it is computed once, with the degrees in the whole batch.

    Returns whether it adds self-loops; None where it cannot be taken: the layers then do what they do. PyG ignores ``improved``
    where edges have no weights.
    """
    found: list[Any] = list(convs)
    if not all(type(c) is GCNConv and c.normalize and c.flow == "source_to_target" for c in found):
        return None
    for conv in found:
        conv.normalize = False
    return bool(found[0].add_self_loops)


def _gcn_weights(
    edge_index: Tensor,
    num_nodes: int,
    dtype: torch.dtype,
    loops: bool,
    edge_weight: Tensor | None,
    fill: float,
) -> tuple[Tensor, Tensor]:
    """Edges [2, E], with ``loops`` a loop for each node as the last edge into it, and GCN's factors [E] of all.

    A loop that is among the edges stays there, with the factor 0, as in `with_self_loops`.
    edge_weight: [E], weights of the edges; a node's loop then has the weight of its own loop, else ``fill``.
    """
    edges, weights = plain(edge_index), edge_weight
    if loops:
        row, col = edges
        nodes = torch.arange(num_nodes, device=col.device)
        before = torch.arange(len(col), device=col.device) + col  # edges and loops of smaller nodes
        place = torch.cat([before, torch.searchsorted(col.contiguous(), nodes, right=True) + nodes])
        edges = torch.cat([edges, nodes.expand(2, -1)], dim=1)
        edges = torch.empty_like(edges).index_copy(1, place, edges)
        given = torch.ones_like(row, dtype=dtype) if edge_weight is None else edge_weight.to(dtype)
        of_loops = given.new_full(
            (num_nodes + 1,), fill if edge_weight is not None else 1.0
        )  # the last is for other edges
        if edge_weight is not None:
            of_loops = of_loops.index_copy(0, torch.where(row == col, col, num_nodes), given)
        both = torch.cat([given * (row != col), of_loops[:num_nodes]])
        weights = torch.empty_like(both).index_copy(0, place, both)
    return gcn_norm(edges, weights, num_nodes, add_self_loops=False, dtype=dtype)


# The first layer of a GNN over what samplers have aggregated for it (``sampling.aggregate_first``).


def aggregates_of(conv: nn.Module) -> tuple[str, ...]:
    """The aggregates, ``mean`` or ``sum``, that a convolution takes in place of its neighbours' rows."""
    if isinstance(conv, SAGEConv) and type(conv).message is SAGEConv.message and not conv.project:
        return {"mean": ("mean",), "add": ("sum",), "sum": ("sum",)}.get(str(conv.aggr), ())
    return ("sum",) if isinstance(conv, GINConv) else ()


def run_aggregated(conv: Any, x: Tensor, aggregated: Tensor) -> Tensor:
    """Outputs of a convolution from nodes' own rows, and the aggregate of their neighbours' rows."""
    if isinstance(conv, GINConv):
        return conv.nn(aggregated + (1 + conv.eps) * x)
    out = sum_of_products(conv.lin_l, aggregated, conv.lin_r, x) if conv.root_weight else conv.lin_l(aggregated)
    return functional.normalize(out, p=2.0, dim=-1) if conv.normalize else out


def _take_aggregate(batch: Data, takes: Sequence[str], layers: int, *, has_hops: bool = True) -> Tensor | None:
    """What samplers have aggregated, float32 [N, D]; None where the batch has all rows.

    has_hops: whether the edges are still those of their hops.

    Raises `DataError` for an aggregate that the model does not take, of too few hops for its layers, or of other edges.
    """
    if "x_neighbors_aggr" not in batch:
        return None
    kind, hops = batch.x_neighbors_aggr, len(batch.num_sampled_nodes)
    if kind not in takes:
        raise DataError(
            f"sampling.aggregate_first: the batch has the {kind} of each node's neighbours in place of the last hop; this model "
            f"takes {' or '.join(takes) or 'no aggregate'}. Remove sampling.aggregate_first."
        )
    if hops < layers:
        raise DataError(
            f"sampling.aggregate_first: {hops} fan-outs for {layers} layers, but nodes of the last hop have no own rows. "
            f"Give {layers} fan-outs (data.num_neighbors, data.evaluation.num_neighbors), or the model num_layers {hops}."
        )
    if not has_hops:
        raise DataError(
            "sampling.aggregate_first: a transform has added or removed edges or nodes, and the aggregates of the neighbours are "
            "of those that were sampled. Remove sampling.aggregate_first or the transform."
        )
    return batch.x_neighbors
