"""Self-loops in the order of the edges.

PyG's layers append a loop for each node, after which edges are no longer in the order of their destinations. Made here, each as
the last edge into its node, they leave the batch sorted and let layers take a prefix of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from glt_lightning.loader.edge_index import plain
from glt_lightning.loader.trim import Form, LayerSize, run_layer


def take_self_loops(convs: Iterable[nn.Module]) -> bool:
    """Takes it off convolutions to add self-loops, if all of them do and read nothing else of an edge. Whether it did."""
    found: list[Any] = list(convs)
    if not all(type(c) in (GATConv, GATv2Conv) and c.add_self_loops and c.edge_dim is None for c in found):
        return False
    for conv in found:
        conv.add_self_loops = False
    return True


def with_self_loops(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Edges [2, E], ascending in their destinations, and one loop for each node: [2, E + num_nodes], ascending as well.

    The edges' own loops are last, as loops of one more node, whose output is dropped: to leave them out would make the number
    of edges depend on their values, which `torch.compile` cannot follow, and which a read of each batch would have to wait for.
    """
    row, col = plain(edge_index)
    between = row != col
    before = torch.cat([between.new_zeros(1, dtype=torch.int64), between.cumsum(0)])  # of edges between two nodes
    loops = torch.arange(num_nodes, device=col.device)
    loop_place = before[torch.searchsorted(col.contiguous(), loops, right=True)] + loops
    place = torch.where(between, before[:-1] + col, num_nodes + before[-1:] + (~between).cumsum(0) - 1)
    moved = torch.stack([torch.cat([torch.where(between, end, num_nodes), loops]) for end in (row, col)])
    return torch.empty_like(moved).index_copy(1, torch.cat([place, loop_place]), moved)


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


def run_with_loops(conv: nn.Module, form: Form, x: Tensor, size: LayerSize, edge_index: Tensor) -> Tensor:
    """`run_layer` over the edges into the destinations, and a loop for each of them."""
    edges = with_self_loops(edge_index[:, : size.edges], size.destinations)
    rows = size.destinations + 1
    if len(x) < rows:
        x = torch.cat([x, x[-1:]])
    larger = LayerSize(max(size.sources, rows), rows, edges.size(1))
    return run_layer(conv, form, x, larger, edges)[: size.destinations]


def take_normalization(convs: Iterable[nn.Module]) -> bool | None:
    """Takes GCN's normalisation off convolutions, so that it is computed once, with the degrees in the whole batch.

    Returns whether it adds self-loops; None where it cannot be taken: the layers then do what they do. To ``improved`` PyG pays
    regard where edges have weights, which those of a batch have not.
    """
    found: list[Any] = list(convs)
    if not all(type(c) is GCNConv and c.normalize and c.flow == "source_to_target" for c in found):
        return None
    for conv in found:
        conv.normalize = False
    return bool(found[0].add_self_loops)


def gcn_weights(edge_index: Tensor, num_nodes: int, dtype: torch.dtype, *, loops: bool) -> tuple[Tensor, Tensor]:
    """Edges [2, E], with ``loops`` a loop for each node as the last edge into it, and GCN's factors [E] of all.

    A loop that is among the edges stays there, with the factor 0, as in `with_self_loops`.
    """
    edges, weights = plain(edge_index), None
    if loops:
        row, col = edges
        nodes = torch.arange(num_nodes, device=col.device)
        before = torch.arange(len(col), device=col.device) + col  # edges and loops of smaller nodes
        place = torch.cat([before, torch.searchsorted(col.contiguous(), nodes, right=True) + nodes])
        edges = torch.cat([edges, nodes.expand(2, -1)], dim=1)
        edges = torch.empty_like(edges).index_copy(1, place, edges)
        weights = torch.ones_like(place, dtype=dtype).index_copy(0, before, (row != col).to(dtype))
    return gcn_norm(edges, weights, num_nodes, add_self_loops=False, dtype=dtype)
