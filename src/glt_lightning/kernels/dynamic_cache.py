"""A cache of rows that adapts to the accesses: S3-FIFO (Yang et al., SOSP 2023). The rules are in ``glt/cache.h``."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int32, c_int64, c_void_p

import numpy as np

from glt_lightning.base import DataError, OptionError
from glt_lightning.kernels.native import BAD_ID, I64, P, Signatures, bind, call, check, pointers
from glt_lightning.kernels.row_size import row_bytes

MAX_SHARDS = 65536
MAX_ENTRIES = 500_000_000  # of a shard
_ALIGNMENT = 64  # bytes: a cache line


class _Spec(ctypes.Structure):
    """``glt_cache_spec`` of ``glt/cache.h``."""

    _fields_ = [
        ("capacity", c_int64),
        ("num_shards", c_int32),
        ("num_attrs", c_int32),
        ("row_bytes", c_void_p),
    ]


_SIGNATURES: Signatures = {
    "glt_cache_bytes": [P],
    "glt_cache_init": [P, P],
    "glt_cache_find": [P, P, I64, P, P, P, P],
    "glt_cache_insert": [P, P, I64, P, P],
    "glt_cache_counters": [P, P],
}
_library = bind(_SIGNATURES, {"glt_cache_bytes": I64})


class DynamicCache:
    """Rows by id, of which those asked for again stay. All methods may be called by many threads at once.

    capacity: Entries it has room for.
    rows: What an entry holds: (dtype, shape of a row) for each attribute.
    shards: How many independent parts it has, each with its lock and its share of the entries. None: one for each 1024
        entries, at most 64.

    The memory is set aside at once, `nbytes` in all. It belongs to this process: after a fork, make a new one.
    """

    def __init__(
        self, capacity: int, rows: Sequence[tuple[np.dtype, tuple[int, ...]]], *, shards: int | None = None
    ) -> None:
        if shards is None:
            shards = max(1, min(64, capacity // 1024))
        _check_sizes(capacity, shards)
        self.capacity, self.shards = capacity, shards
        self._rows = [(np.dtype(dtype), tuple(shape)) for dtype, shape in rows]
        _check_rows(self._rows)
        sizes = np.array([row_bytes(dtype, shape) for dtype, shape in self._rows], dtype=np.int64)
        spec = _Spec(capacity, shards, len(sizes), sizes.ctypes.data)
        needed = int(_library().glt_cache_bytes(ctypes.addressof(spec)))
        self._memory = np.empty(needed + _ALIGNMENT, dtype=np.uint8)
        self._cache = -(-self._memory.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        check(_library().glt_cache_init(self._cache, ctypes.addressof(spec)), np.zeros(4), "cache")

    def find(self, ids: np.ndarray, out: Sequence[np.ndarray] | None = None) -> tuple[np.ndarray, list[np.ndarray]]:
        """Looks up ``ids`` (int64 [n], >= 0, may repeat), each of which counts as a use of its entry.

        out: Where to write: for each attribute a C-contiguous array with room for n rows or more. None: new arrays.
        Returns int32 [n], for each id its place among the rows found (0, 1, 2 ... in order of ids) or -1 where it is
        not cached; and the rows found, [hits, *shape] for each attribute, views of ``out``.
        """
        ids = _checked_ids(ids)
        if out is None:
            out = [np.empty((len(ids), *shape), dtype=dtype) for dtype, shape in self._rows]
        self._check_arrays("out", out, len(ids), exact=False)
        place = np.empty(len(ids), dtype=np.int32)
        found = np.zeros(1, dtype=np.int64)
        to = pointers(out)
        status, detail = call(_library().glt_cache_find, self._cache, ids, len(ids), to, place, found)
        _check_status(status, detail)
        return place, [array[: int(found[0])] for array in out]

    def insert(self, ids: np.ndarray, rows: Sequence[np.ndarray]) -> None:
        """Offers entries: ``ids`` (int64 [n], >= 0, may repeat) and for each attribute their rows, [n, *shape].

        An id that is cached already is left as it is. Entries that the policy chooses are evicted to make room.
        """
        ids = _checked_ids(ids)
        self._check_arrays("rows", rows, len(ids), exact=True)
        of = pointers(rows)
        status, detail = call(_library().glt_cache_insert, self._cache, ids, len(ids), of)
        _check_status(status, detail)

    @property
    def hits(self) -> int:
        """Ids looked up and found so far."""
        return self._counters()[0]

    @property
    def misses(self) -> int:
        """Ids looked up and not found so far."""
        return self._counters()[1]

    @property
    def evictions(self) -> int:
        """Entries dropped so far."""
        return self._counters()[2]

    def __len__(self) -> int:
        """Entries now."""
        return self._counters()[3]

    @property
    def nbytes(self) -> int:
        """All memory of the cache. For an entry: 8 bytes and its rows, together rounded up to 8; and 34 for what finds
        and orders it, the ids lately dropped included. For a shard about 600."""
        return self._memory.nbytes

    def _counters(self) -> list[int]:
        counters = np.zeros(4, dtype=np.int64)
        _library().glt_cache_counters(self._cache, counters.ctypes.data)
        return counters.tolist()

    def _check_arrays(self, name: str, arrays: Sequence[np.ndarray], n: int, *, exact: bool) -> None:
        if len(arrays) != len(self._rows):
            raise DataError(f"{name}: expected one array for each of {len(self._rows)} attributes, got {len(arrays)}.")
        for k, (array, (dtype, shape)) in enumerate(zip(arrays, self._rows, strict=True)):
            fits = array.ndim and (len(array) == n if exact else len(array) >= n)
            if not fits or array.dtype != dtype or array.shape[1:] != shape or not array.flags.c_contiguous:
                raise DataError(
                    f"{name}[{k}]: expected C-contiguous {dtype} of shape {(n, *shape)}{'' if exact else ' or more rows'}, "
                    f"got {array.dtype} of shape {array.shape}{'' if array.flags.c_contiguous else ', not contiguous'}."
                )
            if not exact and not array.flags.writeable:
                raise DataError(f"{name}[{k}]: expected an array that can be written, got a read-only one.")


def _check_sizes(capacity: int, shards: int) -> None:
    if not 1 <= shards <= MAX_SHARDS:
        raise OptionError(f"shards: expected 1 to {MAX_SHARDS}, got {shards}.")
    if capacity < shards:
        raise OptionError(f"capacity: expected at least one entry for each of {shards} shards, got {capacity}.")
    if capacity > shards * MAX_ENTRIES:
        raise OptionError(f"capacity: expected at most {MAX_ENTRIES} entries a shard, got {capacity} in {shards}.")


def _check_rows(rows: Sequence[tuple[np.dtype, tuple[int, ...]]]) -> None:
    if not rows:
        raise OptionError("rows: expected a (dtype, row shape) for at least one attribute, got none.")
    for dtype, shape in rows:
        if dtype.hasobject or any(n < 0 for n in shape):
            raise OptionError(f"rows: expected plain values and sizes >= 0, got {dtype} rows of shape {shape}.")


def _checked_ids(ids: np.ndarray) -> np.ndarray:
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise DataError(f"ids: expected int64 [n], got {ids.dtype} of shape {ids.shape}.")
    return np.ascontiguousarray(ids)


def _check_status(status: int, detail: np.ndarray) -> None:
    if status == BAD_ID:
        raise DataError(f"ids: expected none below 0, got {detail[1]} at position {detail[0]}.")
    check(status, detail, "cache")
