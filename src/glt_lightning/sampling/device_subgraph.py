"""The edges of a batch beyond the sampled ones, found by a GPU: the twin of `sampling.subgraph`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DataError
from glt_lightning.kernels import Between, DeviceGraph, DeviceLids, DeviceSubgraph, ExcludedEdges, LidEdges
from glt_lightning.sampling.device_remote_edges import RemoteEdges, WantedEdges
from glt_lightning.sampling.request import SamplerConfig
from glt_lightning.sampling.subgraph_task import INDUCED

_Pairs = tuple[Tensor, Tensor]  # gids of destinations, of sources


class DeviceEdgeFinder:
    """Finds the further edges of batches of one loader.

    graph: the graph with the weights of ``config``.  num_edges: [R], numbers of edges of the whole graph.  remote: finds the
    edges of rows that are not mapped; None: all are mapped.
    """

    def __init__(
        self,
        graph: DeviceGraph,
        config: SamplerConfig,
        num_edges: Sequence[int],
        remote: RemoteEdges | None = None,
    ) -> None:
        self._graph, self._config, self._num_edges, self._remote = graph, config, list(num_edges), remote
        self._kernels, self._num_nodes = graph.kernels, graph.num_nodes
        self._unweighted = graph.drawn_by(sums=False, labor=False)

    def complete(self, found: DeviceSubgraph, excluded: ExcludedEdges | None) -> DeviceSubgraph:
        """Adds the edges of ``config.subgraph`` to a batch. Waits for the device twice, and also for the numbers of edges of the
        other direction, of excluded edges and of remote rows. Raises as `sampling.subgraph.complete_edges`, and `DataError` if
        the pairs of the batch's and the graph's nodes do not fit into 63 bits."""
        task = self._config.subgraph
        assert task is not None
        pairs = {} if excluded is None else excluded.pairs
        wide = {r: (dst.astype(np.int64), src.astype(np.int64)) for r, (dst, src) in pairs.items()}
        gone = {r: (self._kernels.put(dst), self._kernels.put(src)) for r, (dst, src) in wide.items()}
        if task.kind == INDUCED:
            edges = self._induced(found, gone)
            rows = self._numbers([each.edge_row for each in edges])
            return replace(found, edge_index=[each.ends for each in edges], edge_row=[*rows])
        sampled = self._sampled(found)
        added, copies = self._reverse(found, sampled, gone)
        edges = [LidEdges.joined(each) for each in zip(sampled, added, copies, strict=True)]
        new = self._numbers([torch.cat([a.edge_row, c.edge_row]) for a, c in zip(added, copies, strict=True)])
        old = [row for row in found.edge_row if row is not None]
        flipped = [
            np.arange(len(each.edge_row)) >= len(each.edge_row) - len(c.edge_row)
            for each, c in zip(edges, copies, strict=True)
        ]
        return replace(
            found,
            edge_index=[each.ends for each in edges],
            edge_row=[torch.cat(both) for both in zip(old, new, strict=True)],
            flipped=flipped,
        )

    def _numbers(self, rows: list[Tensor]) -> list[Tensor]:
        """Returns the places of the rows of new edges. rows: edge rows by edge type."""
        return rows if self._remote is None else self._remote.numbered(rows)

    def _sampled(self, found: DeviceSubgraph) -> list[LidEdges]:
        """Returns the sampled edges, with edge rows of the whole graph."""
        sampled = []
        for r, (index, row) in enumerate(zip(found.edge_index, found.edge_row, strict=True)):
            assert row is not None, "batches with edges of the other direction are sampled with edge rows"
            sampled.append(LidEdges(index, row if self._remote is None else self._remote.rows_of(r, row)))
        return sampled

    def _find(self, asked: Sequence[WantedEdges], *, weighted: bool = True) -> list[LidEdges]:
        if self._remote is not None:
            return self._remote.between(asked, weighted=weighted)
        return LidEdges.between([each.between for each in asked], require_room=self._config.require_room)

    def _induced(self, found: DeviceSubgraph, gone: Mapping[int, _Pairs]) -> list[LidEdges]:
        """Finds for each edge type all edges among the nodes of a batch, in the order of destinations and stored rows."""
        task, graph = self._config.subgraph, self._graph
        assert task is not None
        bases: list[Tensor | None] = [None for _ in found.gid]
        if found.tree is not None:
            bases = [tree * self._num_nodes for tree in found.tree]
        keys = [gid if base is None else gid + base for gid, base in zip(found.gid, bases, strict=True)]
        known = self._known(keys)
        asked = [
            WantedEdges(Between(graph, r, found.gid[dst], known, bases[dst], task.limit), keys[src], found.gid[src])
            for r, (src, dst) in enumerate(zip(graph.src_types, graph.dst_types, strict=True))
        ]
        return [self._without(each, r, found, gone) for r, each in enumerate(self._find(asked))]

    def _reverse(
        self, found: DeviceSubgraph, sampled: Sequence[LidEdges], gone: Mapping[int, _Pairs]
    ) -> tuple[list[LidEdges], list[LidEdges]]:
        """Finds for each edge type the stored edges of the other direction that were not sampled, and within one edge type
        flipped copies of the sampled edges that are not stored in the other direction."""
        task = self._config.subgraph
        assert task is not None
        own, dst_types = self._own(found), self._graph.dst_types
        pieces: dict[int, list[LidEdges]] = {}  # by the edge type of the other direction
        for r, other in enumerate(task.reverse):
            if other >= 0 and len(sampled[r].edge_row):
                dst = sampled[r].ends[1]
                kept = sampled[r].where(own[dst_types[r]][dst] == dst)
                pieces.setdefault(other, []).append(LidEdges(kept.ends.flip(0), kept.edge_row))
        flipped = {r: LidEdges.joined(each) for r, each in pieces.items()}
        stored = self._stored(flipped, found)
        anyhow = stored  # with edges of weight 0, if there are weights: they are stored, so they need no flipped copy
        if any(self._config.weights):
            anyhow = self._stored(
                {r: each for r, each in flipped.items() if task.reverse[r] == r}, found, weighted=False
            )
        added, copies = ([each.where(slice(0)) for each in sampled] for _ in range(2))
        for r, each in stored.items():
            new = each.where(
                ~_are_in(*(self._edge_keys(some, r, len(own[dst_types[r]])) for some in (each, sampled[r])))
            )
            added[r] = self._without(new, r, found, gone)
            if task.reverse[r] == r:
                nodes = len(found.gid[self._graph.src_types[r]])
                missing = ~_are_in(_end_keys(flipped[r], nodes), _end_keys(anyhow[r], nodes))
                copies[r] = self._without(flipped[r].where(missing), r, found, gone)
        return added, copies

    def _stored(
        self, pairs: Mapping[int, LidEdges], found: DeviceSubgraph, *, weighted: bool = True
    ) -> dict[int, LidEdges]:
        """Finds, by edge type, the stored edges with the same ends as one of ``pairs``."""
        task, graph = self._config.subgraph, self._graph if weighted else self._unweighted
        assert task is not None
        asked, lids = [], []
        for r, each in pairs.items():
            src, dst = (found.gid[t[r]] for t in (graph.src_types, graph.dst_types))
            lids.append(torch.unique(each.ends[1]))
            sources = src[each.ends[0]]
            keys = self._product(each.ends[1], len(dst)) + sources
            bases = self._product(lids[-1], len(dst))
            between = Between(graph, r, dst[lids[-1]], self._known([keys]), bases, task.limit)
            asked.append(WantedEdges(between, keys, sources))
        answers = self._find(asked, weighted=weighted)
        return {
            r: LidEdges(torch.stack([each.ends[0][a.ends[0]], rows[a.ends[1]]]), a.edge_row)
            for (r, each), rows, a in zip(pairs.items(), lids, answers, strict=True)
        }

    def _own(self, found: DeviceSubgraph) -> list[Tensor]:
        """Returns per node type int64 [N], the lid of each node as the source of edges. It differs from the node's own for a seed
        that comes twice."""
        trees: Sequence[Tensor | int] = found.tree or [0 for _ in found.gid]
        own = []
        for gid, tree in zip(found.gid, trees, strict=True):
            ids, number = torch.unique(gid + tree * self._num_nodes, return_inverse=True)
            lids = torch.arange(len(gid), device=gid.device)
            own.append(lids.new_full((len(ids),), len(gid)).scatter_reduce(0, number, lids, "amin")[number])
        return own

    def _known(self, ids: Sequence[Tensor]) -> DeviceLids:
        error = self._kernels.new_error()  # not read: the table has space for all ids of a batch, so none can fail
        return DeviceLids.of(ids, self._kernels, error)

    def _without(self, edges: LidEdges, edge_type: int, found: DeviceSubgraph, gone: Mapping[int, _Pairs]) -> LidEdges:
        """Removes the edges between pairs of gids. gone: (destinations, sources) by edge type."""
        if edge_type not in gone or not len(gone[edge_type][0]):
            return edges
        src, dst = (found.gid[t[edge_type]] for t in (self._graph.src_types, self._graph.dst_types))
        known = torch.unique(gone[edge_type][0])
        number, theirs = (torch.searchsorted(known, ids).clamp(max=len(known) - 1) for ids in (dst, gone[edge_type][0]))
        keys = self._product(number, len(known))[edges.ends[1]] + src[edges.ends[0]]
        is_known = (known[number] == dst)[edges.ends[1]]
        others = self._product(theirs, len(known)) + gone[edge_type][1]
        return edges.where(~(is_known & _are_in(keys, others)))

    def _product(self, numbers: Tensor, count: int, width: int | None = None) -> Tensor:
        """Returns ``numbers * width``: added to a number below ``width``, it makes a unique number of each pair. numbers: below
        ``count``.  width: None: the number of gids. Raises `DataError` if pairs need more than 63 bits."""
        width = self._num_nodes if width is None else width
        if count * width >= 2**63:
            raise DataError(
                f"subgraph_type: {count} nodes of a batch make more than 2^63 pairs with {width} nodes or edges of the graph. "
                "Use a smaller batch_size or fan-out, or sample on the CPU."
            )
        return numbers * width

    def _edge_keys(self, edges: LidEdges, edge_type: int, count: int) -> Tensor:
        """Returns a number for each edge of the batch, unique for its destination's lid and its edge row."""
        return self._product(edges.ends[1], count, self._num_edges[edge_type]) + edges.edge_row


def _end_keys(edges: LidEdges, num_sources: int) -> Tensor:
    """Returns a number for each edge, unique for the lids of its ends."""
    return edges.ends[1] * num_sources + edges.ends[0]


def _are_in(keys: Tensor, others: Tensor) -> Tensor:
    """Returns the same as `torch.isin`, bool [E], but sorts ``others`` alone."""
    if not len(others):
        return torch.zeros_like(keys, dtype=torch.bool)
    others = torch.sort(others).values
    return others[torch.searchsorted(others, keys).clamp(max=len(others) - 1)] == keys
