"""The native ops on a CUDA device: tensors for memory, the current stream for work, the same results as on the CPU.

Every call goes to the stream that is current when it is made; keep one stream current while a batch is made, and let a
consumer on another stream wait for it. What the device finds wrong (an id outside the graph) is raised with the sizes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from glt_lightning.errors import DataError, NativeError
from glt_lightning.ops.cuda_native import SPARE_FANOUT, cuda_library, error_text
from glt_lightning.ops.graph import GraphView
from glt_lightning.ops.native import CUDA, GraphStruct, check

_COPY_BYTES = 1 << 26  # host memory at a time when a mapped array goes to the device
_MODEST_ROOM = 1 << 24  # picks for which room is made without asking how many there are


class Kernels:
    """The functions of the CUDA library, on one device."""

    def __init__(self, library: ctypes.CDLL, device: torch.device) -> None:
        self._library, self.device = library, device

    @classmethod
    def open(cls, device: torch.device | str) -> Kernels:
        """Raises `NativeError` where the library was not built, there is no driver, or the device is no CUDA device."""
        device = torch.device(device)
        if device.type != "cuda":
            raise NativeError(
                f"device: expected a CUDA device, got {str(device)!r}. The ops of the CPU are in glt_lightning.ops."
            )
        library = cuda_library()
        if not torch.cuda.is_available():
            raise NativeError(
                "this torch cannot use CUDA (torch.cuda.is_available() is False). Install a CUDA build of torch."
            )
        return cls(library, torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index))

    def run(self, name: str, *arguments: Tensor | int | None) -> None:
        """Queues one call. Tensors stand for their memory; detail and stream are added."""
        detail = np.zeros(4, dtype=np.int64)
        values = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
        status = self._launch(getattr(self._library, name), *values, detail.ctypes.data)
        if status == CUDA:
            raise NativeError(f"{name}: {error_text(self._library, int(detail[0]))}.")
        check(status, detail, name)

    def _launch(self, function: Callable[..., int], *values: int | None) -> int:
        with torch.cuda.device(self.device):
            return function(*values, torch.cuda.current_stream().cuda_stream)

    def empty(self, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def zeros(self, n: int) -> Tensor:
        return torch.zeros(n, dtype=torch.int64, device=self.device)

    def new_error(self) -> Tensor:
        """int64 [5]: where kernels leave a status and its detail."""
        return self.zeros(5)

    def copy(self, array: np.ndarray) -> Tensor:
        """A (mapped) array's copy on the device, through a bounded piece of host memory."""
        array = array.view(np.int64) if array.dtype == np.uint64 else array
        out = torch.empty(array.shape, dtype=getattr(torch, array.dtype.name), device=self.device)
        step = max(1, _COPY_BYTES // max(1, array.itemsize))
        for begin in range(0, len(array), step):
            out[begin : begin + step].copy_(torch.from_numpy(array[begin : begin + step].copy()))
        return out

    def require_ids(self, ids: Tensor, name: str) -> Tensor:
        if ids.dtype != torch.int64 or ids.dim() != 1 or ids.device != self.device:
            raise DataError(
                f"{name}: expected int64 [n] on {self.device}, got {str(ids.dtype).removeprefix('torch.')} "
                f"{list(ids.shape)} on {ids.device}."
            )
        return ids.contiguous()


def _kernels(where: Kernels | torch.device | str) -> Kernels:
    return where if isinstance(where, Kernels) else Kernels.open(where)


def _read(*tensors: Tensor) -> list[int]:
    """Values of int64 tensors of one device: the only place where the host waits for it."""
    return torch.cat([t.reshape(-1) for t in tensors]).tolist()


def _raise(error: list[int], what: str) -> None:
    check(error[0], np.array(error[1:]), what)


class DeviceGraph:
    """A typed graph in device memory; a `GraphView` on the other side. Make it with `from_view`."""

    def __init__(self, kernels: Kernels, struct: GraphStruct, keep: Sequence[Tensor | None], view: GraphView) -> None:
        self.kernels, self.struct, self._keep = kernels, struct, keep
        self.address = ctypes.addressof(struct)
        self.num_types, self.num_relations, self.num_nodes = view.num_types, view.num_relations, view.num_nodes
        self.src_types, self.dst_types = view.src_types.tolist(), view.dst_types.tolist()
        self.type_sizes = np.diff(view.type_offsets).tolist()

    @classmethod
    def from_view(cls, view: GraphView, device: Kernels | torch.device | str) -> DeviceGraph:
        """Copies the arrays of the parts that are mapped; takes their bytes of device memory."""
        kernels = _kernels(device)
        relations, user_ids = view._keep
        tensors: list[Tensor] = []

        def put(array: np.ndarray) -> int:
            tensors.append(kernels.copy(array))
            return tensors[-1].data_ptr()

        def table(arrays: Sequence[np.ndarray | None]) -> int:
            return put(np.array([0 if a is None else put(a) for a in arrays], dtype=np.int64))

        struct = GraphStruct(
            num_types=view.num_types,
            num_relations=view.num_relations,
            num_parts=view.num_parts,
            id_bytes=view.id_bytes,
            shift=view.struct.shift,
            bounds=put(view.bounds),
            hint=put(view._hint),
            src_type=put(view.src_types),
            dst_type=put(view.dst_types),
            key=put(view.keys),
            indptr=table([None if r is None else r.indptr for r in relations]),
            indices=table([None if r is None else r.indices for r in relations]),
            user_ids=table(user_ids),
            edge_base=put(view._edge_base),
            num_edges=put(view._num_edges),
        )
        return cls(kernels, struct, tensors, view)


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
    totals = iter(_read(*unknown) if unknown else [])
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
        batch = _Batch(self, self.graph.kernels.require_ids(seeds, "seeds"), seed_type)
        for hop, fanouts in enumerate(self.fanouts):
            batch.expand(hop, fanouts, batch_key)
        return batch.result()


class _Batch:
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
        values = _read(self._error, self._counts, *[r.total for r in rows])
        _raise(values[:5], "sample")
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
        if not self._edges_per_hop:  # no hop has looked at the seeds' errors
            _raise(_read(self._error), "sample")
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
    *values, total = _read(error, rows.total)
    _raise(values, "sample")
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
    *values, n = _read(error, num_unique)
    _raise(values, "relabel")
    return unique[:n], lids


class CudaShards:
    """An array whose rows lie in P shards, stacked in order, in device or pinned memory; `ops.gather.Shards` otherwise.

    shards: P contiguous tensors [rows, ...] of one dtype and one row shape, or None where a shard is not here.
    start: id of the first row.  bounds: int64 [P + 1], needed when a shard is None; else derived.
    """

    def __init__(
        self,
        shards: Sequence[Tensor | None],
        device: Kernels | torch.device | str,
        *,
        start: int = 0,
        bounds: np.ndarray | None = None,
    ) -> None:
        self._kernels, self._keep = _kernels(device), list(shards)
        present = [s for s in shards if s is not None]
        if not present:
            raise DataError("shards: expected at least one shard, got none.")
        first = present[0]
        for s in present:
            self._require(s, first)
        self._dtype, self._row_shape = first.dtype, first.shape[1:]
        self._row_bytes = first.element_size() * first.shape[1:].numel()
        if bounds is None:
            bounds = start + np.cumsum([0, *(len(s) for s in present)])
        self._bounds = self._kernels.copy(np.asarray(bounds, dtype=np.int64))
        self._pointers = self._kernels.copy(
            np.array([0 if s is None else s.data_ptr() for s in shards], dtype=np.int64)
        )
        self._error = self._kernels.new_error()

    def _require(self, shard: Tensor, first: Tensor) -> None:
        if shard.dtype != first.dtype or shard.shape[1:] != first.shape[1:] or not shard.is_contiguous():
            raise DataError(
                f"shards: expected contiguous {first.dtype} rows of shape {list(first.shape[1:])}, got {shard.dtype} rows of "
                f"shape {list(shard.shape[1:])}."
            )
        if shard.numel() and shard.device != self._kernels.device and not shard.is_pinned():
            raise DataError(
                f"shards: expected memory of {self._kernels.device} or pinned memory, got a tensor on {shard.device}."
            )

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Rows ``ids`` (int64 [n]) as [n, ...]; into ``out`` (contiguous) where given. Does not wait: see `check`."""
        ids = self._kernels.require_ids(ids, "ids")
        if out is None:
            out = self._kernels.empty(len(ids), *self._row_shape, dtype=self._dtype)
        arguments = (self._pointers, self._bounds, len(self._keep), self._row_bytes, ids, len(ids), out, self._error)
        self._kernels.run("glt_cuda_gather", *arguments)
        return out

    def check(self) -> None:
        """Waits, and raises `DataError` if any id gathered so far was not in the array; its row was left as it was."""
        _raise(_read(self._error), "gather")
