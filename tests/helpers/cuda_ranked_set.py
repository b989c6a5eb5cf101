"""A set of ids that tells each member's rank, read by a CUDA device."""

from __future__ import annotations

import torch
from torch import Tensor

from glt_lightning.kernels import Kernels


class CudaRankedSet:
    """`ops.ranked_set.RankedSet` on the other side.

    words: what `RankedSet.build` made: a tensor (int64) of the device, or the address where the device reads them, which
    must stay valid.
    """

    def __init__(self, words: Tensor | int, first: int, num_ids: int, kernels: Kernels) -> None:
        self._words, self._first, self._num_ids, self._kernels = words, first, num_ids, kernels

    def find(self, ids: Tensor) -> Tensor:
        """int32 [n]: how many members are below each of ``ids`` (int64 [n]), -1 for those that are not members."""
        ids = self._kernels.require_ids(ids, "ids")
        rank = self._kernels.empty(len(ids), dtype=torch.int32)
        self._kernels.run("glt_cuda_rank_find", self._words, self._first, self._num_ids, ids, len(ids), rank)
        return rank
