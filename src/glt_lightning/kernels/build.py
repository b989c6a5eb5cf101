"""Native loops over all edges that build CSC arrays: counting degrees, bucketing by destination, sorting rows."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_void_p
from dataclasses import dataclass

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.kernels.native import BAD_ARG, BAD_ID, I32, I64, P, Signatures, bind, call, check

CHANGED = "the edges changed between two readings. Let no other process write to the data set while it is partitioned."

_SIGNATURES: Signatures = {
    "glt_build_count": [P, I64, I64, P, P],
    "glt_build_sizes": [P, P, I64, P, P],
    "glt_build_deal": [P, P, P, I64, I64, I64, P, P, P, P],
    "glt_build_rows": [P, I64, I32, I64, I32, P, I32, I64, I32, P, P, P, P, P, P],
}
_library = bind(_SIGNATURES)


class _BucketStruct(ctypes.Structure):
    """``glt_buckets`` of ``glt/build.h``."""

    _fields_ = [
        ("id_bytes", c_int32),
        ("record_bytes", c_int32),
        ("shift", c_int32),
        ("num_buckets", c_int32),
        ("numbers", c_void_p),
        ("starts", c_void_p),
        ("hint", c_void_p),
    ]


class Buckets:
    """Consecutive ranges of destination rows and the records of their edges.

    numbers: int32 or int64 [N], new number by user id of the destination type.
    starts: int64 [B + 1]; bucket b holds the new numbers [starts[b], starts[b + 1]); the last one is N.
    record_bytes: 12 when all ids fit 32 bits, else 24.
    """

    def __init__(self, numbers: np.ndarray, starts: np.ndarray, record_bytes: int) -> None:
        self.count, self.record_bytes = len(starts) - 1, record_bytes
        shift = 0
        while (len(numbers) >> shift) > 1 << 16:  # the hint stays in the cache
            shift += 1
        blocks = np.arange((len(numbers) >> shift) + 1, dtype=np.int64) << shift
        hint = np.maximum(np.searchsorted(starts, blocks, side="right") - 1, 0).astype(np.int32)
        self._keep = (numbers, np.ascontiguousarray(starts, np.int64), hint)
        numbers, starts, hint = self._keep
        self._struct = _BucketStruct(
            numbers.itemsize, record_bytes, shift, self.count, numbers.ctypes.data, starts.ctypes.data, hint.ctypes.data
        )

    def sizes(self, dst: np.ndarray) -> np.ndarray:
        """int64 [B]: number of the destinations (int64 user ids) in each bucket."""
        counts = np.zeros(self.count, np.int64)
        status, detail = call(_library().glt_build_sizes, ctypes.byref(self._struct), dst, len(dst), counts)
        _check_same(status, detail)
        return counts

    def scatter(
        self,
        src: np.ndarray,
        dst: np.ndarray,
        num_sources: int,
        first_edge_id: int,
        cursor: np.ndarray,
        limit: np.ndarray,
        records: np.ndarray,
    ) -> None:
        """Writes the records of src -> dst (int64 user ids) at their buckets' cursors (int64 [B]), which advance.

        Raises `DataError` if a bucket is full or an id is out of range: the edges are not those that were counted.
        """
        status, detail = call(
            _library().glt_build_deal,
            ctypes.byref(self._struct),
            src,
            dst,
            len(src),
            num_sources,
            first_edge_id,
            cursor,
            limit,
            records,
        )
        _check_same(status, detail)


@dataclass
class RowBuffers:
    """Reusable memory for the rows of one bucket of at most ``edges`` edges and ``rows`` rows."""

    indptr: np.ndarray
    indices: np.ndarray
    edge_ids: np.ndarray
    work: np.ndarray

    @classmethod
    def allocate(
        cls, rows: int, edges: int, id_dtype: np.dtype, edge_id_dtype: np.dtype, record_bytes: int
    ) -> RowBuffers:
        return cls(
            np.empty(rows + 1, np.int64),
            np.empty(edges, id_dtype),
            np.empty(edges, edge_id_dtype),
            np.empty(edges * record_bytes * 2 // 3, np.uint8),
        )


def count_ids(ids: np.ndarray, counts: np.ndarray) -> int | None:
    """``counts[id] += 1`` for int64 ids; returns the position of the first id that is not in 0 .. len(counts) - 1."""
    status, detail = call(_library().glt_build_count, ids, len(ids), len(counts), counts)
    if status == BAD_ID:
        return int(detail[0])
    check(status, detail, "count ids")
    return None


def build_rows(
    records: np.ndarray,
    num_rows: int,
    coalesce: bool,
    numbers: np.ndarray,
    offset: int,
    record_bytes: int,
    out: RowBuffers,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorts the records of one bucket by (row, source, edge id) and converts them to CSC.

    records: bytes of the bucket.  coalesce: keep only the parallel edge with the lowest id.
    numbers: new number by user id of the source type; a source's gid is ``offset`` + its number.
    Returns views of ``out``: indptr int64 [num_rows + 1] from 0, indices, edge_ids.
    """
    count = np.zeros(1, np.int64)
    status, detail = call(
        _library().glt_build_rows,
        records,
        records.nbytes // record_bytes,
        record_bytes,
        num_rows,
        coalesce,
        numbers,
        numbers.itemsize,
        offset,
        out.edge_ids.itemsize,
        out.work,
        out.indptr,
        out.indices,
        out.edge_ids,
        count,
    )
    check(status, detail, "build rows")
    n = int(count[0])
    return out.indptr[: num_rows + 1], out.indices[:n], out.edge_ids[:n]


def _check_same(status: int, detail: np.ndarray) -> None:
    """Raises `DataError` if the edges read now are not those that were counted, and checked, before."""
    if status == BAD_ARG:
        raise DataError(CHANGED)
    check(status, detail, "deal edges")
