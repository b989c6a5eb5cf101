"""Sampling and relabelling on a CUDA device: single ops, and whole k-hop batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from glt_lightning.ops.cuda import Kernels, raise_if, read
from glt_lightning.ops.cuda_graph import DeviceGraph
from glt_lightning.ops.cuda_native import SPARE_FANOUT

_MODEST_ROOM = 1 << 24  # picks for which room is made without asking how many there are


class _Rows:
    """Rows of one relation: counted when made, then picked.

    gids, uids: int64 [F].  offsets: int64 [F + 1], exclusive scan of the counts; ``offsets[-1:]`` is their total.
    """

    def __init__(
        self, graph: DeviceGraph, relation: int, fanout: int, replace: bool, gids: Tensor, uids: Tensor, error: Tensor
    ):
        self._graph, self.relation, self.fanout, self._replace = graph, relation, fanout, replace
        self._gids, self._uids, self._error = gids, uids, error
        self.counts = graph.kernels.empty(len(gids))
        graph.kernels.run(
            "glt_cuda_count_rows", graph.address, relation, gids, len(gids), fanout, replace, self.counts, error
        )
        self.offsets = graph.kernels.zeros(len(gids) + 1)
        torch.cumsum(self.counts, 0, out=self.offsets[1:])

    @property
    def total(self) -> Tensor:
        return self.offsets[-1:]

    @property
    def bound(self) -> int | None:
        """Most picks there can be, where that is known and modest."""
        bound = len(self._gids) * self.fanout
        return bound if 0 <= bound <= _MODEST_ROOM else None

    def pick(
        self, room: int, batch_key: int, hop: int, first_lid: int, with_edge: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """(neighbours, lids of the rows, edge rows), each int64 [room], of which the first ``total`` are written."""
        kernels = self._graph.kernels
        neighbors, dst = kernels.empty(room), kernels.empty(room)
        edge_rows = kernels.empty(room) if with_edge else None
        spare = kernels.empty(max(1, 2 * room), dtype=torch.int32) if self.fanout > SPARE_FANOUT else None
        kernels.run(
            "glt_cuda_pick_rows",
            self._graph.address,
            self.relation,
            self._gids,
            self._uids,
            len(self._gids),
            self.fanout,
            batch_key,
            hop,
            self._replace,
            self.offsets,
            first_lid,
            neighbors,
            dst,
            edge_rows,
            spare,
            self._error,
        )
        return neighbors, dst, edge_rows


def _rooms(rows: Sequence[_Rows]) -> list[int]:
    """Entries to make room for. The host waits only where fan-outs do not bound them."""
    bounds = [r.bound for r in rows]
    unknown = [r.total for r, bound in zip(rows, bounds, strict=True) if bound is None]
    totals = iter(read(*unknown) if unknown else [])
    return [next(totals) if bound is None else bound for bound in bounds]


class _Lids:
    """gid -> lid for the lists of one batch: the relabel table and its memory."""

    def __init__(self, kernels: Kernels, error: Tensor) -> None:
        self._kernels, self._error = kernels, error
        self._slots, self._table = 0, kernels.empty(0)

    def make_room(self, ids: int, lists: Sequence[Tensor]) -> None:
        """The table will hold ``ids`` ids at most. lists: what it must know, each with lid = position."""
        if 2 * ids <= self._slots:
            return
        self._slots = max(64, 1 << (2 * ids - 1).bit_length())
        self._table = self._kernels.empty(2 * self._slots)
        self._enter(None, 0, True)
        for known in lists:
            self._enter(known, len(known), False)

    def _enter(self, known: Tensor | None, n: int, fresh: bool) -> None:
        self._kernels.run("glt_cuda_relabel_known", known, n, fresh, self._table, self._slots, self._error)

    def number(self, ids: Tensor, count: Tensor, unique: Tensor, num_unique: Tensor) -> Tensor:
        """lids int64 [n] of ids [n], of which the first ``count`` are given; new ids go to ``unique`` and are counted."""
        n, run, table, error = len(ids), self._kernels.run, (self._table, self._slots), self._error
        slot, is_new, lids = self._kernels.empty(n), self._kernels.empty(n, dtype=torch.uint8), self._kernels.empty(n)
        run("glt_cuda_relabel_find", ids, n, count, num_unique, *table, slot, is_new, error)
        rank = torch.cumsum(is_new, 0, dtype=torch.int64)
        new = (unique, len(unique), num_unique)
        run("glt_cuda_relabel_number", ids, n, slot, is_new, rank, *table, *new, lids, error)
        return lids


@dataclass(frozen=True)
class DeviceSubgraph:
    """What a k-hop call found, as `Subgraph`; all tensors are int64 on the device and the caller's to keep."""

    gid: list[Tensor]
    uid: list[Tensor]
    src: list[Tensor]
    dst: list[Tensor]
    edge_row: list[Tensor | None]
    nodes_per_hop: np.ndarray
    edges_per_hop: np.ndarray


class CudaKHopOp:
    """Samples batches from a graph on a device. Keeps nothing between batches, so streams may share it.

    fanouts: [H][R], per hop and edge type; -1 all, 0 none. The host waits for the device once a hop, and once more in a
    hop whose picks are not bounded by its fan-outs.
    """

    def __init__(
        self, graph: DeviceGraph, fanouts: Sequence[Sequence[int]], *, replace: bool = False, with_edge: bool = False
    ) -> None:
        self.graph, self.fanouts, self.replace, self.with_edge = (
            graph,
            [list(hop) for hop in fanouts],
            replace,
            with_edge,
        )

    def __call__(self, seeds: Tensor, seed_type: int, batch_key: int) -> DeviceSubgraph:
        """One batch. seeds: int64 [S] gids of type ``seed_type`` on the device; a seed that comes twice has two rows.

        Raises `DataError` for a seed outside the type, `PartitionError` for damaged rows.
        """
        return self.start(seeds, seed_type, batch_key).result()

    def start(self, seeds: Tensor, seed_type: int, batch_key: int) -> PendingBatch:
        """Queues a batch on the current stream; its ``result`` is asked for later, with the same stream current."""
        batch = PendingBatch(self, self.graph.kernels.require_ids(seeds, "seeds"), seed_type)
        for hop, fanouts in enumerate(self.fanouts):
            batch.expand(hop, fanouts, batch_key)
        return batch


class PendingBatch:
    """A batch in the making: nodes by type, edges by relation, hop after hop."""

    def __init__(self, op: CudaKHopOp, seeds: Tensor, seed_type: int) -> None:
        self._op, self._graph, self._kernels = op, op.graph, op.graph.kernels
        types, relations = range(self._graph.num_types), range(self._graph.num_relations)
        self._error = self._kernels.new_error()
        self._lids = _Lids(self._kernels, self._error)
        self._gid = [seeds.clone() if t == seed_type else self._kernels.empty(0) for t in types]
        self._uid = [self._kernels.empty(len(gid)) for gid in self._gid]
        self._lo, self._hi = [0 for _ in types], [len(gid) for gid in self._gid]  # frontier [lo, hi) per type
        self._counts = self._kernels.zeros(len(types))  # of nodes, on the device: ahead of `hi` while a hop is made
        self._counts[seed_type].fill_(len(seeds))
        self._src, self._dst, self._edge_row = ([[self._kernels.empty(0)] for _ in relations] for _ in range(3))
        self._nodes_per_hop = [list(self._hi)]
        self._edges_per_hop: list[list[int]] = []
        self._look_up([0 for _ in types])

    def expand(self, hop: int, fanouts: Sequence[int], batch_key: int) -> None:
        rows = [self._rows(r, fanout) for r, fanout in enumerate(fanouts) if fanout and self._frontier(r)]
        rooms = _rooms(rows)
        self._make_room(rows, rooms)
        found = []
        for r, room in zip(rows, rooms, strict=True):
            source = self._graph.src_types[r.relation]
            first_lid = self._lo[self._graph.dst_types[r.relation]]
            neighbors, dst, edge_rows = r.pick(room, batch_key, hop, first_lid, self._op.with_edge)
            src = self._lids.number(neighbors, r.total, self._gid[source], self._counts[source : source + 1])
            found.append((src, dst, edge_rows))
        self._look_up(self._hi)
        self._close(rows, found)

    def _frontier(self, relation: int) -> int:
        destination = self._graph.dst_types[relation]
        return self._hi[destination] - self._lo[destination]

    def _rows(self, relation: int, fanout: int) -> _Rows:
        t = self._graph.dst_types[relation]
        gids, uids = (lists[t][self._lo[t] : self._hi[t]] for lists in (self._gid, self._uid))
        return _Rows(self._graph, relation, fanout, self._op.replace, gids, uids, self._error)

    def _make_room(self, rows: Sequence[_Rows], rooms: Sequence[int]) -> None:
        """For all nodes that the hop can find; no type has more new ones than nodes."""
        extra = [0] * self._graph.num_types
        for r, room in zip(rows, rooms, strict=True):
            extra[self._graph.src_types[r.relation]] += room
        known = [gid[:n] for gid, n in zip(self._gid, self._hi, strict=True)]
        for t, size in enumerate(self._graph.type_sizes):
            room = self._hi[t] + min(extra[t], size)
            if room > len(self._gid[t]):
                self._gid[t] = self._longer(self._gid[t], self._hi[t], room)
                self._uid[t] = self._longer(self._uid[t], self._hi[t], room)
        self._lids.make_room(min(sum(map(len, self._gid)), self._graph.num_nodes), known)

    def _longer(self, values: Tensor, n: int, room: int) -> Tensor:
        out = self._kernels.empty(room)
        out[:n].copy_(values[:n])
        return out

    def _look_up(self, begin: Sequence[int]) -> None:
        """User ids of the nodes from ``begin`` (per type) on; how many that are, the device knows."""
        for t, (gid, uid) in enumerate(zip(self._gid, self._uid, strict=True)):
            arguments = (t, gid, begin[t], len(gid), self._counts[t:], uid, self._error)
            self._kernels.run("glt_cuda_user_ids", self._graph.address, *arguments)

    def _close(self, rows: Sequence[_Rows], found: Sequence[tuple[Tensor, Tensor, Tensor | None]]) -> None:
        """Reads the hop's sizes; the nodes it found are the next frontier."""
        values = read(self._error, self._counts, *[r.total for r in rows])
        raise_if(values[:5], "sample")
        nodes, totals = values[5 : 5 + len(self._hi)], values[5 + len(self._hi) :]
        edges = [0] * self._graph.num_relations
        for r, total, (src, dst, edge_rows) in zip(rows, totals, found, strict=True):
            edges[r.relation] = total
            self._src[r.relation].append(src[:total])
            self._dst[r.relation].append(dst[:total])
            if edge_rows is not None:
                self._edge_row[r.relation].append(edge_rows[:total])
        self._lo, self._hi = self._hi, nodes
        self._nodes_per_hop.append([hi - lo for lo, hi in zip(self._lo, self._hi, strict=True)])
        self._edges_per_hop.append(edges)

    def result(self) -> DeviceSubgraph:
        """The batch. Waits for its sizes. Raises as `CudaKHopOp.__call__`."""
        if not self._edges_per_hop:  # no hop has looked at the seeds' errors
            raise_if(read(self._error), "sample")
        with_edge, hops = self._op.with_edge, len(self._edges_per_hop)
        return DeviceSubgraph(
            gid=[gid[:n] for gid, n in zip(self._gid, self._hi, strict=True)],
            uid=[uid[:n] for uid, n in zip(self._uid, self._hi, strict=True)],
            src=[torch.cat(pieces) for pieces in self._src],
            dst=[torch.cat(pieces) for pieces in self._dst],
            edge_row=[torch.cat(pieces) if with_edge else None for pieces in self._edge_row],
            nodes_per_hop=np.array(self._nodes_per_hop, dtype=np.int64).reshape(hops + 1, -1).T,
            edges_per_hop=np.array(self._edges_per_hop, dtype=np.int64).reshape(hops, self._graph.num_relations).T,
        )


def sample_rows(
    graph: DeviceGraph,
    relation: int,
    gids: Tensor,
    fanout: int,
    *,
    batch_key: int,
    hop: int,
    replace: bool = False,
    with_edge: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`ops.sample.sample_rows` on the device: gids int64 [F] there, and so are the results. Waits for the device."""
    kernels = graph.kernels
    gids = kernels.require_ids(gids, "gids")
    error, uids, count = kernels.new_error(), kernels.empty(len(gids)), kernels.zeros(1).fill_(len(gids))
    kernels.run("glt_cuda_user_ids", graph.address, graph.dst_types[relation], gids, 0, len(gids), count, uids, error)
    rows = _Rows(graph, relation, fanout, replace, gids, uids, error)
    (room,) = _rooms([rows])
    neighbors, _, edge_rows = rows.pick(room, batch_key, hop, 0, with_edge)
    *values, total = read(error, rows.total)
    raise_if(values, "sample")
    return rows.counts, neighbors[:total], None if edge_rows is None else edge_rows[:total]


def relabel(ids: Tensor, known: Tensor | None = None, *, kernels: Kernels | None = None) -> tuple[Tensor, Tensor]:
    """`ops.relabel.relabel` on the device of ``ids``; lids are int64. Waits for the device."""
    kernels = kernels or Kernels.open(ids.device)
    ids = kernels.require_ids(ids, "ids")
    known = kernels.empty(0) if known is None else kernels.require_ids(known, "known")
    error, count, num_unique = kernels.new_error(), kernels.zeros(1).fill_(len(ids)), kernels.zeros(1).fill_(len(known))
    unique = torch.cat([known, kernels.empty(len(ids))])
    table = _Lids(kernels, error)
    table.make_room(len(unique), [known])
    lids = table.number(ids, count, unique, num_unique)
    *values, n = read(error, num_unique)
    raise_if(values, "relabel")
    return unique[:n], lids
