"""Self-loops in the order of the edges.

PyG's layers append a loop for each node, after which edges are no longer in the order of their destinations. Made here once for
a batch, each as the last edge into its node, they leave the batch sorted and let layers take a prefix of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv
from torch_geometric.utils import add_self_loops, remove_self_loops

from glt_lightning.loader.edge_index import plain


def take_self_loops(convs: Iterable[nn.Module]) -> bool:
    """Takes it off convolutions to add self-loops, if all of them do and read nothing else of an edge. Whether it did."""
    found: list[Any] = list(convs)
    if not all(type(c) in (GATConv, GATv2Conv) and c.add_self_loops and c.edge_dim is None for c in found):
        return False
    for conv in found:
        conv.add_self_loops = False
    return True


def with_self_loops(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Edges [2, E] that are ascending in their destinations, with one loop for each node, ascending as well."""
    edges, _ = remove_self_loops(plain(edge_index))
    return in_order(add_self_loops(edges, num_nodes=num_nodes)[0], num_nodes)[0]


def in_order(edge_index: Tensor, num_nodes: int, *values: Tensor) -> list[Tensor]:
    """Sorted edges and the loops of all nodes behind them, each loop moved to the end of the edges into its node.

    values: [E] each, moved with the edges.
    """
    loops = torch.arange(num_nodes, device=edge_index.device)
    col = edge_index[1, : edge_index.size(1) - num_nodes].contiguous()
    before = torch.arange(len(col), device=col.device) + col  # edges and loops of smaller nodes
    place = torch.cat([before, torch.searchsorted(col, loops, right=True) + loops])
    return [torch.empty_like(each).index_copy(-1, place, each) for each in (edge_index, *values)]


def edges_into(edge_index: Tensor, destinations: int) -> int:
    """Number of sorted edges that lead to the first ``destinations`` nodes."""
    return int(torch.searchsorted(edge_index[1].contiguous(), destinations))
