"""`node_split` and `edge_split`: which of the selected nodes or edges this rank trains on."""

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
_FEW_LOCAL = 0.8
_log = logging.getLogger(__name__)


def node_split(
    nodes: Tensor | DistTensor | Any,
    graph: DistGraph | None = None,
    type: NodeType | None = None,
    rank: int | None = None,
    force_even: bool = True,
    seed: int = 0,
) -> Tensor:
    """The rows of one rank, int64 [n], ascending; ``graph.user_ids`` leads from them to the seeds of a loader.

    Over all ranks each selected node comes once. No other random number generator is touched.

    Args:
        nodes: A mask: bool [N], or a `DistTensor` of bool; or the rows [n] of nodes.
        graph: None: the one of the mask, or the one that is open in this process.
        type: The node type. None: that of the mask, or the only one.
        rank: None: this one.
        force_even: All ranks get equally many, or one less. Otherwise each gets rows that lie on its host alone.
        seed: Of the order in which the rows of a host are dealt to its ranks.

    Raises:
        DataError: For rows or a mask that do not fit the type.
        OptionError: For a rank that there is not.

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
    """As `node_split`, of edge rows: an edge lies in the part of its destination.

    Args:
        edges: A mask, or edge rows.
        graph: None: the one of the mask, or the one that is open in this process.
        type: The edge type. None: that of the mask, or the only one.
        rank: None: this one.
        force_even: All ranks get equally many, or one less.
        seed: Of the order in which the rows of a host are dealt to its ranks.

    Raises:
        DataError: For rows or a mask that do not fit the type.
        OptionError: For a rank that there is not.

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
    """Returns int64 [n], ascending, each once."""
    if not isinstance(given, DistTensor):
        rows = np.unique(rows_of_index(given, space.num_rows))
        space.parts_of(rows)  # raises for a row that there is not
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
