"""Batches of edges: their graph, that of their negatives, and the blocks of all their nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import EdgeType, NodeType, OptionError
from glt_lightning.compat.dgl.exclude import edges_by_type, find_exclude_eids
from glt_lightning.compat.dgl.graph import DistGraph
from glt_lightning.compat.dgl.samplers import BlockSampler, blocks_of, ids_of
from glt_lightning.compat.dgl.sampling import only
from glt_lightning.loader import Layer

_Ends = Mapping[EdgeType, tuple[Tensor, Tensor]]
_ON_ENDS = "src, dst = pair_graph.edges(), and h[src], h[dst] are the vectors of the ends"
_REFUSED = dict.fromkeys(("apply_edges", "update_all", "local_scope"), _ON_ENDS)


@dataclass(frozen=True)
class PairGraph:
    """Edges to predict, among the nodes of a batch.

    Attributes:
        edge_index: Edge type -> int64 [2, E], positions among the nodes of their types.
        node_rows: Node type -> rows int64 [n].
        edge_rows: Edge type -> rows int64 [E]; of negatives empty.
        homogeneous: The graph has one node type and one edge type, without names.
    """

    edge_index: dict[EdgeType, Tensor]
    node_rows: dict[NodeType, Tensor]
    edge_rows: dict[EdgeType, Tensor]
    homogeneous: bool

    @property
    def ndata(self) -> dict[str, Any]:
        """``dgl.NID``: rows of the nodes, or by node type."""
        return {Layer.ID: self._only(self.node_rows)}

    @property
    def edata(self) -> dict[str, Any]:
        """``dgl.EID``: rows of the edges, or by edge type; nothing of negatives."""
        return {Layer.ID: self._only(self.edge_rows)} if self.edge_rows else {}

    def _only(self, by_type: Mapping[Any, Tensor]) -> Any:
        return next(iter(by_type.values())) if self.homogeneous else dict(by_type)

    @property
    def canonical_etypes(self) -> list[EdgeType]:
        return list(self.edge_index)

    @property
    def ntypes(self) -> list[NodeType]:
        return list(self.node_rows)

    def edges(self, etype: EdgeType | str | None = None) -> tuple[Tensor, Tensor]:
        """int64 [E] sources and int64 [E] destinations, positions among the nodes. etype: needed where there are several."""
        src, dst = only(self.edge_index, etype)
        return src, dst

    def num_nodes(self, ntype: NodeType | None = None) -> int:
        return sum(len(rows) for t, rows in self.node_rows.items() if ntype in (None, t))

    def num_edges(self, etype: EdgeType | str | None = None) -> int:
        return sum(index.shape[1] for e, index in self.edge_index.items() if etype in (None, e, e[1]))

    number_of_nodes, number_of_edges = num_nodes, num_edges

    def to(self, device: Any) -> PairGraph:
        """With all its tensors on ``device``."""
        names = ("edge_index", "node_rows", "edge_rows")
        moved: dict[str, Any] = {name: {k: v.to(device) for k, v in getattr(self, name).items()} for name in names}
        return replace(self, **moved)

    def __getattr__(self, name: str) -> Any:
        if name in _REFUSED:
            raise OptionError(f"pair_graph.{name}: needs a graph of DGL. Use {_REFUSED[name]}.")
        raise AttributeError(name)


class EdgePredictionSampler:
    """Makes batches of edges with a sampler of nodes. `EdgeDataLoader` has the arguments."""

    def __init__(
        self, sampler: BlockSampler, exclude: Any, reverse_eids: Any, reverse_etypes: Any, negative_sampler: Any
    ) -> None:
        self.sampler, self.exclude, self.negative_sampler = sampler, exclude, negative_sampler
        self.reverse_eids, self.reverse_etypes = reverse_eids, reverse_etypes

    def sample(self, g: DistGraph, seed_edges: Any) -> tuple[Any, ...]:
        """(input_nodes, pair_graph, blocks), or with negatives (input_nodes, pair_graph, negative_graph, blocks)."""
        rows = edges_by_type(g, seed_edges)
        pairs = [{e: g.find_edges(ids, e) for e, ids in rows.items()}]
        if self.negative_sampler is not None:
            negatives = self.negative_sampler(g, seed_edges)
            by_type = negatives if isinstance(negatives, Mapping) else {None: negatives}
            pairs.append({g.to_canonical_etype(e): pair for e, pair in by_type.items()})
        nodes = _nodes(g, pairs)
        graphs = [_graph(g, ends, nodes, rows if number == 0 else {}) for number, ends in enumerate(pairs)]
        excluded = find_exclude_eids(g, seed_edges, self.exclude, self.reverse_eids, self.reverse_etypes)
        seeds = next(iter(nodes.values())) if g.schema.homogeneous else nodes
        blocks = blocks_of(self.sampler.sample_blocks(g, seeds, excluded), self.sampler)
        return ids_of(blocks[0].srcdata), *graphs, blocks


def _nodes(g: DistGraph, pairs: Sequence[_Ends]) -> dict[NodeType, Tensor]:
    """The nodes of all pairs, each once, in the order of their first occurrence; empty for types without."""
    named: dict[NodeType, list[Tensor]] = {t: [torch.empty(0, dtype=torch.int64)] for t in g.ntypes}
    for ends in pairs:
        for edge_type, (src, dst) in ends.items():
            named[edge_type[0]].append(src)
            named[edge_type[2]].append(dst)
    found = {}
    for node_type, rows in named.items():
        ids, first = np.unique(torch.cat(rows).numpy(), return_index=True)
        found[node_type] = torch.from_numpy(ids[np.argsort(first)])
    return found


def _graph(g: DistGraph, ends: _Ends, nodes: dict[NodeType, Tensor], edge_rows: dict[EdgeType, Tensor]) -> PairGraph:
    index = {e: torch.empty((2, 0), dtype=torch.int64) for e in g.canonical_etypes}
    for edge_type, pair in ends.items():
        at = []
        for node_type, rows in zip((edge_type[0], edge_type[2]), pair, strict=True):
            ascending, order = torch.sort(nodes[node_type])
            at.append(order[torch.searchsorted(ascending, rows.contiguous())])
        index[edge_type] = torch.stack(at)
    none = torch.empty(0, dtype=torch.int64)
    known = {e: edge_rows.get(e, none) for e in index} if edge_rows else {}
    return PairGraph(index, nodes, known, g.schema.homogeneous)
