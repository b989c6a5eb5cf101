"""How much of a batch each layer has to compute: only what the outputs of the seeds still depend on.

Nodes of a batch are numbered by the hop that found them, and edges are in the order of their hops, so each layer needs a prefix
of both. PyG's ``trim_to_layer`` cuts between the layers, which leaves the first one, the widest, as it is; here a convolution
maps its source nodes onto its destination nodes alone. At fan-outs [15, 10, 5] the first layer then multiplies about a quarter
of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from glt_lightning.loader.edge_index import first_edges, traceable
from glt_lightning.nn.aggregate import has_kernels
from glt_lightning.nn.fuse import sorted_edges

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


def has_hops(stores: Iterable[Any]) -> bool:
    """Whether all edges of a batch are in the order of their hops: not in one whose ``subgraph_type`` is bidirectional or
    induced, nor where a transform has removed the numbers. Layers are then computed for all nodes. stores: those of edges."""
    return all("num_sampled_edges" in store and "is_flipped" not in store for store in stores)


def ordered_edges(store: Any) -> tuple[Tensor, Tensor | None]:
    """Edges as layers take them, ascending in their destinations; and their positions in the batch where that has another order:
    edges of the other direction (``subgraph_type: bidirectional``) follow the sampled ones."""
    edges = traceable(store.edge_index)
    if "is_flipped" not in store:
        return edges, None
    order = torch.argsort(edges[1], stable=True)
    return edges[:, order], order


def layer_size(distance: int, nodes_per_hop: Sequence[int], edges_per_hop: Sequence[int]) -> LayerSize:
    """What a layer needs that has ``distance`` layers after it, in a batch with so many nodes (seeds first) and edges per hop.

    Right for any number of layers: with more layers than hops the outer ones need the whole batch.
    """
    return LayerSize(
        sources=sum(nodes_per_hop[: distance + 2]),
        destinations=sum(nodes_per_hop[: distance + 1]),
        edges=sum(edges_per_hop[: distance + 1]),
    )


def per_hop(batch: Data, x: Tensor, edge_index: Tensor) -> tuple[Sequence[int], Sequence[int]]:
    """Number of nodes and of edges per hop in a batch of one node type, for `layer_size`; all as one where edges have no hops."""
    if has_hops([batch]):
        return batch.num_sampled_nodes, batch.num_sampled_edges
    return [len(x)], [edge_index.size(1)]


def find_form(conv: nn.Module, width: int) -> Form | None:
    """How a convolution may be run on the prefix of a batch; None where that would change its outputs.

    ``pair``: it takes (source nodes, destination nodes). ``cut``: it takes the source nodes and an `EdgeIndex` that says how many
    destinations there are. ``prefix``: it takes the source nodes, and its first outputs are right.
    Found by running it on a small graph: one that reads more than the edges into a node, as the degrees of its neighbours
    (`GCNConv`) or the neighbours of those (`ChebConv`), gives something else there.
    """
    if any("Norm" in type(module).__name__ for module in conv.modules()):
        return None  # while training it averages over all nodes of the batch
    weight = next(conv.parameters(), torch.empty(0))
    x = torch.linspace(-1, 1, 5 * width).sin().view(5, width).to(weight)
    x[1::2] *= -0.5
    into_first_two = torch.tensor([[2, 3, 1, 0], [0, 0, 0, 1]], device=x.device)
    into_others = torch.tensor([[4, 3, 0, 4], [2, 2, 3, 1 + 2]], device=x.device)
    training = conv.training
    conv.eval()
    try:
        with torch.no_grad():
            whole = conv(x, torch.cat([into_first_two, into_others], dim=1))[:2]
            forms: tuple[Form, ...] = ("pair", "cut", "prefix")
            for form in forms:
                if _equal(whole, conv, x, into_first_two, form):
                    return form
        return None
    finally:
        conv.train(training)


def _equal(whole: Tensor, conv: nn.Module, x: Tensor, edge_index: Tensor, form: Form) -> bool:
    try:
        part = run_layer(conv, form, x[:4], LayerSize(4, 2, edge_index.size(1)), edge_index)
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
