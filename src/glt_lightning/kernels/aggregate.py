"""Aggregation over the edges of a batch, which are in the order of their destinations, and its gradients."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_int32, c_int64, c_void_p
from dataclasses import dataclass

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.kernels.native import BAD_ID, BAD_ROW, I32, I64, P, Signatures, bind, check

KINDS = {"sum": 0, "mean": 1, "max": 2, "min": 3}
VALUES: dict[str, int] = {"float32": 0, "float64": 1, "bfloat16": 2}

_SIGNATURES: Signatures = {
    "glt_aggregate": [P, I32, P, P, P, P],
    "glt_aggregate_grad": [P, I32, P, P, P, P, P, P],
    "glt_aggregate_weights_grad": [P, I32, P, P, P, P],
}

_library = bind(_SIGNATURES)


class EdgesStruct(ctypes.Structure):
    """``glt_edges`` of ``glt/aggregate.h``."""

    _fields_ = [
        ("num_rows", c_int64),
        ("num_sources", c_int64),
        ("num_edges", c_int64),
        ("indptr", c_void_p),
        ("src", c_void_p),
        ("values", c_int32),
        ("threads", c_int32),
        ("width", c_int64),
        ("heads", c_int64),
    ]


@dataclass(frozen=True)
class Edges:
    """Edges [E] from S sources to D destinations, and the form of the rows that are aggregated along them. Memory is given by
    its address, since bfloat16 has no dtype in numpy; it is C-contiguous and belongs to the caller.

    indptr: int64 [D + 1]; the edges of destination i are [indptr[i], indptr[i + 1]).
    src: int64 [E]; None if edge e has the source e.
    values: a key of `VALUES`.
    width: number of values W in a row.
    heads: number of weights H of an edge, each for W / H values.
    """

    num_rows: int
    num_sources: int
    num_edges: int
    indptr: int
    src: int | None
    values: str
    width: int
    heads: int = 1
    threads: int = 1

    def aggregate(self, kind: str, x: int, weights: int | None, out: int) -> None:
        """Writes out [D, W]: sum, mean, max or min (0 without edges) of rows of x [S, W], each times its weights [E, H]."""
        self._call("glt_aggregate", kind, x, weights, out)

    def grad(self, kind: str, grad: int, weights: int | None, x: int | None, out: int | None, grad_x: int) -> None:
        """Writes grad_x [S, W], the gradient of x, from grad [D, W]. x, out: those of `aggregate`, for max and min."""
        self._call("glt_aggregate_grad", kind, grad, weights, x, out, grad_x)

    def weights_grad(self, kind: str, grad: int, x: int, grad_weights: int) -> None:
        """Writes grad_weights [E, H], the gradient of the weights, from grad [D, W], for sum and mean."""
        self._call("glt_aggregate_weights_grad", kind, grad, x, grad_weights)

    @property
    def struct(self) -> EdgesStruct:
        return EdgesStruct(
            self.num_rows,
            self.num_sources,
            self.num_edges,
            self.indptr,
            self.src,
            VALUES[self.values],
            self.threads,
            self.width,
            self.heads,
        )

    def _call(self, name: str, kind: str, *arrays: int | None) -> None:
        struct, detail = self.struct, np.zeros(4, dtype=np.int64)
        function: Callable[..., int] = getattr(_library(), name)
        status = function(ctypes.addressof(struct), KINDS[kind], *arrays, detail.ctypes.data)
        self.check(status, detail)

    def check(self, status: int, detail: np.ndarray) -> None:
        """Raises `DataError` for edges that contradict themselves."""
        if status == BAD_ID:
            raise DataError(
                f"aggregate: src: edge {detail[0]} comes from row {detail[1]}; there are {self.num_sources} rows."
            )
        if status == BAD_ROW:
            raise DataError(
                f"aggregate: indptr: expected ascending positions up to {self.num_edges}; got {detail[2]}, {detail[3]} "
                f"for row {detail[1]}."
            )
        check(status, detail, "aggregate")


# A ReLU and dropout in one pass. Memory is given by its address, as bfloat16 has no dtype in numpy.


_ACTIVATION_SIGNATURES: Signatures = {
    "glt_relu_dropout": [I32, P, I64, I64, I64, I64, I32, P, P],
    "glt_relu_dropout_grad": [I32, P, P, I64, I64, I32, P, P],
}

_activation_library = bind(_ACTIVATION_SIGNATURES)


def relu_dropout(
    values: str, x: int, shape: tuple[int, int], dropped: int, seed: int, out: int, *, threads: int = 1
) -> None:
    """Writes out [R, W]: relu(x) / (1 - p) for elements that are kept, else 0; p is ``dropped`` / 2^32. values: a key of
    `VALUES`.  shape: (R, W).

    The choice of the elements depends on seed, row and column alone.
    """
    detail = np.zeros(4, dtype=np.int64)
    status = _activation_library().glt_relu_dropout(
        VALUES[values], x, *shape, dropped, seed, threads, out, detail.ctypes.data
    )
    check(status, detail, "relu_dropout")


def relu_dropout_grad(values: str, grad: int, out: int, n: int, dropped: int, grad_x: int, *, threads: int = 1) -> None:
    """Writes grad_x [n], the gradient of x, from grad [n] and the result out [n]."""
    detail = np.zeros(4, dtype=np.int64)
    status = _activation_library().glt_relu_dropout_grad(
        VALUES[values], grad, out, n, dropped, threads, grad_x, detail.ctypes.data
    )
    check(status, detail, "relu_dropout")
