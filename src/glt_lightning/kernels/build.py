"""Native loops over all edges that build CSC arrays: counting degrees, bucketing by destination, sorting rows."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_int32, c_void_p
from dataclasses import dataclass
from typing import Any

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
        """Returns int64 [B]: number of the destinations (int64 user ids) in each bucket."""
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
    """Adds ``counts[id] += 1`` for int64 ids. Returns the position of the first id outside 0 .. len(counts) - 1, if any."""
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


# The two orders of a batch's edges: by destination, in which they come, and by source, which a backward pass reads.


_EDGE_ORDER_SIGNATURES: Signatures = {
    "glt_colptr": [P, I64, I64, P, P],
    "glt_by_source": [P, P, I64, I64, I32, P, P, P, P],
    "glt_sort": [P, P, I64, P, P, P],
}

_edge_order_library = bind(_EDGE_ORDER_SIGNATURES)


def column_pointers(dst: np.ndarray, out: np.ndarray) -> None:
    """Writes the positions at which the edges into each node begin. dst: int32 [E], ascending.  out: int64 [nodes + 1].

    Raises `DataError` for destinations that are not ascending, or are no nodes, which only a user's batch sampler may give.
    """
    nodes = len(out) - 1
    status, detail = call(_edge_order_library().glt_colptr, dst, len(dst), nodes, out)
    if status == BAD_ARG:
        raise DataError(
            f"edge_format edge_index: the edges of a batch have to be sorted by destination, 0 to {nodes - 1}; edge {detail[0]} "
            f"leads to {detail[1]}. Sort the edges that the sampler gives, or use edge_format tensor."
        )
    check(status, detail, "column_pointers")


def by_source(src: np.ndarray, dst: np.ndarray, nodes: int, out: np.ndarray, *, threads: int = 1) -> None:
    """Sorts edges by source; the edges of one source stay in their order. src, dst: int32 [E], src in [0, nodes).

    out: int64 [nodes + 1 + 2 E]: the position of each source's first edge, the destinations, the positions in ``src``.
    Raises `DataError` for a source that is no node.
    """
    rowptr, col, perm = split_by_source(out, nodes)
    status, detail = call(_edge_order_library().glt_by_source, src, dst, len(src), nodes, threads, rowptr, col, perm)
    if status == BAD_ARG:
        raise DataError(
            f"edge_format edge_index: edge {detail[0]} comes from {detail[1]}, and there are {nodes} nodes."
        )
    check(status, detail, "by_source")


def sort_keys(keys: np.ndarray, positions: np.ndarray | None = None) -> None:
    """Sorts keys, in place, and moves positions with them; equal keys stay in their order. Of a million keys of 44 bits `np.sort`
    takes four times as long, and `np.argsort` three times.

    keys: int64 [n], not negative.  positions: int64 [n].
    """
    spare = [None if each is None else np.empty_like(each) for each in (keys, positions)]
    status, detail = call(_edge_order_library().glt_sort, keys, positions, len(keys), *spare)
    check(status, detail, "sort_keys")


def split_by_source(values: Any, nodes: int) -> tuple[Any, Any, Any]:
    """Splits the result of `by_source`, an array or a tensor, into views: (rowptr [nodes + 1], col [E], perm [E])."""
    edges = (len(values) - nodes - 1) // 2
    first = nodes + 1
    return values[:first], values[first : first + edges], values[first + edges :]


# Encodings that store floats in fewer bytes: the layout of a row, and how to encode it. Gathering decodes them.


# numpy has no such type: two bytes each, the upper half of a float32. Arrays of it only carry them.
BFLOAT16 = np.dtype([("bfloat16", "<u2")])
_SCALE = np.dtype("<f4")


@dataclass(frozen=True)
class Encoding:
    """An encoding of float32 in fewer bytes.

    Attributes:
        number: Its number in ``glt/decode.h``.
        dtype: Dtype of the stored values.
        head: Elements of that dtype before the values of a row; rows with a head have one dimension.
        encode: Finite float32 [n, ...] -> stored [n, ...].
    """

    name: str
    number: int
    dtype: np.dtype
    head: int
    encode: Callable[[np.ndarray], np.ndarray]

    def fits(self, row_shape: tuple[int, ...]) -> bool:
        """Tells whether rows of this shape can be stored in this encoding."""
        return self.head == 0 or len(row_shape) == 1

    def stored_shape(self, row_shape: tuple[int, ...]) -> tuple[int, ...]:
        return (row_shape[0] + self.head,) if self.head else row_shape

    def row_shape(self, stored_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of a decoded row, from the shape of a stored row."""
        return (stored_shape[0] - self.head,) if self.head else stored_shape


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Converts floats to the nearest bfloat16 (ties to even), as uint16; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype("<u2")


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """Converts bfloat16, as uint16, to float32, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _to_float16(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # the caller looks for infinities
        return values.astype("<f2")


def _to_int8(values: np.ndarray) -> np.ndarray:
    """Encodes rows as uint8 [n, 4 + D]: the scale, greatest absolute value / 127, then the values divided by the scale, rounded
    with ties to even."""
    stored = np.empty((len(values), _SCALE.itemsize + values.shape[1]), dtype=np.uint8)
    scale = np.abs(values).max(axis=1, initial=0) / np.float32(127)
    stored[:, : _SCALE.itemsize] = scale.astype(_SCALE).view(np.uint8).reshape(len(values), _SCALE.itemsize)
    steps = np.rint(values / np.where(scale == 0, np.float32(np.inf), scale)[:, None])
    stored[:, _SCALE.itemsize :] = np.clip(steps, -127, 127).astype(np.int8).view(np.uint8)
    return stored


ENCODINGS = {
    e.name: e
    for e in (
        Encoding("float16", 1, np.dtype("<f2"), 0, _to_float16),
        Encoding("bfloat16", 2, np.dtype("<u2"), 0, to_bfloat16),
        Encoding("int8", 3, np.dtype("u1"), _SCALE.itemsize, _to_int8),
    )
}
