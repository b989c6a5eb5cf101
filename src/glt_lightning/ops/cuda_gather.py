"""Gathering rows by a CUDA device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from glt_lightning.errors import DataError
from glt_lightning.ops.cuda import Kernels, kernels_of, raise_if, read


class CudaShards:
    """An array whose rows lie in P shards, stacked in order, in device or pinned memory; `ops.gather.Shards` otherwise.

    shards: P contiguous tensors [rows, ...] of one dtype and one row shape, or None where a shard is not here.
    start: id of the first row.  bounds: int64 [P + 1], needed when a shard is None; else derived.
    """

    def __init__(
        self,
        shards: Sequence[Tensor | None],
        device: Kernels | torch.device | str,
        *,
        start: int = 0,
        bounds: np.ndarray | None = None,
    ) -> None:
        self._kernels, self._keep = kernels_of(device), list(shards)
        present = [s for s in shards if s is not None]
        if not present:
            raise DataError("shards: expected at least one shard, got none.")
        first = present[0]
        for s in present:
            self._require(s, first)
        self._dtype, self._row_shape = first.dtype, first.shape[1:]
        self._row_bytes = first.element_size() * first.shape[1:].numel()
        if bounds is None:
            bounds = start + np.cumsum([0, *(len(s) for s in present)])
        self._bounds = self._kernels.copy(np.asarray(bounds, dtype=np.int64))
        self._pointers = self._kernels.copy(
            np.array([0 if s is None else s.data_ptr() for s in shards], dtype=np.int64)
        )
        self._error = self._kernels.new_error()

    def _require(self, shard: Tensor, first: Tensor) -> None:
        if shard.dtype != first.dtype or shard.shape[1:] != first.shape[1:] or not shard.is_contiguous():
            raise DataError(
                f"shards: expected contiguous {first.dtype} rows of shape {list(first.shape[1:])}, got {shard.dtype} rows of "
                f"shape {list(shard.shape[1:])}."
            )
        if shard.numel() and shard.device != self._kernels.device and not shard.is_pinned():
            raise DataError(
                f"shards: expected memory of {self._kernels.device} or pinned memory, got a tensor on {shard.device}."
            )

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Rows ``ids`` (int64 [n]) as [n, ...]; into ``out`` (contiguous) where given. Does not wait: see `check`."""
        ids = self._kernels.require_ids(ids, "ids")
        if out is None:
            out = self._kernels.empty(len(ids), *self._row_shape, dtype=self._dtype)
        arguments = (self._pointers, self._bounds, len(self._keep), self._row_bytes, ids, len(ids), out, self._error)
        self._kernels.run("glt_cuda_gather", *arguments)
        return out

    def check(self) -> None:
        """Waits, and raises `DataError` if any id gathered so far was not in the array; its row was left as it was."""
        raise_if(read(self._error), "gather")
