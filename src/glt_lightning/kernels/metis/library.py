"""METIS, the multilevel graph partitioner (Karypis and Kumar, 1998), with several balance constraints.

The library is the one of pymetis. Its Python function balances one weight per node, METIS itself any number of weights, as
needed to balance node types, seeds and edges at once. Therefore the C function is called.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
from functools import cache
from itertools import accumulate
from pathlib import Path

import numpy as np

from glt_lightning.base import NativeError, PartitionError
from glt_lightning.kernels.metis.process import NEEDS, OUT_OF_MEMORY, call_metis

_OK = 1


@cache
def _library() -> Path:
    try:
        from pymetis import _internal
    except ImportError as error:
        raise NativeError(
            f"METIS is not installed ({error}). Install it (`pip install pymetis`), or use partition.algorithm: streaming."
        ) from None
    lib = ctypes.CDLL(_internal.__file__)
    if not hasattr(lib, "METIS_PartGraphKway") or _internal._idx_type_width() != 64:
        raise NativeError(
            f"{_internal.__file__}: this METIS was built without 64-bit ids. Install a wheel of pymetis (>= 2025.2.1), or use "
            "partition.algorithm: streaming."
        )
    return Path(_internal.__file__)


class MetisGraph:
    """A graph in memory that it shares with METIS's process, so that there is no second copy. Fill it, then `cut` it.

    weights: integers [N, C]: each column is balanced.
    most_neighbors: the capacity for neighbours; unused capacity takes no memory.

    Raises `NativeError` if METIS is not installed.

    Attributes:
        indptr: int64 [N + 1], to be filled.
        neighbors: int64 [most_neighbors], to be filled from the start: both directions of each edge, no loops. An edge that
            is listed twice counts twice.
        edge_weights: int64 [most_neighbors], to be filled likewise with integers >= 1; None unless ``weighted``: all 1.
    """

    def __init__(self, weights: np.ndarray, most_neighbors: int, *, weighted: bool = False) -> None:
        self._library = _library()
        columns = weights[:, weights.sum(axis=0, dtype=np.int64) > 0]  # METIS divides by the sums
        nodes, self._columns = columns.shape
        counts = {"indptr": nodes + 1, "parts": nodes, "weights": columns.size, "neighbors": most_neighbors}
        counts |= {"edge_weights": most_neighbors} if weighted else {}
        ends = [8 * end for end in accumulate(counts.values(), initial=0)]
        self._offsets: dict[str, int | None] = {"edge_weights": None} | dict(zip(counts, ends, strict=False))
        self._bytes = ends[-1]
        self._fd = os.memfd_create("glt-metis", os.MFD_CLOEXEC)
        try:
            memory = _map(self._fd, self._bytes)
        except OSError as error:
            self.close()
            raise PartitionError(
                f"METIS: {self._bytes:,} bytes of shared memory could not be allocated: {error}. If the host has that much free, "
                "raise the limits of the process (`ulimit -f -v`); else use partition.algorithm: streaming."
            ) from error
        arrays = {
            name: np.frombuffer(memory, np.int64, count, at)
            for (name, count), at in zip(counts.items(), ends, strict=False)
        }
        arrays["weights"].reshape(columns.shape)[:] = columns
        self.indptr, self.neighbors, self._parts = arrays["indptr"], arrays["neighbors"], arrays["parts"]
        self.edge_weights = arrays.get("edge_weights")

    def cut(self, num_parts: int, *, imbalance: float = 0.03, seed: int = 0) -> np.ndarray:
        """Returns int32 [N]: a part for each node, few edges between parts. It may leave parts empty when there are few nodes.

        imbalance: each column of weights is balanced up to ``1 + imbalance`` times its mean over the parts.

        Raises `PartitionError` when METIS runs out of memory.
        """
        n = len(self._parts)
        if num_parts == 1 or n == 0 or not self._columns:
            return np.zeros(n, np.int32)
        if n <= num_parts:
            return np.arange(n, dtype=np.int32)  # METIS would put all nodes into one part
        call = {"nodes": n, "columns": self._columns, "parts": num_parts}
        call |= {"seed": seed & 0x7FFFFFFF, "permille": max(1, round(imbalance * 1000))}
        status = call_metis(self._library, self._fd, self._bytes, self._offsets, call)
        if status == OUT_OF_MEMORY:
            raise PartitionError(
                f"METIS ran out of memory on {n:,} nodes and {int(self.indptr[-1]) // 2:,} edges; {NEEDS}"
            )
        if status != _OK:
            raise NativeError(
                f"METIS failed with status {status} on {n:,} nodes, {num_parts} parts. Use partition.algorithm: streaming."
            )
        return self._parts.astype(np.int32)

    def close(self) -> None:
        """Closes the memory, which is freed when the arrays are gone, too. Safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> MetisGraph:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _map(fd: int, nbytes: int) -> mmap.mmap:
    os.ftruncate(fd, nbytes)
    memory = mmap.mmap(fd, nbytes)
    with suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


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
    """Partitions a small graph, of which it makes a copy. Returns int32 [N], the parts; the arrays are as in `MetisGraph`."""
    with MetisGraph(weights, len(neighbors), weighted=edge_weights is not None) as graph:
        graph.indptr[:], graph.neighbors[:] = indptr, neighbors
        if edge_weights is not None:
            assert graph.edge_weights is not None
            graph.edge_weights[:] = edge_weights
        return graph.cut(num_parts, imbalance=imbalance, seed=seed)
