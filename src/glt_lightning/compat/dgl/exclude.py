"""Edges that a batch of edges passes no messages along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import EdgeType, OptionError
from glt_lightning.compat.dgl.graph import DistGraph

MODES = ("self", "reverse_id", "reverse_types")


class EdgePairs(dict[EdgeType, tuple[Tensor, Tensor]]):
    """Edge type -> (rows of sources, rows of destinations), int64 [X] each: these edges, with all parallel copies."""

    def also(self, edge_type: EdgeType, src: Tensor, dst: Tensor) -> None:
        """Adds edges."""
        none = torch.empty(0, dtype=torch.int64)
        there = self.get(edge_type, (none, none))
        self[edge_type] = torch.cat([there[0], src]), torch.cat([there[1], dst])


def edges_by_type(g: DistGraph, edges: Any) -> dict[EdgeType, Tensor]:
    """Rows of edges by edge type, as they are given or of the only type."""
    if isinstance(edges, Mapping):
        return {g.to_canonical_etype(e): torch.as_tensor(rows) for e, rows in edges.items()}
    return {g.to_canonical_etype(None): torch.as_tensor(edges)}


def pairs_of(g: DistGraph, edges: Any) -> EdgePairs | None:
    """Edges by their ends. edges: rows, also by edge type, or pairs already; None: none."""
    if edges is None or isinstance(edges, EdgePairs):
        return edges
    return EdgePairs({e: g.find_edges(rows, e) for e, rows in edges_by_type(g, edges).items()})


def find_exclude_eids(
    g: DistGraph, seed_edges: Any, exclude: Any, reverse_eids: Any = None, reverse_etypes: Any = None
) -> EdgePairs | None:
    """What is excluded with the edges of a batch.

    Args:
        g: The graph.
        seed_edges: Rows of the batch's edges, or by edge type.
        exclude: None: nothing. ``self``: these edges. ``reverse_id``: also the edges that ``reverse_eids`` names, or without it
            those from destination to source of the same type. ``reverse_types``: also those from destination to source of the
            type that ``reverse_etypes`` names. A function of the edges, which gives edges; or edges.
        reverse_eids: Edge row -> row of the reverse edge, or by edge type.
        reverse_etypes: Edge type -> that of the reverse edges.

    Raises:
        OptionError: For another mode, and for reverse edges that its types cannot have.
    """
    if exclude is None:
        return None
    if not isinstance(exclude, str):
        return pairs_of(g, exclude(seed_edges) if callable(exclude) else exclude)
    if exclude not in MODES:
        raise OptionError(f"exclude: expected one of {', '.join(MODES)}, edges or a function; got {exclude!r:.50}.")
    given, found = edges_by_type(g, seed_edges), EdgePairs()
    for edge_type, rows in given.items():
        ends = g.find_edges(rows, edge_type)
        found.also(edge_type, *ends)
        if exclude == "reverse_id":
            found.also(edge_type, *_reverse(g, edge_type, rows, ends, reverse_eids))
        elif exclude == "reverse_types":
            found.also(_reverse_type(g, edge_type, reverse_etypes), ends[1], ends[0])
    return found


def _reverse(
    g: DistGraph, edge_type: EdgeType, rows: Tensor, ends: tuple[Tensor, Tensor], reverse_eids: Any
) -> tuple[Tensor, Tensor]:
    if reverse_eids is None:
        if edge_type[0] != edge_type[2]:
            raise OptionError(
                f"exclude: reverse_id: edges of {edge_type} lead from one node type to another. Use reverse_types, with "
                "reverse_etypes."
            )
        return ends[1], ends[0]
    if isinstance(reverse_eids, Mapping):
        reverse_eids = {g.to_canonical_etype(e): ids for e, ids in reverse_eids.items()}[edge_type]
    found: tuple[Tensor, Tensor] = g.find_edges(torch.as_tensor(reverse_eids[rows]), edge_type)
    return found


def _reverse_type(g: DistGraph, edge_type: EdgeType, reverse_etypes: Any) -> EdgeType:
    given = {g.to_canonical_etype(a): g.to_canonical_etype(b) for a, b in (reverse_etypes or {}).items()}
    reverse = given.get(edge_type)
    if reverse is None or (reverse[0], reverse[2]) != (edge_type[2], edge_type[0]):
        raise OptionError(
            f"exclude: reverse_types: reverse_etypes: expected the edge type from {edge_type[2]!r} to {edge_type[0]!r} that "
            f"turns {edge_type} round; got {reverse}."
        )
    return reverse


def drop(pairs: tuple[Tensor, Tensor], src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """bool [E]: which of the edges src[i] -> dst[i] are none of the pairs."""
    one = np.dtype([("src", np.int64), ("dst", np.int64)])
    ends, excluded = (np.rec.fromarrays([np.asarray(a), np.asarray(b)], dtype=one) for a, b in ((src, dst), pairs))
    return ~np.isin(ends, excluded)
