"""Gathers rows of a sharded array."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from glt_lightning.base import DataError, PartitionError
from glt_lightning.kernels.build import Encoding
from glt_lightning.kernels.disk import DiskFile, DiskRead, DiskRows, ReadSlots
from glt_lightning.kernels.native import BAD_ARG, I32, I64, P, Signatures, bind, call, check, library, pointers

OnDisk = Callable[[DiskRead], object]

_SIGNATURES: Signatures = {
    "glt_copy_runs": [P, I64, I64, P, P, P, I64, P, I64, P],
    "glt_gather_decode": [P, P, I32, I32, I64, P, I64, P, I32, P],
    "glt_search": [P, I64, P, P, P, P, P, P, I64, P, P],
    "glt_gather_sum": [P, P, I32, I32, I64, P, I64, P, P, I64, I64, I32, P, I32, P],
}

_library = bind(_SIGNATURES)


class _ShardsStruct(ctypes.Structure):
    """``glt_shards`` of ``glt/api.h``."""

    _fields_ = [("shards", P), ("bounds", P), ("num_shards", I32), ("bytes", I32)]


FLOAT32 = 0  # how values are stored that need no encoding, in glt/gather_sum.h


class Shards:
    """An array whose rows lie in P shards, stacked in order.

    shards: P C-contiguous arrays [rows, ...] of one dtype and one row shape, or None for a shard that is not local.
    start: id of the first row of the first shard.
    bounds: int64 [P + 1], needed if a shard is None; else derived.
    encoding: the encoding of the stored values, which a gather decodes to float32. None: values are stored unchanged.

    Attributes:
        dtype, row_shape: Dtype and row shape that a gather returns.
        stored_dtype, stored_row_shape, row_bytes: Dtype, row shape and bytes per row of the shards, before decoding.
        on_disk: Some rows lie in files, from which a gather reads them.
    """

    on_disk = False

    def __init__(
        self,
        shards: Sequence[np.ndarray | None],
        *,
        start: int = 0,
        bounds: np.ndarray | None = None,
        encoding: Encoding | None = None,
    ) -> None:
        present = [s for s in shards if s is not None]
        if not present:
            raise DataError("shards: expected at least one local shard, got none.")
        if bounds is None:
            bounds = start + np.cumsum([0, *(len(s) for s in shards if s is not None)])
        first = present[0]
        for s in present:
            if s.dtype != first.dtype or s.shape[1:] != first.shape[1:] or not s.flags.c_contiguous:
                raise DataError(
                    f"shards: expected C-contiguous {first.dtype} rows of shape {first.shape[1:]}, "
                    f"got {s.dtype} rows of shape {s.shape[1:]}."
                )
        self.stored_dtype, self.stored_row_shape = first.dtype, first.shape[1:]
        self.dtype, self.row_shape = first.dtype, first.shape[1:]
        if encoding is not None:
            self._require_stored_as(encoding)
            self.dtype, self.row_shape = np.dtype(np.float32), encoding.row_shape(self.stored_row_shape)
        self.row_bytes = row_bytes(first.dtype, self.stored_row_shape)
        self.bounds = np.ascontiguousarray(bounds, dtype=np.int64)
        self._encoding = encoding
        self._keep = list(shards)
        self._few = self._as_few(pointers(self._keep))
        self._table = (*(each.ctypes.data for each in self._few), len(self._few[0]))

    def _as_few(self, begin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pointers and bounds for native calls. begin: the pointers of all shards.

        Each shard makes the search of every row longer: empty ones are left out, and those that lie one behind the other in
        memory, as parts of an overlay do, are one. With 8 instead of 4, a batch took 1.05 of the time."""
        counts = np.diff(self.bounds)
        found = np.flatnonzero(counts) if counts.any() else np.zeros(1, np.int64)
        begin, end = begin[found], begin[found] + (counts[found] * self.row_bytes).astype(begin.dtype)
        apart = np.append(True, (begin[1:] != end[:-1]) | (begin[1:] == 0))
        return begin[apart], np.append(self.bounds[found[apart]], self.bounds[-1])

    def _require_stored_as(self, encoding: Encoding) -> None:
        dtype, shape = self.stored_dtype, self.stored_row_shape
        if dtype != encoding.dtype or (encoding.head and (len(shape) != 1 or shape[0] < encoding.head)):
            raise DataError(f"shards: {dtype} rows of shape {shape} do not hold {encoding.name}.")

    def __len__(self) -> int:
        return int(self.bounds[-1] - self.bounds[0])

    @cached_property
    def raw(self) -> Shards:
        """The same rows as they are stored."""
        return self if self._encoding is None else Shards(self._keep, bounds=self.bounds)

    def decoded_by(self, encoding: Encoding) -> Shards:
        """The same rows, decoded."""
        return Shards(self._keep, bounds=self.bounds, encoding=encoding)

    def with_rows(self, gids: np.ndarray, rows: np.ndarray) -> Shards:
        """Lays rows, as stored, over these, which are all in memory. gids: int64 [n], ascending, their ids."""
        return ChangedShards.over(self, gids, rows)

    @property
    def arrays(self) -> list[np.ndarray | None]:
        """The shards as they were given."""
        return list(self._keep)

    def extended(self, more: Sequence[tuple[int, np.ndarray]], end: int) -> Shards:
        """Returns the array with further shards behind these. more: (id of the first row, rows as stored), ascending.  end: the
        end of the ids; ids in gaps between shards have no rows."""
        if not more:
            return self
        bounds = np.array([*self.bounds[:-1].tolist(), *(start for start, _ in more), end], dtype=np.int64)
        return Shards([*self._keep, *(rows for _, rows in more)], bounds=bounds, encoding=self._encoding)

    def _in_memory(self, ids: np.ndarray, on_disk: OnDisk | None) -> tuple[Shards, np.ndarray]:
        """Returns shards that have these rows in memory, and the ids of the rows in them."""
        return self, ids

    def gather(
        self, ids: np.ndarray, out: np.ndarray | None = None, *, threads: int = 1, on_disk: OnDisk | None = None
    ) -> np.ndarray:
        """Gathers rows ``ids`` (int64 [n]) into an array [n, ...]: ``out`` (C-contiguous), or a new one. on_disk: called with the
        counters of each read from a disk.

        Raises `DataError` for an id outside the array, `PartitionError` for a file that cannot be read.
        """
        shards, ids = self._in_memory(np.ascontiguousarray(ids, dtype=np.int64), on_disk)
        if out is None:
            out = np.empty((len(ids), *self.row_shape), dtype=self.dtype)
        detail = np.zeros(4, dtype=np.int64)
        rest = (ids.ctypes.data, len(ids), out.ctypes.data, threads, detail.ctypes.data)
        if self._encoding is None:
            status = library().glt_gather(*shards._table, self.row_bytes, *rest)
        else:
            values = math.prod(self.row_shape)
            status = _library().glt_gather_decode(*shards._table, self._encoding.number, values, *rest)
        check(status, detail, "gather")
        return out

    def search(
        self,
        shift: int,
        ids: Shards,
        begin: np.ndarray,
        end: np.ndarray,
        id_of: np.ndarray,
        times: Shards | None = None,
        time_of: np.ndarray | None = None,
    ) -> np.ndarray:
        """Finds where new entries lie in sorted rows of these, sources of edges as stored: gids less ``shift``.

        ids: user ids by gid.  times: int64, of the entries.  Entries of a row ascend by time and user id.  begin, end: int64 [n],
        the row of each new entry.  id_of, time_of: int64 [n], its user id and time.

        Returns int64 [n]: the first stored entry of the row that is greater, or its end. Raises `DataError` for a source that is
        no node, `PartitionError` for a row outside the array.
        """
        assert self.stored_dtype == ids.stored_dtype
        structs = [
            _ShardsStruct() if each is None else _ShardsStruct(*each._table, each.row_bytes)
            for each in (self, ids, times)
        ]
        sources, names, moments = map(ctypes.addressof, structs)
        place = np.empty(len(begin), np.int64)
        status, detail = call(
            _library().glt_search, sources, shift, names, moments, begin, end, id_of, time_of, len(begin), place
        )
        if status == BAD_ARG:
            raise PartitionError(
                f"the partition is damaged: the row of edges {detail[1]} to {detail[2]} does not lie in one part. Delete the "
                "partition folder and partition again."
            )
        check(status, detail, "search")
        return place

    def gather_sum(
        self,
        ids: np.ndarray,
        src: np.ndarray,
        dst: np.ndarray,
        out: np.ndarray,
        *,
        mean: bool = False,
        threads: int = 1,
        on_disk: OnDisk | None = None,
    ) -> np.ndarray:
        """Writes to ``out[d]`` the sum, or the mean, of the rows ``ids[src[e]]`` of all edges e with ``dst[e] == d``; 0 without
        edges. Adds in float32, in the order of the edges.

        ids: int64 [N].  src: int32 [E], positions in ids.  dst: int32 [E], ascending.  out: float32 [n, ...], C-contiguous.
        Raises `DataError` for an id outside the array, and for rows that are not float32 once they are decoded.
        """
        if self.dtype != np.float32:
            raise DataError(f"gather_sum: expected float32 rows, got {self.dtype}.")
        shards, ids = self._in_memory(np.ascontiguousarray(ids, dtype=np.int64), on_disk)
        status, detail = call(
            _library().glt_gather_sum,
            *shards._table,
            FLOAT32 if self._encoding is None else self._encoding.number,
            math.prod(self.row_shape),
            ids,
            len(ids),
            src,
            dst,
            len(src),
            len(out),
            mean,
            out,
            threads,
        )
        check(status, detail, "gather_sum")
        return out


# Gathering rows of an array of which a part is in memory and the rest on disk.


class TieredShards(Shards):
    """Shards of which some are None, because their rows lie on disk (``disk``), under the same ids."""

    on_disk = True

    def __init__(
        self,
        shards: Sequence[np.ndarray | None],
        disk: DiskRows,
        *,
        bounds: np.ndarray,
        encoding: Encoding | None = None,
    ) -> None:
        super().__init__(shards, bounds=bounds, encoding=encoding)
        self._disk = disk

    @classmethod
    def of_files(
        cls,
        shards: Sequence[np.ndarray | None],
        files: Sequence[tuple[DiskFile, int] | None],
        slots: ReadSlots,
        *,
        bounds: np.ndarray,
        encoding: Encoding | None = None,
    ) -> Shards:
        """Makes shards of which some lie in files, as `DiskRows` takes them; plain `Shards` if none does."""
        memory = next(rows for rows in shards if rows is not None)
        if not any(files):
            return Shards(shards, bounds=bounds, encoding=encoding)
        disk = DiskRows(bounds, files, row_bytes(memory.dtype, memory.shape[1:]), slots)
        return cls(shards, disk, bounds=bounds, encoding=encoding)

    @cached_property
    def raw(self) -> Shards:
        if self._encoding is None:
            return self
        return TieredShards(self._keep, self._disk, bounds=self.bounds)

    def decoded_by(self, encoding: Encoding) -> Shards:
        return TieredShards(self._keep, self._disk, bounds=self.bounds, encoding=encoding)

    def extended(self, more: Sequence[tuple[int, np.ndarray]], end: int) -> Shards:
        if not more:
            return self
        longer = super().extended(more, end)
        return TieredShards(longer._keep, self._disk, bounds=longer.bounds, encoding=self._encoding)

    def _in_memory(self, ids: np.ndarray, on_disk: OnDisk | None) -> tuple[Shards, np.ndarray]:
        """Reads the rows that are on disk, and appends them to the shards. Raises `PartitionError` for a file that cannot be
        read."""
        end = int(self.bounds[-1])
        places, wanted, count = self._disk.find(ids, end)
        if not count:
            return self, ids
        stored, took = self._disk.read(wanted)
        if on_disk is not None:
            on_disk(replace(took, places=count))
        rows = stored.view(self.stored_dtype).reshape(len(wanted), *self.stored_row_shape)
        return super().extended([(end, rows)], end + len(rows)), places


class ChangedShards(Shards):
    """Shards with other values for some ids.

    gids: int64 [n], ascending, the ids.  changed: their rows, as stored. They lie before the first id of the shards.
    """

    def __init__(
        self,
        shards: Sequence[np.ndarray | None],
        gids: np.ndarray,
        *,
        bounds: np.ndarray,
        encoding: Encoding | None = None,
    ) -> None:
        super().__init__(shards, bounds=bounds, encoding=encoding)
        self._gids = gids

    @classmethod
    def over(cls, shards: Shards, gids: np.ndarray, changed: np.ndarray) -> ChangedShards:
        """Lays rows over shards that are all in memory."""
        bounds = np.concatenate([shards.bounds[:1] - len(gids), shards.bounds])
        return cls([changed, *shards._keep], gids, bounds=bounds, encoding=shards._encoding)

    @cached_property
    def raw(self) -> Shards:
        return self if self._encoding is None else ChangedShards(self._keep, self._gids, bounds=self.bounds)

    def decoded_by(self, encoding: Encoding) -> Shards:
        return ChangedShards(self._keep, self._gids, bounds=self.bounds, encoding=encoding)

    def extended(self, more: Sequence[tuple[int, np.ndarray]], end: int) -> Shards:
        if not more:
            return self
        longer = super().extended(more, end)
        return ChangedShards(longer._keep, self._gids, bounds=longer.bounds, encoding=self._encoding)

    def _in_memory(self, ids: np.ndarray, on_disk: OnDisk | None) -> tuple[Shards, np.ndarray]:
        if not len(self._gids):
            return self, ids
        at = np.minimum(np.searchsorted(self._gids, ids), len(self._gids) - 1)
        return self, np.where(self._gids[at] == ids, at + self.bounds[0], ids)


# How many bytes a row takes.


def row_bytes(dtype: Any, row_shape: Sequence[int]) -> int:
    """Returns the bytes of one row: ``row_shape`` numbers of a numpy dtype, its name, or a dtype of torch.

    >>> row_bytes("float32", (128,))
    512
    """
    size = getattr(dtype, "itemsize", None)  # a dtype of torch has it, too; a name has not
    return (int(np.dtype(dtype).itemsize) if size is None else int(size)) * math.prod(row_shape)


# Positions of entries that lie in lists, one list after the other.


def spread(begin: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns int64 [sum of counts]: ``counts[i]`` numbers from ``begin[i]`` on, one range after the other."""
    ends = np.cumsum(counts)
    found: np.ndarray = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begin - (ends - counts), counts)
    return found


def entries_of(lists: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns int64: the positions of the entries of some lists, list after list. lists: int [n], numbers of the lists, which may
    repeat.  counts: int [L], the lengths of all lists, which lie one after the other."""
    begin = np.cumsum(counts) - counts
    return spread(begin[lists], counts[lists])


def copy_runs(rows: np.ndarray, begin: np.ndarray, counts: np.ndarray, out: np.ndarray, at: np.ndarray) -> None:
    """Copies runs of consecutive rows: ``counts[i]`` rows from row ``begin[i]`` of ``rows`` on to row ``at[i]`` of ``out``.

    rows, out: C-contiguous [n, ...] of one dtype and row shape.  begin, counts, at: int64 [runs]. Raises `PartitionError` for a
    run that does not lie in both.
    """
    assert rows.dtype == out.dtype
    assert rows.shape[1:] == out.shape[1:]
    size = row_bytes(rows.dtype, rows.shape[1:])
    status, detail = call(_library().glt_copy_runs, rows, len(rows), size, begin, counts, at, len(begin), out, len(out))
    if status == BAD_ARG:
        i = detail[0]
        raise PartitionError(
            f"the partition is damaged: a row with {counts[i]} edges from edge {begin[i]} on lies outside its part, which has "
            f"{len(rows)}. Delete the partition folder and partition again."
        )
    check(status, detail, "copy_runs")
