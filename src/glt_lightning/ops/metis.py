"""METIS, the multilevel graph partitioner (Karypis and Kumar, 1998), with several balance constraints.

The library is the one that pymetis brings. Its Python function balances one weight per node; METIS itself balances any
number at once, which is what keeps node types, seeds and edges even. So its C function is called.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int64, c_void_p
from functools import cache

import numpy as np

from glt_lightning.errors import NativeError, PartitionError
from glt_lightning.ops.native import pointer

_OK, _MEMORY = 1, -3
_SEED, _UFACTOR, _NUM_OPTIONS = 8, 16, 40  # METIS_OPTION_SEED, METIS_OPTION_UFACTOR, METIS_NOPTIONS of metis.h


@cache
def _library() -> ctypes.CDLL:
    try:
        from pymetis import _internal
    except ImportError as error:
        raise NativeError(
            f"METIS is not here ({error}). Install it (`pip install pymetis`), or use partition.algorithm: streaming."
        ) from None
    lib = ctypes.CDLL(_internal.__file__)
    if not hasattr(lib, "METIS_PartGraphKway") or _internal._idx_type_width() != 64:
        raise NativeError(
            f"{_internal.__file__} does not offer METIS with 64-bit ids. Install a wheel of pymetis (>= 2025.1), or use "
            "partition.algorithm: streaming."
        )
    for name, arguments in (("METIS_SetDefaultOptions", 1), ("METIS_PartGraphKway", 13)):
        getattr(lib, name).argtypes, getattr(lib, name).restype = [c_void_p] * arguments, ctypes.c_int
    return lib


def metis_parts(
    indptr: np.ndarray,
    neighbors: np.ndarray,
    num_parts: int,
    *,
    weights: np.ndarray,
    edge_weights: np.ndarray | None = None,
    imbalance: float = 0.03,
    seed: int = 0,
) -> np.ndarray:
    """int32 [N]: a part for each node, few edges between parts. It may leave parts empty when there are few nodes.

    indptr, neighbors: int64 [N + 1], [E]: both directions of each edge, no loops. What is listed twice counts twice.
    weights: int64 [N, C]: each column is balanced up to ``1 + imbalance`` times its mean over the parts.
    edge_weights: int64 [E], >= 1; None: all 1.

    Raises `PartitionError` when METIS runs out of memory.
    """
    lib, n = _library(), len(indptr) - 1
    columns = np.ascontiguousarray(weights[:, weights.sum(axis=0) > 0], np.int64)  # METIS divides by the sums
    if num_parts == 1 or n == 0 or not columns.shape[1]:
        return np.zeros(n, np.int32)
    if n <= num_parts:
        return np.arange(n, dtype=np.int32)  # METIS would complain on stdout, and put all nodes into one part
    for array in (indptr, neighbors, edge_weights):
        assert array is None or (array.dtype == np.int64 and array.flags.c_contiguous)
    options, parts = np.empty(_NUM_OPTIONS, np.int64), np.zeros(n, np.int64)
    lib.METIS_SetDefaultOptions(options.ctypes.data)
    options[_SEED], options[_UFACTOR] = seed & 0x7FFFFFFF, max(1, round(imbalance * 1000))
    status = lib.METIS_PartGraphKway(
        byref(c_int64(n)),
        byref(c_int64(columns.shape[1])),
        *map(pointer, (indptr, neighbors, columns)),
        None,
        pointer(edge_weights),
        byref(c_int64(num_parts)),
        None,
        None,
        options.ctypes.data,
        byref(c_int64(0)),
        parts.ctypes.data,
    )
    if status == _MEMORY:
        raise PartitionError(
            f"METIS ran out of memory on {n:,} nodes and {len(neighbors) // 2:,} edges; it takes about 120 bytes per "
            "edge. Use partition.algorithm: streaming."
        )
    if status != _OK:
        raise NativeError(f"METIS failed with status {status} on {n:,} nodes, {num_parts} parts.")
    return parts.astype(np.int32)
