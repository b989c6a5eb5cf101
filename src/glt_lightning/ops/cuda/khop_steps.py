"""A k-hop batch on a CUDA device hop by hop, for those that need it: whose fan-outs do not say how large they can get."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from glt_lightning.ops.cuda.graph import DeviceGraph
from glt_lightning.ops.cuda.kernels import raise_if, read
from glt_lightning.ops.cuda.relabel import DeviceLids
from glt_lightning.ops.cuda.sample import DeviceRows, rooms_of
from glt_lightning.ops.cuda.subgraph import DeviceSubgraph


class SteppedBatch:
    """A batch in the making: nodes by type, edges by relation. The host waits once a hop, and once more in a hop whose
    picks are not bounded by its fan-outs."""

    def __init__(self, graph: DeviceGraph, seeds: Tensor, seed_type: int, *, replace: bool, with_edge: bool) -> None:
        self._graph, self._kernels, self._replace, self._with_edge = graph, graph.kernels, replace, with_edge
        types, relations = range(self._graph.num_types), range(self._graph.num_relations)
        self._error = self._kernels.new_error()
        self._lids = DeviceLids(self._kernels, self._error)
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
        rooms = rooms_of(rows)
        self._make_room(rows, rooms)
        found = []
        for r, room in zip(rows, rooms, strict=True):
            source = self._graph.src_types[r.relation]
            first_lid = self._lo[self._graph.dst_types[r.relation]]
            neighbors, dst, edge_rows = r.pick(room, batch_key, hop, first_lid, self._with_edge)
            src = self._lids.number(neighbors, r.total, self._gid[source], self._counts[source : source + 1])
            found.append((src, dst, edge_rows))
        self._look_up(self._hi)
        self._close(rows, found)

    def _frontier(self, relation: int) -> int:
        destination = self._graph.dst_types[relation]
        return self._hi[destination] - self._lo[destination]

    def _rows(self, relation: int, fanout: int) -> DeviceRows:
        t = self._graph.dst_types[relation]
        gids, uids = (lists[t][self._lo[t] : self._hi[t]] for lists in (self._gid, self._uid))
        return DeviceRows(self._graph, relation, fanout, self._replace, gids, uids, self._error)

    def _make_room(self, rows: Sequence[DeviceRows], rooms: Sequence[int]) -> None:
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

    def _close(self, rows: Sequence[DeviceRows], found: Sequence[tuple[Tensor, Tensor, Tensor | None]]) -> None:
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
        hops = len(self._edges_per_hop)
        return DeviceSubgraph(
            gid=[gid[:n] for gid, n in zip(self._gid, self._hi, strict=True)],
            uid=[uid[:n] for uid, n in zip(self._uid, self._hi, strict=True)],
            edge_index=[torch.cat([*src, *dst]).view(2, -1) for src, dst in zip(self._src, self._dst, strict=True)],
            edge_row=[torch.cat(pieces) if self._with_edge else None for pieces in self._edge_row],
            nodes_per_hop=np.array(self._nodes_per_hop, dtype=np.int64).reshape(hops + 1, -1).T,
            edges_per_hop=np.array(self._edges_per_hop, dtype=np.int64).reshape(hops, self._graph.num_relations).T,
        )
