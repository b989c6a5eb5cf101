"""Neighbours of nodes, and blocks of them: what a sampler of one's own is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DataError, EdgeType, NodeType, OptionError, edge_type_str, lazy_names
from glt_lightning.compat.dgl.exclude import EdgePairs, drop, pairs_of
from glt_lightning.compat.dgl.graph import DistGraph
from glt_lightning.loader import Layer
from glt_lightning.tensors import Neighbors

_T = TypeVar("_T")


@dataclass(frozen=True)
class LayerEdges:
    """The edges that one layer passes messages along, in rows of the graph; what ``sample_frontier`` returns.

    Attributes:
        by_type: Edge type -> (src, dst, edge rows), each int64 [E].
        homogeneous: The graph has one node type and one edge type, without names.
    """

    by_type: Mapping[EdgeType, Neighbors]
    homogeneous: bool

    def edges(self, form: str = "uv", etype: EdgeType | str | None = None) -> Any:
        """Rows int64 [E] of the sources and of the destinations (``uv``), of the edges (``eid``), or of all three (``all``).
        etype: needed where there are several."""
        found = only(self.by_type, etype)
        return {"uv": (found.src, found.dst), "eid": found.edge_row, "all": tuple(found)}[form]

    def num_edges(self, etype: EdgeType | str | None = None) -> int:
        """Of one edge type or of all."""
        return sum(len(found.src) for e, found in self.by_type.items() if etype in (None, e, e[1]))

    number_of_edges = num_edges

    @property
    def edata(self) -> dict[str, Any]:
        """``dgl.EID``: rows of the edges, or by edge type."""
        return {
            Layer.ID: self.edges("eid") if self.homogeneous else {e: each.edge_row for e, each in self.by_type.items()}
        }

    def without(self, excluded: EdgePairs) -> LayerEdges:
        """The other edges."""
        left = dict(self.by_type)
        for edge_type in left.keys() & excluded.keys():
            found = left[edge_type]
            kept = torch.from_numpy(drop(excluded[edge_type], found.src.numpy(), found.dst.numpy()))
            left[edge_type] = Neighbors(*(each[kept] for each in found))
        return LayerEdges(left, self.homogeneous)


class Block(Layer):
    """A `Layer` with the rows of the graph as its ids, and with more of DGL's names."""

    def num_edges(self, etype: EdgeType | None = None) -> int:
        """Of one edge type or of all."""
        if isinstance(self.edge_index, Tensor) or etype is not None:
            return len(self.edges(etype)[0])
        return sum(index.shape[1] for index in self.edge_index.values())

    number_of_edges = num_edges

    @property
    def srcnodes(self) -> BlockNodes:
        return BlockNodes(self.srcdata, self.num_src_nodes)

    @property
    def dstnodes(self) -> BlockNodes:
        return BlockNodes(self.dstdata, self.num_dst_nodes)


@dataclass(frozen=True)
class BlockNodes:
    """The sources or the destinations of a block: ``nodes(ntype)`` are their numbers, ``nodes[ntype].data`` their values.

    data: of the nodes, or by node type.  count: number of the nodes of a type.
    """

    data: Mapping[str, Any]
    count: Callable[[NodeType | None], int]

    def __call__(self, ntype: NodeType | None = None) -> Tensor:
        """int64 [n]: 0, 1 and so on. ntype: needed where there are several."""
        device = self[ntype].data[Layer.ID].device
        return torch.arange(self.count(ntype), device=device)

    def __getitem__(self, ntype: NodeType | None) -> SimpleNamespace:
        return SimpleNamespace(data=self.data if Layer.ID in self.data else only(self.data, ntype))


def only(by_type: Mapping[Any, _T], given: Any) -> _T:
    """The value of a type, which None and the middle name of an edge type may stand for where there is one such. Raises
    `OptionError`."""
    found = [t for t in by_type if given is None or given == t or (isinstance(t, tuple) and given == t[1])]
    if len(found) != 1:
        raise OptionError(f"type: expected one of {list(by_type)}; got {given!r}.")
    return by_type[found[0]]


def sample_neighbors(
    g: DistGraph,
    nodes: Any,
    fanout: Any,
    edge_dir: str = "in",
    prob: str | None = None,
    replace: bool = False,
    exclude_edges: Any = None,
) -> LayerEdges:
    """Draws in-edges of nodes.

    Args:
        g: The graph.
        nodes: Rows [n]; or by node type.
        fanout: Edges per node and edge type, -1: all; or by edge type, where 0 or none draws none.
        edge_dir: ``in``: partitions have the in-edges of their nodes.
        prob: An attribute of ``partition.weights`` to draw by.
        replace: Draw with replacement.
        exclude_edges: Rows of edges that are not drawn, with all their parallel copies; or by edge type.

    Raises:
        OptionError: For another direction. DataError: For rows or weights that there are not.
    """
    if edge_dir != "in":
        raise OptionError(
            f"sample_neighbors: edge_dir: expected 'in', got {edge_dir!r}. For out-edges partition the reversed graph."
        )
    by_type, excluded = rows_by_type(g, nodes), pairs_of(g, exclude_edges) or EdgePairs()
    edges = {}
    for edge_type in g.edge_types:
        wanted = fanout_of(fanout, edge_type)
        if edge_type[2] in by_type and wanted != 0:
            key = g.next_key()
            at, without = by_type[edge_type[2]], excluded.get(edge_type)
            edges[edge_type] = g.sample_neighbors(at, wanted, edge_type, replace, prob, without, key=key)
    return LayerEdges(edges, g.schema.homogeneous)


def to_block(frontier: LayerEdges, dst_nodes: Any) -> Block:
    """The edges as a block, whose destinations are ``dst_nodes``, and the first of its sources, and its other sources in the
    order in which edges name them. ``edata[dgl.EID]`` are the rows of its edges in the graph.

    Args:
        frontier: The edges; their destinations are among ``dst_nodes``.
        dst_nodes: Rows [n], each once; or by node type.

    Raises:
        DataError: For a node that is there twice, and an edge to another node.
    """
    edges = frontier.by_type
    given = dst_nodes if isinstance(dst_nodes, Mapping) else {edge_type[2]: dst_nodes for edge_type in edges}
    dst = {t: np.asarray(rows, dtype=np.int64) for t, rows in given.items()}
    src = {t: dst.get(t, np.empty(0, np.int64)) for t in {t for e in edges for t in (e[0], e[2])} | dst.keys()}
    for t, rows in dst.items():
        if len(np.unique(rows)) < len(rows):
            raise DataError(f"to_block: dst_nodes of type {t!r}: a node is there twice. Give each once.")
    for t in src:
        named = [found.src.numpy() for edge_type, found in edges.items() if edge_type[0] == t]
        src[t] = _in_order(np.concatenate([src[t], *named]))
    index = {e: _numbered(e, found, src[e[0]], dst.get(e[2], src[e[2]][:0])) for e, found in edges.items()}
    size = {e: (len(src[e[0]]), len(dst.get(e[2], ()))) for e in edges}
    data = [{t: {Layer.ID: torch.from_numpy(rows)} for t, rows in side.items()} for side in (src, _all_types(src, dst))]
    edata = {e: {Layer.ID: found.edge_row} for e, found in edges.items()}
    parts: list[Any] = [index, size, *data, edata]
    return Block(*((next(iter(part.values())) for part in parts) if frontier.homogeneous else parts))


def rows_by_type(g: DistGraph, nodes: Any) -> dict[NodeType, Tensor]:
    """Rows by node type, as they are given or of the only type."""
    if isinstance(nodes, Mapping):
        return {str(g.space(t, "node").of): torch.as_tensor(rows) for t, rows in nodes.items()}
    return {str(g.space(None, "node").of): torch.as_tensor(nodes)}


def fanout_of(fanout: Any, edge_type: EdgeType) -> int:
    """What a layer draws of an edge type: a number for all, or by edge type, 0 for those that are left out."""
    if not isinstance(fanout, Mapping):
        return int(fanout)
    return int(next((fanout[key] for key in (edge_type, edge_type[1], edge_type_str(edge_type)) if key in fanout), 0))


def _in_order(rows: np.ndarray) -> np.ndarray:
    """Each once, in the order of its first occurrence."""
    found, first = np.unique(rows, return_index=True)
    return found[np.argsort(first, kind="stable")]


def _numbered(edge_type: EdgeType, found: Neighbors, src: np.ndarray, dst: np.ndarray) -> Tensor:
    """int64 [2, E]: positions of the ends."""
    ends = []
    for rows, among in ((found.src.numpy(), src), (found.dst.numpy(), dst)):
        order = np.argsort(among, kind="stable")
        at = np.searchsorted(among[order], rows)
        there = np.append(among[order], -1)[np.minimum(at, len(order))] == rows
        if not there.all():
            raise DataError(
                f"to_block: an edge of {edge_type_str(edge_type)} leads to node {rows[~there][0]}, which is not in dst_nodes."
            )
        ends.append(np.append(order, -1)[at])
    return torch.from_numpy(np.stack(ends))


def _all_types(src: Mapping[NodeType, np.ndarray], dst: Mapping[NodeType, np.ndarray]) -> dict[NodeType, np.ndarray]:
    return {t: dst.get(t, np.empty(0, np.int64)) for t in src}


_REFUSED = {
    "in_subgraph": "{name}: use sample_neighbors(g, nodes, -1).",
    "random_walk": "{name}: use g.random_walk(rows, length), whose steps lead to sources of edges.",
}

__getattr__, __dir__ = lazy_names(__name__, {}, _REFUSED)
