"""Gathering rows of a sharded array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glt_lightning.errors import DataError
from glt_lightning.ops.native import check, library, pointers


class Shards:
    """An array whose rows lie in P shards, stacked in order.

    shards: P C-contiguous arrays [rows, ...] of one dtype and one row shape, or None where a shard is not local.
    start: id of the first row of the first shard.
    bounds: int64 [P + 1], needed when a shard is None; else derived.
    """

    def __init__(
        self, shards: Sequence[np.ndarray | None], *, start: int = 0, bounds: np.ndarray | None = None
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
        self.dtype, self.row_shape = first.dtype, first.shape[1:]
        self.row_bytes = int(first.dtype.itemsize * np.prod(self.row_shape, dtype=np.int64))
        self.bounds = np.ascontiguousarray(bounds, dtype=np.int64)
        self._keep = list(shards)
        self._pointers = pointers(self._keep)
        self._detail = np.zeros(4, dtype=np.int64)

    def __len__(self) -> int:
        return int(self.bounds[-1] - self.bounds[0])

    def extended(self, more: Sequence[tuple[int, np.ndarray]], end: int) -> Shards:
        """With further shards behind these: (id of the first row, rows of the same dtype and shape), ascending; ids up to
        ``end`` may be asked for, as far as there are rows for them."""
        if not more:
            return self
        bounds = np.array([*self.bounds[:-1].tolist(), *(start for start, _ in more), end], dtype=np.int64)
        return Shards([*self._keep, *(rows for _, rows in more)], bounds=bounds)

    def gather(self, ids: np.ndarray, out: np.ndarray | None = None, *, threads: int = 1) -> np.ndarray:
        """Rows ``ids`` (int64 [n]) as a [n, ...] array; into ``out`` (C-contiguous) where given.

        Raises `DataError` for an id outside the array.
        """
        if out is None:
            out = np.empty((len(ids), *self.row_shape), dtype=self.dtype)
        detail = np.zeros(4, dtype=np.int64)
        status = library().glt_gather(
            self._pointers.ctypes.data,
            self.bounds.ctypes.data,
            len(self._keep),
            self.row_bytes,
            ids.ctypes.data,
            len(ids),
            out.ctypes.data,
            threads,
            detail.ctypes.data,
        )
        check(status, detail, "gather")
        return out
