"""`node_split` and `edge_split`: division of selected nodes or edges among the ranks that train on them."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DataError, EdgeType, NodeType, OptionError
from glt_lightning.tensors.dist_graph import DistGraph
from glt_lightning.tensors.dist_tensor import DistTensor, only_graph, rows_of_index
from glt_lightning.tensors.space import RowSpace, local_share, split_rows

_AT_ONCE = 1 << 20  # rows of a mask that are read at once
_FEW_LOCAL = 0.8  # share of local rows below which a warning is logged
_log = logging.getLogger(__name__)


def node_split(
    nodes: Tensor | DistTensor | Any,
    graph: DistGraph | None = None,
    type: NodeType | None = None,
    rank: int | None = None,
    force_even: bool = True,
    seed: int = 0,
) -> Tensor:
    """Returns int64 [n], ascending: the rows of one rank; ``graph.user_ids`` converts them to the seeds of a loader.

    Over all ranks each selected node comes once. The global random number generators are not used.

    Args:
        nodes: A mask: bool [N], or a `DistTensor` of bool; or the rows [n] of nodes.
        graph: The graph. None: the one of the mask, or the one that is open in this process.
        type: The node type. None: that of the mask, or the only one.
        rank: The rank. None: this one.
        force_even: All ranks get the same number of rows, or one less. Otherwise each gets only rows that lie on its host.
        seed: Seed of the shuffle of a host's rows before they are divided among its ranks.

    Raises:
        DataError: For rows or a mask that do not fit the type.
        OptionError: For a rank that does not exist.

    Example:
        >>> with DistGraph("parts") as graph:
        ...     rows = node_split(graph.ndata["train_mask"])
        ...     print(graph.user_ids(rows).sort().values)
        tensor([0, 1, 2, 3, 4, 5])
    """
    return _split("node", nodes, graph, type, rank, force_even, seed)


def edge_split(
    edges: Tensor | DistTensor | Any,
    graph: DistGraph | None = None,
    type: EdgeType | str | None = None,
    rank: int | None = None,
    force_even: bool = True,
    seed: int = 0,
) -> Tensor:
    """Returns int64 [n], ascending: the edge rows of one rank. Works as `node_split`; an edge lies in the part of its
    destination.

    Args:
        edges: A mask: bool [E], or a `DistTensor` of bool; or the rows [n] of edges.
        graph: The graph. None: the one of the mask, or the one that is open in this process.
        type: The edge type. None: that of the mask, or the only one.
        rank: The rank. None: this one.
        force_even: All ranks get the same number of rows, or one less. Otherwise each gets only rows that lie on its host.
        seed: Seed of the shuffle of a host's rows before they are divided among its ranks.

    Raises:
        DataError: For rows or a mask that do not fit the type.
        OptionError: For a rank that does not exist.

    Example:
        >>> with DistGraph("parts") as graph:
        ...     print(edge_split(torch.arange(graph.num_edges()) % 2 == 0, graph)[:3])
        tensor([0, 2, 4])
    """
    return _split("edge", edges, graph, type, rank, force_even, seed)


def _split(
    kind: str, given: Any, graph: DistGraph | None, of: Any, rank: int | None, force_even: bool, seed: int
) -> Tensor:
    if isinstance(given, DistTensor):
        graph, of = graph or given.graph, given.of if of is None else of
    graph = graph or only_graph()
    space, homes = graph.space(of, kind), graph.tables.homes
    rank = graph.rank if rank is None else rank
    if not 0 <= rank < graph.world_size:
        raise OptionError(f"{kind}_split: rank: expected 0 to {graph.world_size - 1}, got {rank!r:.50}.")
    selected = _selected(given, space, kind)
    key = _key(seed, space.label, homes.host_of_rank[rank])
    rows = split_rows(selected, space, homes, rank, key, force_even=force_even)
    share = local_share(rows, space, homes, rank)
    if share < _FEW_LOCAL:
        _log.warning(
            "%s_split: %.0f %% of the rows of rank %d lie on its host. Partition with partition.balance to have as many "
            "selected rows in each part.",
            kind,
            100 * share,
            rank,
        )
    return torch.from_numpy(rows)


def _selected(given: Any, space: RowSpace, kind: str) -> np.ndarray:
    """Returns int64 [n], ascending: the selected rows, each once."""
    if not isinstance(given, DistTensor):
        rows = np.unique(rows_of_index(given, space.num_rows))
        space.parts_of(rows)  # raises for a row that does not exist
        return rows
    if given.space is not space or given.dtype != torch.bool or given.dim() != 1:
        raise DataError(f"{kind}_split: expected a mask of bool [{space.num_rows}] of {space.label!r}, got {given!r}.")
    found = [np.empty(0, dtype=np.int64)]
    for begin in range(0, space.num_rows, _AT_ONCE):
        mask = given[begin : begin + _AT_ONCE]
        found.append(begin + np.flatnonzero(mask.numpy()))
    return np.concatenate(found)


def _key(seed: int, label: str, host: int) -> int:
    text = "\x1f".join(("split", str(seed), label, str(host)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
