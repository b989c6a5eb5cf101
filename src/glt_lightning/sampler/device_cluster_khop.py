"""The k-hop loop on a device that has some parts of the graph, with the picks of others merged in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from glt_lightning.ops.cuda.graph import DeviceGraph
from glt_lightning.ops.cuda.kernels import Kernels, raise_if
from glt_lightning.ops.cuda.khop_batch import SentHome
from glt_lightning.ops.cuda.merge import Merged, PartsElsewhere, Piece, merge
from glt_lightning.ops.cuda.relabel import DeviceLids
from glt_lightning.ops.cuda.sample import DeviceRows, rooms_of
from glt_lightning.sampler.foreign import ForeignPicks
from glt_lightning.sampler.request import BatchRequest, SamplerConfig

# Foreign nodes of one type that are read together with a hop's sizes; a hop that finds more waits twice.
_READ_WITH_SIZES = 1 << 16


@dataclass(frozen=True)
class Frontier:
    """New nodes of one type. All tensors are int64 on the device.

    first: lid of the first.  local, foreign: their positions behind that.  gids, uids: of the local ones.
    foreign_gids: on the host.
    """

    first: int
    local: Tensor
    foreign: Tensor
    gids: Tensor
    uids: Tensor
    foreign_gids: np.ndarray

    def __len__(self) -> int:
        return len(self.local) + len(self.foreign)


class ClusterHops:
    """One batch in the making: a hop at a time, on the stream that is current. The host waits for the device once a hop,
    and once more where fan-outs do not bound the picks, or a hop finds very many foreign nodes.

    elsewhere: per node type.  edge_ends: per edge type, the first number behind its edge rows.  foreign_seeds: bool [S].

    Attributes:
        frontiers: The seeds and the new nodes of each hop, per node type.
        nodes_per_hop, edges_per_hop: Per hop, the seeds being the first for nodes, and type.
    """

    def __init__(
        self,
        graph: DeviceGraph,
        config: SamplerConfig,
        elsewhere: Sequence[PartsElsewhere],
        edge_ends: Sequence[int],
        request: BatchRequest,
        foreign_seeds: np.ndarray,
    ) -> None:
        kernels = graph.kernels
        self._graph, self._kernels, self._config, self._key = graph, kernels, config, request.key
        self._elsewhere, self._edge_ends = elsewhere, edge_ends
        types, relations = range(graph.num_types), range(graph.num_relations)
        self._error = kernels.new_error()
        self._lids = DeviceLids(kernels, self._error)
        seeds = kernels.put(request.seeds)
        self._gid = [seeds if t == config.seed_type else kernels.empty(0) for t in types]
        self._num_nodes = [len(gid) for gid in self._gid]
        self._counts = kernels.put(
            np.array(self._num_nodes)
        )  # on the device: ahead of `_num_nodes` while a hop is made
        self._edge_index: list[list[Tensor]] = [[kernels.empty(2, 0)] for _ in relations]
        self._edge_places: list[list[Tensor]] = [[kernels.empty(0)] for _ in relations]
        self.nodes_per_hop: list[list[int]] = []
        self.edges_per_hop: list[list[int]] = []
        self.frontiers: list[list[Frontier]] = []
        order = kernels.put(np.argsort(~foreign_seeds, kind="stable"))
        self._begin([0 for _ in types], {config.seed_type: (order, request.seeds[foreign_seeds])})

    def _begin(self, first: Sequence[int], found: Mapping[int, tuple[Tensor, np.ndarray]]) -> None:
        """The next frontier: the nodes from ``first`` (per type) on. found: type -> the order that `PartsElsewhere` gave,
        and the foreign gids."""
        frontier = []
        nothing = self._kernels.empty(0), np.empty(0, dtype=np.int64)
        for t, (begin, end) in enumerate(zip(first, self._num_nodes, strict=True)):
            order, foreign_gids = found.get(t, nothing)
            foreign, local = order[: len(foreign_gids)], order[len(foreign_gids) : end - begin]
            gids = self._gid[t][begin:end].index_select(0, local)
            uids = self._kernels.empty(len(gids))
            arguments = (t, gids, 0, len(gids), self._counts[t:], uids, self._error)  # no more than the type has by now
            self._kernels.run("glt_cuda_user_ids", self._graph.address, *arguments)
            frontier.append(Frontier(begin, local, foreign, gids, uids, foreign_gids))
        self.frontiers.append(frontier)
        self.nodes_per_hop.append([len(each) for each in frontier])

    @property
    def foreign_gids(self) -> list[np.ndarray]:
        """Of the newest nodes, per type."""
        return [frontier.foreign_gids for frontier in self.frontiers[-1]]

    def expand(self, hop: int, picks_of_others: Callable[[], Mapping[int, ForeignPicks]]) -> None:
        """Samples a hop. picks_of_others: waits for those of the foreign nodes of the frontier."""
        counted = [self._count(r, fanout) for r, fanout in enumerate(self._config.fanouts[hop])]
        rows = [each for each in counted if each is not None]
        pieces = {each.relation: [self._pick(each, room, hop)] for each, room in zip(rows, rooms_of(rows), strict=True)}
        for r, picks in picks_of_others().items():
            pieces.setdefault(r, []).append(self._piece(r, picks))
        bounds = self._make_room(pieces)
        found = {}
        for r in sorted(pieces):
            source = self._graph.src_types[r]
            merged = merge(len(self._frontier(r)), pieces[r])
            unique = (self._gid[source], self._counts[source : source + 1])
            found[r] = merged, self._lids.number(merged.neighbors, merged.total, *unique)
        self._close(bounds, found)

    def _frontier(self, relation: int) -> Frontier:
        return self.frontiers[-1][self._graph.dst_types[relation]]

    def _count(self, relation: int, fanout: int) -> DeviceRows | None:
        frontier = self._frontier(relation)
        if not fanout or not len(frontier.gids):
            return None
        replace = self._config.replace
        return DeviceRows(self._graph, relation, fanout, replace, frontier.gids, frontier.uids, self._error)

    def _pick(self, rows: DeviceRows, room: int, hop: int) -> Piece:
        neighbors, row, edge_rows = rows.pick(room, self._key, hop, 0, self._config.with_edge)
        return Piece(self._frontier(rows.relation).local, rows.counts, neighbors, row, edge_rows)

    def _piece(self, relation: int, picks: ForeignPicks) -> Piece:
        """The picks of others, on the device; their edges have numbers behind the edge rows."""
        rows, counts, neighbors = (self._send(values) for values in (picks.rows, picks.counts, picks.neighbors))
        edges, device = None, self._kernels.device
        row = torch.repeat_interleave(counts, output_size=len(neighbors))
        if self._config.with_edge:
            first = self._edge_ends[relation] + picks.first_edge
            edges = torch.arange(first, first + len(neighbors), device=device)
        return Piece(self._frontier(relation).foreign.index_select(0, rows), counts, neighbors, row, edges)

    def _send(self, values: np.ndarray) -> Tensor:
        """int64 on the device; they travel as narrow as they are."""
        return self._kernels.put(values).to(torch.int64)

    def _make_room(self, pieces: Mapping[int, Sequence[Piece]]) -> list[int]:
        """For all nodes that the hop can find, of which the most per type are returned; no type has more new ones than
        nodes."""
        graph = self._graph
        extra = [0] * graph.num_types
        for r, each in pieces.items():
            extra[graph.src_types[r]] += sum(len(piece.neighbors) for piece in each)
        bounds = [min(more, size) for more, size in zip(extra, graph.type_sizes, strict=True)]
        known = [gid[:n] for gid, n in zip(self._gid, self._num_nodes, strict=True)]
        for t, (gids, more) in enumerate(zip(known, bounds, strict=True)):
            if len(gids) + more > len(self._gid[t]):
                self._gid[t] = torch.cat([gids, self._kernels.empty(more)])
        self._lids.make_room(min(sum(map(len, self._gid)), graph.num_nodes), known)
        return bounds

    def _close(self, bounds: Sequence[int], found: Mapping[int, tuple[Merged, Tensor]]) -> None:
        """Reads the hop's sizes, and which of the nodes it found are foreign; these nodes are the next frontier."""
        before = self._num_nodes
        grown = {t: self._gid[t][before[t] : before[t] + more] for t, more in enumerate(bounds) if more}
        splits = {t: self._elsewhere[t].split(gids, self._counts[t] - before[t]) for t, gids in grown.items()}
        heads = [gids.index_select(0, splits[t][0][:_READ_WITH_SIZES]) for t, gids in grown.items()]
        error, counts, totals, foreign, *ids = _read(
            self._kernels,
            self._error,
            self._counts,
            torch.cat([self._error[:0], *(merged.total for merged, _ in found.values())]),
            torch.cat([self._error[:0], *(number for _, number in splits.values())]),
            *heads,
        )
        raise_if(error.tolist(), "sample")
        self._num_nodes, new = counts.tolist(), {}
        for t, k, head in zip(grown, foreign.tolist(), ids, strict=True):
            order = splits[t][0]
            gids = head[:k]
            if k > len(head):
                gids = np.concatenate([head, *_read(self._kernels, grown[t].index_select(0, order[len(head) : k]))])
            new[t] = order, gids
        edges = [0] * self._graph.num_relations
        for (r, (merged, src)), total in zip(found.items(), totals.tolist(), strict=True):
            edges[r] = total
            dst = merged.row[:total] + self._frontier(r).first
            self._edge_index[r].append(torch.stack([src[:total], dst]))
            if merged.edges is not None:
                self._edge_places[r].append(merged.edges[:total])
        self.edges_per_hop.append(edges)
        self._begin(before, new)

    @property
    def gid(self) -> list[Tensor]:
        """int64 [N] per node type."""
        return [gid[:n] for gid, n in zip(self._gid, self._num_nodes, strict=True)]

    def edge_index(self, relation: int) -> Tensor:
        """int64 [2, E]."""
        return torch.cat(self._edge_index[relation], dim=1)

    def edge_places(self, relation: int) -> Tensor:
        """int64 [E], with edges: the edge row, or for what others picked its number among these, from ``edge_ends`` on."""
        return torch.cat(self._edge_places[relation])


def _read(kernels: Kernels, *tensors: Tensor) -> list[np.ndarray]:
    """Their values; waits."""
    values = SentHome(torch.cat(tensors), kernels).wait()
    return np.split(values, np.cumsum([len(each) for each in tensors])[:-1])
