"""Graphs whose rows take from less than a page to more than one."""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from tests.helpers.partitions import small_graph, small_hetero


def numbered(rows: int, *shape: int) -> torch.Tensor:
    """float32 [rows, *shape], every value another."""
    return torch.arange(rows * int(np.prod(shape)), dtype=torch.float32).reshape(rows, *shape)


def wide_graph() -> Data:
    """Attributes of one, two and three dimensions, and of edges."""
    data = small_graph(200)
    data.x = numbered(200, 700)  # rows straddle pages
    data.age = torch.arange(200, dtype=torch.int16)
    data.image = numbered(200, 3, 400)  # larger than a page
    data.edge_attr = numbered(data.edge_index.shape[1], 300)
    data.edge_weight = numbered(data.edge_index.shape[1])
    return data


def padded_graph() -> Data:
    """Rows that get padding where a GPU reads them over the bus, also when they are stored in fewer bytes."""
    data = small_graph(200)
    data.x = numbered(200, 25)
    data.image = numbered(200, 2, 25)
    data.place = numbered(200, 3).double()
    data.edge_attr = numbered(data.edge_index.shape[1], 50)
    return data


def wide_hetero() -> HeteroData:
    """Authors have no attributes, papers have; so have the edges of one type."""
    data = small_hetero()
    data["paper"].x = numbered(200, 1025)
    data["paper", "cites", "paper"].edge_attr = numbered(900, 90)
    return data
