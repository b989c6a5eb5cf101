"""Sampling rows on a CUDA device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from glt_lightning.ops.cuda.graph import DeviceGraph
from glt_lightning.ops.cuda.kernels import raise_if, read
from glt_lightning.ops.cuda.native import SPARE_FANOUT

MODEST_ROOM = 1 << 24  # picks for which room is made without asking how many there are


class DeviceRowDraw:
    """Rows of one edge type: counted when made, then picked.

    gids, uids: int64 [F].  offsets: int64 [F + 1], exclusive scan of the counts; ``offsets[-1:]`` is their total.
    """

    def __init__(
        self, graph: DeviceGraph, edge_type: int, fanout: int, replace: bool, gids: Tensor, uids: Tensor, error: Tensor
    ):
        self._graph, self.edge_type, self.fanout, self._replace = graph, edge_type, fanout, replace
        self._gids, self._uids, self._error = gids, uids, error
        self.counts = graph.kernels.empty(len(gids))
        graph.kernels.run(
            "glt_cuda_count_rows", graph.address, edge_type, gids, len(gids), fanout, replace, self.counts, error
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
        return bound if 0 <= bound <= MODEST_ROOM else None

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
            self.edge_type,
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


def rooms_of(rows: Sequence[DeviceRowDraw]) -> list[int]:
    """Entries to make room for. The host waits only where fan-outs do not bound them."""
    bounds = [r.bound for r in rows]
    unknown = [r.total for r, bound in zip(rows, bounds, strict=True) if bound is None]
    totals = iter(read(*unknown) if unknown else [])
    return [next(totals) if bound is None else bound for bound in bounds]


def sample_rows(
    graph: DeviceGraph,
    edge_type: int,
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
    kernels.run("glt_cuda_user_ids", graph.address, graph.dst_types[edge_type], gids, 0, len(gids), count, uids, error)
    rows = DeviceRowDraw(graph, edge_type, fanout, replace, gids, uids, error)
    (room,) = rooms_of([rows])
    neighbors, _, edge_rows = rows.pick(room, batch_key, hop, 0, with_edge)
    *values, total = read(error, rows.total)
    raise_if(values, "sample")
    return rows.counts, neighbors[:total], None if edge_rows is None else edge_rows[:total]
