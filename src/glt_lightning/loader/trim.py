"""How much of a batch each layer has to compute: only what the outputs of the seeds still depend on.

Nodes of a batch are numbered by the hop that found them, and edges are in the order of their hops, so each layer needs a prefix
of both. PyG's ``trim_to_layer`` cuts between the layers, which leaves the first one, the widest, as it is; here a convolution
maps its source nodes onto its destination nodes alone. At fan-outs [15, 10, 5] the first layer then multiplies about a quarter
of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GINConv, SAGEConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from glt_lightning.base import DataError
from glt_lightning.loader.aggregation import has_kernels
from glt_lightning.loader.edge_index import believed, first_edges, hops_of, in_order, is_ascending, plain, traceable
from glt_lightning.loader.fuse import sorted_edges

Form = Literal["pair", "cut", "prefix"]


@dataclass(frozen=True)
class LayerSize:
    """The prefix of a batch that one layer reads and writes.

    sources: nodes whose inputs it reads.
    destinations: nodes whose outputs a later layer reads; the first of ``sources``.
    edges: edges that lead to ``destinations``.
    """

    sources: int
    destinations: int
    edges: int


@dataclass(frozen=True)
class BatchLayout:
    """The edges of a batch as layers take them, and its hops.

    edges: int64 [2, E] per edge type, ascending in their destinations.
    order: [E] per edge type whose edges have another order in the batch: their positions there.
    nodes_per_hop, edges_per_hop: numbers per type; all as one hop where a layer's part of the batch is no prefix of it.
    has_hops: whether they are of several.
    """

    edges: dict[Any, Tensor]
    order: dict[Any, Tensor]
    nodes_per_hop: dict[Any, Sequence[int]]
    edges_per_hop: dict[Any, Sequence[int]]
    has_hops: bool

    def take(self, values: Tensor, edge_type: Any) -> Tensor:
        """Values [E, ...] of the batch's edges of a type, in the order of ``edges``."""
        return values[self.order[edge_type]] if edge_type in self.order else values


def layout_of(nodes: Mapping[Any, Any], edges: Mapping[Any, Any], rows: Mapping[Any, int]) -> BatchLayout:
    """Looks whether the edges are as a loader leaves them, and sorts those that are not: a transform may have changed them.

    nodes, edges: the batch's stores by type.  rows: number of nodes by type.

    Edges have no hops in a batch whose ``subgraph_type`` is bidirectional or induced, nor where a transform has removed their
    numbers, or added or removed edges: layers are then computed for all nodes. The look costs a read of the edges: 0.5 ms for a
    million. An `EdgeIndex` is believed.
    """
    found = {e: traceable(store.edge_index) for e, store in edges.items()}
    order: dict[Any, Tensor] = {}
    hops = hops_of(nodes, edges, found, rows)
    if torch.compiler.is_compiling():  # which cannot read an answer
        for e, each in found.items():
            if "is_flipped" in edges[e]:
                order[e] = torch.argsort(each[1], stable=True)
                found[e] = each[:, order[e]]
            else:
                torch._assert_async(is_ascending(each), _UNSORTED)
    elif not believed(found.values()) and not in_order(found, hops):
        for e, each in found.items():
            if not believed([each]) and not bool(is_ascending(each)):
                order[e] = torch.argsort(plain(each)[1], stable=True)
                found[e] = plain(each)[:, order[e]]
        if hops is not None and not in_order(found, hops):
            hops = None
    per_hop = hops or ({t: [n] for t, n in rows.items()}, {e: [each.size(1)] for e, each in found.items()})
    return BatchLayout(found, order, *per_hop, has_hops=hops is not None)


_UNSORTED = (
    "the edges of a batch are not ascending in their destinations, and a compiled module cannot sort them. Sort them in the "
    "transform that changes them: batch.edge_index[:, batch.edge_index[1].argsort(stable=True)], or do not compile the module."
)


def layer_size(distance: int, nodes_per_hop: Sequence[int], edges_per_hop: Sequence[int]) -> LayerSize:
    """What a layer needs that has ``distance`` layers after it, in a batch with so many nodes (seeds first) and edges per hop.

    Right for any number of layers: with more layers than hops the outer ones need the whole batch.
    """
    return LayerSize(
        sources=sum(nodes_per_hop[: distance + 2]),
        destinations=sum(nodes_per_hop[: distance + 1]),
        edges=sum(edges_per_hop[: distance + 1]),
    )


def find_form(conv: nn.Module, width: int, edge_values: Tensor | None = None) -> Form | None:
    """How a convolution may be run on the prefix of a batch; None where that would change its outputs.

    ``pair``: it takes (source nodes, destination nodes). ``cut``: it takes the source nodes and an `EdgeIndex` that says how many
    destinations there are. ``prefix``: it takes the source nodes, and its first outputs are right.
    Found by running it on a small graph: one that reads more than the edges into a node, as the degrees of its neighbours
    (`GCNConv`) or the neighbours of those (`ChebConv`), gives something else there.

    edge_values: [8] or [8, D], weights or attributes of that graph's edges, for a convolution that reads them.
    """
    if any("Norm" in type(module).__name__ for module in conv.modules()):
        return None  # while training it averages over all nodes of the batch
    weight = next(conv.parameters(), torch.empty(0))
    x = torch.linspace(-1, 1, 5 * width).sin().view(5, width).to(weight)
    x[1::2] *= -0.5
    into_first_two = torch.tensor([[2, 3, 1, 0], [0, 0, 0, 1]], device=x.device)
    into_others = torch.tensor([[4, 3, 0, 4], [2, 2, 3, 1 + 2]], device=x.device)
    values = () if edge_values is None else (edge_values.to(weight),)
    training = conv.training
    conv.eval()
    try:
        with torch.no_grad():
            whole = conv(x, torch.cat([into_first_two, into_others], dim=1), *values)[:2]
            forms: tuple[Form, ...] = ("pair", "cut", "prefix")
            for form in forms:
                if _equal(whole, conv, x, into_first_two, form, *(each[:4] for each in values)):
                    return form
        return None
    finally:
        conv.train(training)


def _equal(whole: Tensor, conv: nn.Module, x: Tensor, edge_index: Tensor, form: Form, *values: Tensor) -> bool:
    try:
        part = run_layer(conv, form, x[:4], LayerSize(4, 2, edge_index.size(1)), edge_index, *values)
    except Exception:  # classes of PyG that take no pair say so in many ways
        return False
    return part.shape == whole.shape and torch.allclose(part, whole, rtol=1e-4, atol=1e-5)


def run_layer(conv: nn.Module, form: Form, x: Tensor, size: LayerSize, edge_index: Tensor, *edge_values: Any) -> Tensor:
    """Outputs [destinations, width] of a convolution over the edges into the destinations; an `EdgeIndex` is cut to them."""
    sources = x[: size.sources]
    if isinstance(edge_index, EdgeIndex):
        into = size.sources if form == "prefix" else size.destinations
        edge_index = first_edges(edge_index, size.edges, size.sources, into)
    if form == "pair":
        return conv((sources, x[: size.destinations]), edge_index, *edge_values)
    if form == "cut" and has_kernels(sources) and not torch.compiler.is_compiling():
        edges = sorted_edges(edge_index, size.sources, size.destinations)
        edge_index = edge_index if edges is None else edges
    return conv(sources, edge_index, *edge_values)[: size.destinations]


# Self-loops in the order of the edges.


def take_self_loops(convs: Iterable[nn.Module]) -> bool:
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


def add_loop_sink(convs: Iterable[nn.Module]) -> None:
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


def run_with_loops(
    conv: nn.Module, form: Form, x: Tensor, size: LayerSize, edge_index: Tensor, *edge_values: Tensor
) -> Tensor:
    """`run_layer` over the edges into the destinations, and a loop for each of them."""
    edges, *values = with_self_loops(edge_index[:, : size.edges], size.destinations, *edge_values)
    rows = size.destinations + 1
    if len(x) < rows:
        x = torch.cat([x, x[-1:]])
    larger = LayerSize(max(size.sources, rows), rows, edges.size(1))
    return run_layer(conv, form, x, larger, edges, *values)[: size.destinations]


def take_normalization(convs: Iterable[nn.Module]) -> bool | None:
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


def gcn_weights(
    edge_index: Tensor,
    num_nodes: int,
    dtype: torch.dtype,
    *,
    loops: bool,
    edge_weight: Tensor | None = None,
    fill: float = 1.0,
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
    out = conv.lin_l(aggregated)
    if conv.root_weight:
        out = out + conv.lin_r(x)
    return functional.normalize(out, p=2.0, dim=-1) if conv.normalize else out


def take_aggregate(batch: Data, takes: Sequence[str], layers: int, *, has_hops: bool = True) -> Tensor | None:
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
