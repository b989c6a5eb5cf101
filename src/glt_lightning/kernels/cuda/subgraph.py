"""The result of a k-hop batch on a device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from glt_lightning.kernels.cuda.graph import DeviceGraph
from glt_lightning.kernels.cuda.relabel import DeviceLids
from glt_lightning.kernels.cuda.stream import Kernels, raise_if
from glt_lightning.kernels.excluded import ExcludedEntries, ExcludedStruct
from glt_lightning.kernels.induced import NO_LIMIT, refuse_row
from glt_lightning.kernels.native import BAD_ARG

# The stored edges between the nodes of a batch, on a CUDA device.


@dataclass(frozen=True)
class Between:
    """A query for the edges of an edge type into ``rows`` from the sources in ``known``.

    rows: int64 [n] gids of destinations.  bases: int64 [n]; the key of a source of a row in ``known`` is the row's base + the
    gid; None: the gid.  limit: rows with more entries are refused; None: no limit.  graph: with or without weights of edges.
    """

    graph: DeviceGraph
    edge_type: int
    rows: Tensor
    known: DeviceLids
    bases: Tensor | None = None
    limit: int | None = None


@dataclass(frozen=True)
class LidEdges:
    """Edges by lid, in the order of rows and their entries. ends: int64 [2, E], lids of the sources in `Between.known`, and
    numbers of the rows.  edge_row: int64 [E]."""

    ENTRY_BYTES: ClassVar[int] = 24  # of an edge that is found, in memory

    ends: Tensor
    edge_row: Tensor

    @classmethod
    def between(
        cls, asked: Sequence[Between], *, require_room: Callable[[int], None] = lambda nbytes: None
    ) -> list[LidEdges]:
        """Finds the edges of each query, on the current stream; leaves out edges of weight 0 if the graph has weights.

        The host waits twice, for the number of pieces in which rows are read and for the number of edges. Raises as
        `Among.find`; of several faults any one.
        """
        if not asked:
            return []
        kernels, error = asked[0].graph.kernels, asked[0].graph.kernels.new_error()
        scans = []
        for each in asked:
            scan = kernels.zeros(len(each.rows) + 1)
            limit = NO_LIMIT if each.limit is None else each.limit
            rows = (each.graph.address, each.edge_type, each.rows, len(each.rows), limit)
            kernels.run("glt_cuda_induce_pieces", *rows, scan[1:], error)
            scans.append(torch.cumsum(scan, 0))
        status, *rest = Kernels.read(error, *(scan[-1:] for scan in scans))
        if status == BAD_ARG:
            _, gid, entries, edge_type = rest[:4]
            refuse_row(gid, entries, edge_type, asked[0].limit)
        raise_if([status, *rest[:4]], "induce")
        pieces = [_Pieces(each, scan, n) for each, scan, n in zip(asked, scans, rest[4:], strict=True)]
        totals = Kernels.read(*(each.to[-1:] for each in pieces))
        require_room(sum(totals) * cls.ENTRY_BYTES)
        return [each.edges(total) for each, total in zip(pieces, totals, strict=True)]

    @classmethod
    def joined(cls, pieces: Sequence[LidEdges]) -> LidEdges:
        ends = torch.cat([each.ends for each in pieces], dim=1)
        return cls(ends, torch.cat([each.edge_row for each in pieces]))

    def where(self, kept: Tensor | slice) -> LidEdges:
        """Returns some of the edges: kept bool [E] or int64, their positions."""
        return LidEdges(self.ends[:, kept], self.edge_row[kept])


class _Pieces:
    """The pieces in which rows are read, and their numbers of edges. first: int64 [n + 1], the first piece of each row."""

    def __init__(self, asked: Between, first: Tensor, count: int) -> None:
        self._kernels = asked.graph.kernels
        rows = (asked.graph.address, asked.edge_type, asked.rows, asked.bases, first, len(asked.rows))
        self._asked = (*rows, count, *asked.known.arguments)
        self._keep = asked, first  # keeps them alive: queued kernels read their memory
        self._wanted, counts = self._kernels.empty(count, dtype=torch.int32), self._kernels.zeros(count + 1)
        self._kernels.run("glt_cuda_induce_find", *self._asked, self._wanted, counts[1:])
        self.to = torch.cumsum(counts, 0)

    def edges(self, total: int) -> LidEdges:
        ends, edge_row = self._kernels.empty(2, total), self._kernels.empty(total)
        self._kernels.run("glt_cuda_induce_write", *self._asked, self._wanted, self.to, ends[0], ends[1], edge_row)
        return LidEdges(ends, edge_row)


@dataclass(frozen=True)
class DeviceSubgraph:
    """The nodes and edges of a k-hop batch on a device: the twin of `Subgraph`. T node types, R edge types, H hops.

    Tensors are int64 on the device and belong to the caller: by type ``gid`` and ``uid`` [nodes], by edge type ``edge_index``
    [2, edges] (lids of sources, of destinations) and ``edge_row`` [edges] or None. They may be the beginning of a longer piece
    of memory.
    nodes_per_hop: int64 [T, H + 1].  edges_per_hop: int64 [R, H]. Both on the host.
    remote: by type, the lids of remote nodes in the order of hops, whose ``uid`` are not filled in; the ``edge_row`` of remote
    edges are numbers from the end of the edge rows on. None if the whole graph is local.
    tree: by type int64 [nodes], in a disjoint batch.  flipped: as `Subgraph.flipped`, on the host.
    """

    gid: list[Tensor]
    uid: list[Tensor]
    edge_index: list[Tensor]
    edge_row: list[Tensor | None]
    nodes_per_hop: np.ndarray
    edges_per_hop: np.ndarray
    remote: list[Tensor] | None = None
    tree: list[Tensor] | None = None
    flipped: list[np.ndarray] | None = None

    @property
    def src(self) -> list[Tensor]:
        return [e[0] for e in self.edge_index]

    @property
    def dst(self) -> list[Tensor]:
        return [e[1] for e in self.edge_index]


class PendingBatch(Protocol):
    """A batch whose work is queued on a device."""

    def result(self) -> DeviceSubgraph:
        """Returns the batch. Waits for its sizes. Raises as `CudaKHopOp.__call__`."""


# Entries of rows that are not there, in a device's memory.


class DeviceExcluded:
    """The `kernels.excluded.ExcludedEntries` by edge type, copied for the current stream, for calls that are queued on it while
    this object lives."""

    def __init__(self, excluded: Mapping[int, ExcludedEntries], num_edge_types: int, kernels: Kernels) -> None:
        self._arrays: list[Tensor] = []
        self._kernels = kernels
        self._table = (ExcludedStruct * num_edge_types)()
        for r, entries in excluded.items():
            arrays = [kernels.put(values) for values in (entries.gids, entries.begin, entries.positions)]
            self._table[r] = ExcludedStruct(len(entries.gids), *(each.data_ptr() for each in arrays))
            self._arrays += arrays

    @cached_property
    def table(self) -> Tensor:
        """The structs of all edge types in the device's memory."""
        return self._kernels.put(np.frombuffer(self._table, dtype=np.int64))

    def address(self, edge_type: int = 0) -> int:
        """Returns the address of the struct of an edge type; that of the first is also the address of the table."""
        return ctypes.addressof(self._table[edge_type])
