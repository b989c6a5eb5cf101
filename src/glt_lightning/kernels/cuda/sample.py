"""Samples rows on a CUDA device."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from glt_lightning.base import DrawOptions
from glt_lightning.kernels.cuda.graph import DeviceGraph
from glt_lightning.kernels.cuda.native import SPARE_FANOUT
from glt_lightning.kernels.cuda.stream import Kernels
from glt_lightning.kernels.cuda.subgraph import DeviceExcluded

MODEST_ROOM = (
    1 << 24
)  # picks (128 MiB) up to which memory is allocated by the bound, to save waiting for the exact number


class DeviceRowDraw:
    """The draw for rows of one edge type: the constructor counts the picks, `pick` draws them.

    gids, uids: int64 [F].  offsets: int64 [F + 1], exclusive scan of the counts; ``offsets[-1:]`` is their total.
    excluded: entries of rows to leave out.  trees: the struct of `DeviceTrees`, in a disjoint batch.
    """

    def __init__(
        self,
        graph: DeviceGraph,
        edge_type: int,
        fanout: int,
        draw: DrawOptions,
        gids: Tensor,
        uids: Tensor,
        error: Tensor,
        excluded: DeviceExcluded | None = None,
        trees: ctypes.Structure | None = None,
    ):
        self._graph, self.edge_type, self.fanout, self._draw = graph, edge_type, fanout, draw
        self._gids, self._uids, self._error = gids, uids, error
        self._excluded, self._trees = excluded, trees
        self._trees_address = None if trees is None else ctypes.addressof(trees)
        self.counts = graph.kernels.empty(len(gids))
        rows = (edge_type, gids, len(gids), fanout, draw.replace, self._excluded_address, self._trees_address)
        graph.kernels.run("glt_cuda_count_rows", graph.address, *rows, self.counts, error)
        self.offsets = graph.kernels.zeros(len(gids) + 1)
        torch.cumsum(self.counts, 0, out=self.offsets[1:])

    @property
    def _excluded_address(self) -> int | None:
        return None if self._excluded is None else self._excluded.address(self.edge_type)

    @property
    def total(self) -> Tensor:
        return self.offsets[-1:]

    @property
    def bound(self) -> int | None:
        """The largest possible number of picks; None if fan-outs do not bound it, or it is too large to reserve memory for it."""
        bound = len(self._gids) * self.fanout
        return bound if 0 <= bound <= MODEST_ROOM else None

    def pick(self, room: int, batch_key: int, hop: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Draws. Returns (neighbours, numbers of the rows, edge rows or None), each int64 [room], of which the first ``total``
        are written."""
        kernels = self._graph.kernels
        neighbors, dst = kernels.empty(room), kernels.empty(room)
        edge_rows = kernels.empty(room) if self._draw.with_edge else None
        spare = kernels.empty(max(1, 3 * room), dtype=torch.int32) if self.fanout > SPARE_FANOUT else None
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
            self._draw.replace,
            self._excluded_address,
            self._trees_address,
            self.offsets,
            0,  # number of the first row
            neighbors,
            dst,
            edge_rows,
            spare,
            self._error,
        )
        return neighbors, dst, edge_rows


def rooms_of(rows: Sequence[DeviceRowDraw]) -> list[int]:
    """Returns the numbers of entries to allocate. The host waits only if fan-outs do not bound them."""
    bounds = [r.bound for r in rows]
    unknown = [r.total for r, bound in zip(rows, bounds, strict=True) if bound is None]
    totals = iter(Kernels.read(*unknown) if unknown else [])
    return [next(totals) if bound is None else bound for bound in bounds]
