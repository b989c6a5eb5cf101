"""A ReLU and dropout in one pass. Memory is given by its address, as bfloat16 has no dtype in numpy."""

from __future__ import annotations

import numpy as np

from glt_lightning.kernels.aggregate import VALUES
from glt_lightning.kernels.native import I32, I64, P, Signatures, bind, check

_SIGNATURES: Signatures = {
    "glt_relu_dropout": [I32, P, I64, I64, I64, I64, I32, P, P],
    "glt_relu_dropout_grad": [I32, P, P, I64, I64, I32, P, P],
}
_library = bind(_SIGNATURES)


def relu_dropout(
    values: str, x: int, shape: tuple[int, int], dropped: int, seed: int, out: int, *, threads: int = 1
) -> None:
    """out [R, W]: relu(x) / (1 - p) where kept, else 0; p is ``dropped`` / 2^32. values: a key of `VALUES`. shape: (R, W).

    Which elements are kept depends on seed, row and column alone.
    """
    detail = np.zeros(4, dtype=np.int64)
    status = _library().glt_relu_dropout(VALUES[values], x, *shape, dropped, seed, threads, out, detail.ctypes.data)
    check(status, detail, "relu_dropout")


def relu_dropout_grad(values: str, grad: int, out: int, n: int, dropped: int, grad_x: int, *, threads: int = 1) -> None:
    """grad_x [n] from grad [n] and the result out [n]."""
    detail = np.zeros(4, dtype=np.int64)
    status = _library().glt_relu_dropout_grad(
        VALUES[values], grad, out, n, dropped, threads, grad_x, detail.ctypes.data
    )
    check(status, detail, "relu_dropout")
