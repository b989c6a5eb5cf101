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
    "glt_count_pairs": [P, P, P, P],
    "glt_pair_rows": [P, I64, P, P, P, P],
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

    _fields_ = [
        ("size", c_int64),
        ("limit", c_int64),
        ("used", c_int64),
        ("forgotten", c_int64),
        ("slots", c_void_p),
    ]


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


class PairTable:
    """The number of edges between each two labels, in bounded memory.

    limit: largest number of pairs, >= 1. If there are more, the half with the fewest edges is dropped; at a tie, pairs of higher
    labels.
    """

    def __init__(self, limit: int) -> None:
        size = 1 << max(4, (2 * limit - 1).bit_length())
        self._slots = np.zeros(size, [("key", np.uint64), ("weight", np.int64)])
        self._struct = _PairsStruct(size, limit, 0, 0, self._slots.ctypes.data)

    @property
    def forgotten(self) -> int:
        """The number of edges of the pairs dropped so far."""
        return int(self._struct.forgotten)

    def add(self, rows: NeighborRows, labels: np.ndarray) -> None:
        """Counts the rows' edges between different labels (int32 [N], all >= 0). Each edge must be in the rows of both ends."""
        struct = rows.struct()
        status, detail = call(_library().glt_count_pairs, ctypes.byref(struct), labels, ctypes.byref(self._struct))
        check(status, detail, "count pairs")

    def graph(self, num_labels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the pairs as a symmetric graph: indptr [num_labels + 1], neighbours, numbers of edges, int64 each. Rows have
        the greater labels, ascending, then the smaller ones. num_labels: greater than all labels."""
        used = int(self._struct.used)
        indptr, neighbors, numbers = (np.empty(n, np.int64) for n in (num_labels + 1, 2 * used, 2 * used))
        status, detail = call(
            _library().glt_pair_rows, ctypes.byref(self._struct), num_labels, indptr, neighbors, numbers
        )
        check(status, detail, "list pairs")
        return indptr, neighbors, numbers


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
