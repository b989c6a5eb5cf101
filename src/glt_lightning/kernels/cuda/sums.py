"""Sums over the rows that list a node, on a CUDA device."""

from __future__ import annotations

import numpy as np
import torch

from glt_lightning.kernels.assign import NeighborRows
from glt_lightning.kernels.cuda.kernels import Kernels
from glt_lightning.kernels.native import check


class CudaNeighborSums:
    """`NeighborSums` on a device: integers, so the very same sums. Takes 8 bytes of its memory per node and column.

    Rows and values are copied there and dropped again, chunk by chunk.
    """

    def __init__(self, num_nodes: int, width: int, kernels: Kernels) -> None:
        self._kernels, self._width = kernels, width
        self._out = kernels.zeros(num_nodes * width)
        self._error = kernels.new_error()

    def add(self, rows: NeighborRows, values: np.ndarray) -> None:
        """``sums[neighbour] += values[row]`` for each entry of the rows. values: int64 [rows, K]."""
        self._kernels.run(
            "glt_cuda_spread_rows",
            self._put(rows.indptr),
            self._put(rows.neighbors),
            rows.neighbors.itemsize,
            len(rows),
            rows.num_nodes,
            self._put(values),
            self._width,
            self._out,
            self._error,
        )

    def result(self) -> np.ndarray:
        """int64 [N, K]. Waits for the device. Raises `DataError` for a neighbour that is no node."""
        error = self._error.tolist()
        check(error[0], np.array(error[1:]), "spread rows")
        return self._out.reshape(-1, self._width).cpu().numpy()

    def _put(self, array: np.ndarray) -> torch.Tensor:
        # A pageable copy returns when the source may change, so chunks can be reused; the device keeps its own until
        # the kernel that reads it, which is on the same stream, is done.
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._kernels.device, copy=True)
