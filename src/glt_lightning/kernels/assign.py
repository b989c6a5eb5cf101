"""Native loops over all edges that assign nodes to parts: label propagation, contraction, sums over neighbours."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.kernels.native import I32, I64, P, Signatures, bind, call, check

if TYPE_CHECKING:
    from glt_lightning.kernels.cuda.rows import CudaNeighborSums

_SIGNATURES: Signatures = {
    "glt_assign_rows": [P, P, I64, P, I32, P, P, I32, I32, P, P],
    "glt_list_pairs": [P, P, P, I32, P, P, P, P],
    "glt_sum_pairs": [P, P, I64, P, I64, P, P, I32, P, P, P, P],
    "glt_most_pairs": [P, P, I64, I64, P, P, P],
    "glt_pair_graph": [P, P, I64, I64, P, P, P, P],
    "glt_spread_rows": [P, P, I32, P, I32, P],
}
_library = bind(_SIGNATURES)


class _RowsStruct(ctypes.Structure):
    """``glt_rows`` of ``glt/assign.h``."""

    _fields_ = [
        ("first", c_int64),
        ("num_rows", c_int64),
        ("num_nodes", c_int64),
        ("id_bytes", c_int32),
        ("reserved", c_int32),
        ("indptr", c_void_p),
        ("neighbors", c_void_p),
    ]


class _PairsStruct(ctypes.Structure):
    """``glt_pairs`` of ``glt/assign.h``."""

    _fields_ = [("label_bits", c_int32), ("bits", c_int32), ("record_bytes", c_int32), ("reserved", c_int32)]


@dataclass(frozen=True)
class NeighborRows:
    """Rows of consecutive nodes.

    Attributes:
        first: Node of the first row.
        indptr: int64 [n + 1], from 0.
        neighbors: int32 or int64 [E], node ids.
        num_nodes: Nodes of the whole graph.
    """

    first: int
    indptr: np.ndarray
    neighbors: np.ndarray
    num_nodes: int

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def struct(self) -> _RowsStruct:
        assert self.indptr.dtype == np.int64
        assert self.neighbors.dtype.kind == "i"
        assert self.indptr.flags.c_contiguous
        assert self.neighbors.flags.c_contiguous
        assert self.indptr[0] == 0
        assert self.indptr[-1] == len(self.neighbors)
        assert self.first >= 0
        assert self.first + len(self) <= self.num_nodes
        width = self.neighbors.itemsize
        return _RowsStruct(
            self.first, len(self), self.num_nodes, width, 0, self.indptr.ctypes.data, self.neighbors.ctypes.data
        )


class Labels:
    """A label for each node, and the load of each label: the sum of its nodes' weights, in each of C constraints.

    labels: int32 [N], -1 for none.  weights: int32 [N, C].  num_labels: L, less than 2^31.
    loads: int64 [L, C], updated by `propagate`.

    Raises `DataError` for 2^31 labels or more.
    """

    def __init__(self, labels: np.ndarray, weights: np.ndarray, num_labels: int) -> None:
        if num_labels >= 2**31:
            raise DataError(f"labels: got {num_labels:,}, but labels are 32-bit numbers, at most 2,147,483,647.")
        self.labels = np.ascontiguousarray(labels, np.int32)
        self.weights = np.ascontiguousarray(weights, np.int32)
        assert self.weights.shape[0] == len(self.labels)
        assert self.weights.ndim == 2
        self.loads = np.zeros((num_labels, self.weights.shape[1]), np.int64)
        labelled = self.labels >= 0
        for c in range(self.weights.shape[1]):
            self.loads[:, c] = np.bincount(
                self.labels[labelled], weights=self.weights[labelled, c], minlength=num_labels
            ).astype(np.int64)

    def propagate(self, rows: NeighborRows, capacity: np.ndarray, *, everywhere: bool, threads: int = 1) -> int:
        """One pass of label propagation over the rows, in place; returns the number of nodes that changed their label.

        A node takes the most frequent label of its neighbours whose load stays within ``capacity`` (int64 [C]), as in
        Raghavan, Albert, Kumara (2007) with the size limit of Meyerhenke, Sanders, Schulz (2014).
        everywhere: a node of a label above its capacity may also take a label that none of its neighbours has.
        threads: that count labels; nodes are moved by one, in order, so the result is the same.
        """
        capacity, moved = np.ascontiguousarray(capacity, np.int64), np.zeros(1, np.int64)
        assert capacity.shape == (self.loads.shape[1],)
        assert rows.num_nodes == len(self.labels)
        struct = rows.struct()
        status, detail = call(
            _library().glt_assign_rows,
            ctypes.byref(struct),
            self.labels,
            len(self.loads),
            self.weights,
            self.weights.shape[1],
            self.loads,
            capacity,
            everywhere,
            threads,
            moved,
        )
        check(status, detail, "assign rows")
        return int(moved[0])


class LabelPairs:
    """The number of edges between each two labels. A pair is a key, uint64: the lower label << 32 | the higher one. Until
    they are counted, edges are records of a bucket, each pair in one of them.

    labels: int32 [N], all >= 0.  bits: pairs are dealt out over 2^bits buckets, which are counted one by one; 0 to 16.
    most: largest number of pairs, >= 1. Of more, those with the fewest edges are dropped; at a tie, those of higher keys.
    threads: that list and count.

    Attributes:
        dtype: Of the records: uint32 where the number of a pair, less ``bits``, fits it, else uint64.
    """

    def __init__(self, labels: np.ndarray, bits: int, most: int, threads: int = 1) -> None:
        assert labels.dtype == np.int32
        self._labels, self._bits, self._most, self._threads = labels, bits, most, threads
        label_bits = max(int(labels.max(initial=1)).bit_length(), -(-bits // 2))
        self.dtype = np.dtype(np.uint32 if 2 * label_bits - bits <= 32 else np.uint64)
        self._struct = _PairsStruct(label_bits, bits, self.dtype.itemsize)
        self._records, self._work = np.empty(0, self.dtype), np.empty(0, np.uint64)
        self._pairs, self._count = (np.empty(0, np.uint64), np.empty(0, np.int64)), 0  # keys, and numbers of edges
        self._last = (
            np.zeros(1, np.int64),
            np.zeros(1, np.uint64),
        )  # number and key of the last pair of the most, so far

    def records(self, rows: NeighborRows) -> tuple[np.ndarray, np.ndarray]:
        """Lists an edge between different labels for each entry of the rows with a greater node; each edge must be in the rows of
        both its ends.

        Returns (the records, bucket by bucket, valid until the next call; int64 [buckets], how many each has).
        """
        struct, sizes, entries = rows.struct(), np.empty(1 << self._bits, np.int64), len(rows.neighbors)
        assert rows.num_nodes == len(self._labels)
        if len(self._records) < entries:  # used again: what is new has to be cleared by the kernel
            self._records, self._work = np.empty(entries, self.dtype), np.empty(entries, np.uint64)
        arrays = self._labels, ctypes.byref(self._struct), self._threads, self._records, self._work, sizes
        status, detail = call(_library().glt_list_pairs, ctypes.byref(struct), *arrays)
        check(status, detail, "count pairs")
        return self._records[: int(sizes.sum())], sizes

    def add(self, records: np.ndarray, first_bucket: int, first: np.ndarray) -> None:
        """Counts all records of the buckets from ``first_bucket`` on. first: int64 [n + 1], first record of each."""
        if self._count + len(records) > len(self._pairs[0]):
            self._drop()
            size = max(2 * self._most, self._count + len(records))
            if size > len(self._pairs[0]):
                old, self._pairs = self._pairs, (np.empty(size, np.uint64), np.empty(size, np.int64))
                for values, new in zip(old, self._pairs, strict=True):
                    new[: self._count] = values[: self._count]
        found = np.zeros(1, np.int64)
        given = ctypes.byref(self._struct), records, first_bucket, first, len(first) - 1
        arrays = *self._last, self._threads, *(each[self._count :] for each in self._pairs), found
        status, detail = call(_library().glt_sum_pairs, *given, *arrays)
        check(status, detail, "count pairs")
        self._count += int(found[0])

    def graph(self, num_labels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the pairs as a symmetric graph: indptr [num_labels + 1], neighbours, numbers of edges, int64 each. Rows have
        the greater labels, ascending, then the smaller ones. num_labels: greater than all labels."""
        self._drop()
        count = self._count
        indptr, neighbors, numbers = (np.empty(n, np.int64) for n in (num_labels + 1, 2 * count, 2 * count))
        arrays = *self._pairs, count, num_labels, indptr, neighbors, numbers
        status, detail = call(_library().glt_pair_graph, *arrays)
        check(status, detail, "list pairs")
        return indptr, neighbors, numbers

    def _drop(self) -> None:
        """Drops all pairs but the most."""
        if self._count > self._most:
            status, detail = call(_library().glt_most_pairs, *self._pairs, self._count, self._most, *self._last)
            check(status, detail, "count pairs")
            self._count = self._most


class NeighborSums:
    """Sums for each node the values of the rows that list it: int64 [N, K]. `kernels.cuda.rows.CudaNeighborSums` is its twin."""

    def __init__(self, num_nodes: int, width: int, threads: int = 1) -> None:
        self._out, self._threads = np.zeros((num_nodes, width), np.int64), threads

    @classmethod
    def on(cls, device: str, num_nodes: int, width: int, threads: int) -> NeighborSums | CudaNeighborSums:
        """Makes sums on ``cpu``, by some threads, or a CUDA device. Raises `NativeError` if the device is not usable."""
        if device == "cpu":
            return cls(num_nodes, width, threads)
        from glt_lightning.kernels.cuda.rows import CudaNeighborSums  # imports torch
        from glt_lightning.kernels.cuda.stream import Kernels

        return CudaNeighborSums(num_nodes, width, Kernels.open(device))

    def add(self, rows: NeighborRows, values: np.ndarray) -> None:
        """Adds ``sums[neighbour] += values[row]`` for each entry of the rows. values: int64 [rows, K]."""
        spread_rows(rows, values, self._out, self._threads)

    def result(self) -> np.ndarray:
        """Returns the sums, int64 [N, K]."""
        return self._out


def spread_rows(rows: NeighborRows, values: np.ndarray, out: np.ndarray, threads: int = 1) -> None:
    """Adds ``out[neighbour] += values[row]`` for each entry of the rows. values: int64 [rows, K].  out: int64 [N, K]."""
    assert values.dtype == out.dtype == np.int64
    assert values.flags.c_contiguous
    assert out.flags.c_contiguous
    assert values.shape == (len(rows), out.shape[1])
    assert len(out) == rows.num_nodes
    struct = rows.struct()
    status, detail = call(_library().glt_spread_rows, ctypes.byref(struct), values, out.shape[1], out, threads)
    check(status, detail, "spread rows")
