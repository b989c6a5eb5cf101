"""The trees of a disjoint batch, in a device's memory."""

from __future__ import annotations

import ctypes

import numpy as np
from torch import Tensor

from glt_lightning.kernels.cuda.kernels import Kernels
from glt_lightning.kernels.trees import Trees, TreesStruct


class DeviceTrees:
    """The bounds of `ops.trees.Trees`, copied for the current stream; for calls that are queued on it while this object lives.

    last: of entries with times the latest are drawn, not any.
    """

    def __init__(self, trees: Trees, last: bool, kernels: Kernels) -> None:
        self._num_trees, self._last = trees.num_trees, last
        self._bounds = [None if bound is None else kernels.put(bound) for bound in (trees.since, trees.until)]

    def struct(self, tree: Tensor) -> ctypes.Structure:
        """For a native call about rows. tree: int32 [F], of each, which has to live as long."""
        table = np.array([tree.data_ptr()], dtype=np.int64)
        bounds = [None if bound is None else bound.data_ptr() for bound in self._bounds]
        struct = TreesStruct(self._num_trees, table.ctypes.data, *bounds, self._last)
        struct.keep = (self, table, tree)
        return struct
