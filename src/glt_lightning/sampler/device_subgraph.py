"""The edges of a batch beside those that were sampled, found by a GPU for a graph whose parts are all mapped: the twin of
`sampler.subgraph`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from glt_lightning.ops.cuda.graph import DeviceGraph
from glt_lightning.ops.cuda.induce import Between, LidEdges, stored_between
from glt_lightning.ops.cuda.relabel import DeviceLids
from glt_lightning.ops.cuda.subgraph import DeviceSubgraph
from glt_lightning.ops.excluded import ExcludedEdges
from glt_lightning.sampler.request import SamplerConfig
from glt_lightning.sampler.subgraph_task import INDUCED


class DeviceEdgeFinder:
    """For batches of one loader, of a graph of less than 2^31 nodes: pairs of nodes are numbered by 63 bits.

    graph: drawn from by the weights of ``config``.  num_edges: [R], of the whole graph.
    """

    MOST_NODES = 2**31 - 1

    def __init__(self, graph: DeviceGraph, config: SamplerConfig, num_edges: Sequence[int]) -> None:
        self._graph, self._config, self._num_edges = graph, config, list(num_edges)
        self._kernels, self._num_nodes = graph.kernels, graph.num_nodes
        self._unweighted = graph.drawn_by(sums=False, labor=False)

    def complete(self, found: DeviceSubgraph, excluded: ExcludedEdges | None) -> DeviceSubgraph:
        """The batch with the edges that ``config.subgraph`` asks for. Waits for the device twice, and where edges of the other
        direction are wanted, or some are excluded, for their number. Raises as `sampler.subgraph.complete_edges`."""
        task = self._config.subgraph
        assert task is not None
        pairs = {} if excluded is None else excluded.pairs
        gone = {r: self._pair_keys(*(self._kernels.put(ids) for ids in each)) for r, each in pairs.items()}
        if task.kind == INDUCED:
            edges, copies = self._induced(found, gone), None
        else:
            edges, copies = self._with_reverse(found, gone)
        flipped = None
        if copies is not None:
            flipped = [
                np.arange(len(each.edge_row)) >= len(each.edge_row) - n for each, n in zip(edges, copies, strict=True)
            ]
        rows: list[Tensor | None] = [each.edge_row for each in edges]
        return replace(found, edge_index=[each.ends for each in edges], edge_row=rows, flipped=flipped)

    def _between(
        self, edge_type: int, rows: Tensor, known: DeviceLids, bases: Tensor | None, *, weighted: bool = True
    ) -> Between:
        task, graph = self._config.subgraph, self._graph if weighted else self._unweighted
        assert task is not None
        return Between(graph, edge_type, rows, known, bases, task.limit)

    def _induced(self, found: DeviceSubgraph, gone: Mapping[int, Tensor]) -> list[LidEdges]:
        """For each edge type all edges among the nodes of a batch, in the order of destinations and stored rows."""
        bases: list[Tensor | None] = [None for _ in found.gid]
        if found.tree is not None:
            bases = [tree * self._num_nodes for tree in found.tree]
        ids = [gid if base is None else gid + base for gid, base in zip(found.gid, bases, strict=True)]
        known = self._known(ids)
        asked = [self._between(r, found.gid[dst], known, bases[dst]) for r, dst in enumerate(self._graph.dst_types)]
        edges = stored_between(asked, require_room=self._config.require_room)
        return [self._without(each, r, found, gone) for r, each in enumerate(edges)]

    def _with_reverse(self, found: DeviceSubgraph, gone: Mapping[int, Tensor]) -> tuple[list[LidEdges], list[int]]:
        """For each edge type the sampled edges, the stored ones of the other direction that were not sampled, and within one edge
        type flipped copies of those that are not stored so; and the number of these copies."""
        task = self._config.subgraph
        assert task is not None
        own = self._own(found)
        sampled = [
            LidEdges(index, row) for index, row in zip(found.edge_index, found.edge_row, strict=True) if row is not None
        ]
        assert len(sampled) == len(found.edge_row), (
            "batches with edges of the other direction are sampled with edge rows"
        )
        pieces: dict[int, list[LidEdges]] = {}  # by the edge type of the other direction
        for r, other in enumerate(task.reverse):
            if other >= 0 and len(sampled[r].edge_row):
                dst = sampled[r].ends[1]
                kept = _where(sampled[r], own[self._graph.dst_types[r]][dst] == dst)
                pieces.setdefault(other, []).append(LidEdges(kept.ends.flip(0), kept.edge_row))
        flipped = {r: _joined(each) for r, each in pieces.items()}
        stored = self._stored(flipped, found)
        anyhow = stored  # those of weight 0, too: of none of them there is a copy
        if any(self._config.weights):
            anyhow = self._stored(
                {r: each for r, each in flipped.items() if task.reverse[r] == r}, found, weighted=False
            )
        edges, copies = list(sampled), [0 for _ in sampled]
        for r, each in stored.items():
            new = _where(each, ~_are_in(self._edge_keys(each, r), self._edge_keys(sampled[r], r)))
            added = [sampled[r], self._without(new, r, found, gone)]
            if task.reverse[r] == r:
                missing = ~_are_in(self._end_keys(flipped[r]), self._end_keys(anyhow[r]))
                added.append(self._without(_where(flipped[r], missing), r, found, gone))
                copies[r] = len(added[-1].edge_row)
            edges[r] = _joined(added)
        return edges, copies

    def _stored(
        self, pairs: Mapping[int, LidEdges], found: DeviceSubgraph, *, weighted: bool = True
    ) -> dict[int, LidEdges]:
        """By edge type, the stored edges with the ends of one of ``pairs``."""
        asked, lids = [], []
        for r, each in pairs.items():
            src, dst = (found.gid[t[r]] for t in (self._graph.src_types, self._graph.dst_types))
            lids.append(torch.unique(each.ends[1]))
            known = self._known([each.ends[1] * self._num_nodes + src[each.ends[0]]])
            asked.append(self._between(r, dst[lids[-1]], known, lids[-1] * self._num_nodes, weighted=weighted))
        answers = stored_between(asked, require_room=self._config.require_room)
        return {
            r: LidEdges(torch.stack([each.ends[0][a.ends[0]], rows[a.ends[1]]]), a.edge_row)
            for (r, each), rows, a in zip(pairs.items(), lids, answers, strict=True)
        }

    def _own(self, found: DeviceSubgraph) -> list[Tensor]:
        """Per node type int64 [N]: the lid under which a node is the source of edges; seeds that come twice have others."""
        trees: Sequence[Tensor | int] = found.tree or [0 for _ in found.gid]
        own = []
        for gid, tree in zip(found.gid, trees, strict=True):
            ids, number = torch.unique(gid + tree * self._num_nodes, return_inverse=True)
            lids = torch.arange(len(gid), device=gid.device)
            own.append(lids.new_full((len(ids),), len(gid)).scatter_reduce(0, number, lids, "amin")[number])
        return own

    def _known(self, ids: Sequence[Tensor]) -> DeviceLids:
        error = self._kernels.new_error()  # ids of a batch, in a table with room for them: nothing can be wrong
        return DeviceLids.of(ids, self._kernels, error)

    def _without(self, edges: LidEdges, edge_type: int, found: DeviceSubgraph, gone: Mapping[int, Tensor]) -> LidEdges:
        if edge_type not in gone:
            return edges
        src, dst = (found.gid[t[edge_type]] for t in (self._graph.src_types, self._graph.dst_types))
        return _where(edges, ~_are_in(self._pair_keys(dst[edges.ends[1]], src[edges.ends[0]]), gone[edge_type]))

    def _pair_keys(self, dst: Tensor, src: Tensor) -> Tensor:
        """A number for each pair of gids."""
        return dst * self._num_nodes + src

    def _end_keys(self, edges: LidEdges) -> Tensor:
        """A number for the ends of each edge, which are lids."""
        return edges.ends[1] * self._num_nodes + edges.ends[0]

    def _edge_keys(self, edges: LidEdges, edge_type: int) -> Tensor:
        """A number for each edge of the batch: an edge of the graph, and for which of its seeds."""
        return edges.ends[1] * self._num_edges[edge_type] + edges.edge_row


def _where(edges: LidEdges, kept: Tensor) -> LidEdges:
    return LidEdges(edges.ends[:, kept], edges.edge_row[kept])


def _joined(pieces: Sequence[LidEdges]) -> LidEdges:
    if len(pieces) == 1:
        return pieces[0]
    ends = torch.cat([each.ends for each in pieces], dim=1)
    return LidEdges(ends, torch.cat([each.edge_row for each in pieces]))


def _are_in(keys: Tensor, others: Tensor) -> Tensor:
    """bool [E]: as `torch.isin`, which sorts both."""
    if not len(others):
        return torch.zeros_like(keys, dtype=torch.bool)
    others = torch.sort(others).values
    return others[torch.searchsorted(others, keys).clamp(max=len(others) - 1)] == keys
