"""How much of a batch each layer has to compute: only what the outputs of the seeds still depend on.

Nodes of a batch are numbered by the hop that found them, and edges are in the order of their hops, so each layer needs a prefix
of both. PyG's ``trim_to_layer`` cuts between the layers, which leaves the first one, the widest, as it is; here a convolution
maps its source nodes onto its destination nodes alone. At fan-outs [15, 10, 5] the first layer then multiplies about a quarter
of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex

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


_UNSORTED = (
    "the edges of a batch are not ascending in their destinations, and a compiled module cannot sort them. Sort them in the "
    "transform that changes them: batch.edge_index[:, batch.edge_index[1].argsort(stable=True)], or do not compile the module."
)


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

    @classmethod
    def of(cls, nodes: Mapping[Any, Any], edges: Mapping[Any, Any], rows: Mapping[Any, int]) -> BatchLayout:
        """Looks whether the edges are as a loader leaves them, and sorts those that are not: a transform may have changed them.

        nodes, edges: the batch's stores by type.  rows: number of nodes by type.

        Edges have no hops in a batch whose ``subgraph_type`` is bidirectional or induced, nor where a transform has removed their
        numbers, or added or removed edges: layers are then computed for all nodes. The look costs a read of the edges: 0.5 ms for
        a million. An `EdgeIndex` is believed.
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
        return cls(found, order, *per_hop, has_hops=hops is not None)

    def take(self, values: Tensor, edge_type: Any) -> Tensor:
        """Values [E, ...] of the batch's edges of a type, in the order of ``edges``."""
        return values[self.order[edge_type]] if edge_type in self.order else values

    def of_layer(
        self, distance: int, edge_types: Sequence[Any], x: Mapping[Any, Tensor], values: Mapping[Any, Tensor]
    ) -> tuple[dict[Any, Tensor], dict[Any, Tensor], dict[Any, int], dict[Any, Tensor]]:
        """What a layer over some edge types needs that has ``distance`` layers after it: the rows of nodes and the edges that it
        reads, the number of nodes of each type that it computes, and its part of the ``values`` of edges, in their order."""
        into = {t: sum(self.nodes_per_hop[t][: distance + 1]) for t in x}
        read = {t: first_rows(rows, sum(self.nodes_per_hop[t][: distance + 2])) for t, rows in x.items()}
        edges = {
            e: first_edges(self.edges[e], sum(self.edges_per_hop[e][: distance + 1]), len(read[e[0]]), into[e[2]])
            for e in edge_types
        }
        return read, edges, into, {e: values[e][: each.size(1)] for e, each in edges.items() if e in values}


def first_rows(rows: Tensor, number: int) -> Tensor:
    """The first ``number`` rows. A slice of all would have a gradient of its own: a tensor of zeros that is written twice."""
    return rows if not torch.compiler.is_compiling() and len(rows) == number else rows[:number]


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
    sources = first_rows(x, size.sources)
    if isinstance(edge_index, EdgeIndex):
        into = size.sources if form == "prefix" else size.destinations
        edge_index = first_edges(edge_index, size.edges, size.sources, into)
    if form == "pair":
        return conv((sources, first_rows(x, size.destinations)), edge_index, *edge_values)
    if form == "cut" and has_kernels(sources) and not torch.compiler.is_compiling():
        edges = sorted_edges(edge_index, size.sources, size.destinations)
        edge_index = edge_index if edges is None else edges
    return first_rows(conv(sources, edge_index, *edge_values), size.destinations)
