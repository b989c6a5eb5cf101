"""Aggregation over the edges of a batch by a CUDA device, and its gradients."""

from __future__ import annotations

from ctypes import addressof

import numpy as np
import torch
from torch import Tensor

from glt_lightning.kernels.aggregate import KINDS, Edges
from glt_lightning.kernels.cuda.kernels import Kernels, read


class CudaEdges:
    """`Edges` on a device. The calls are the same with tensors for addresses, and so are the bits; they do not wait.

    edges: whose indptr and src are the addresses of ``indptr`` and ``src``.

    Attributes:
        error: int64 [5], where the device tells of edges that contradict themselves; all later calls then write nothing.
    """

    def __init__(self, kernels: Kernels, edges: Edges, indptr: Tensor, src: Tensor | None) -> None:
        self._kernels, self._edges, self._struct = kernels, edges, edges.struct
        self._indptr, self._src = indptr, src
        self.error = kernels.new_error()

    def aggregate(self, kind: str, x: Tensor, weights: Tensor | None, out: Tensor) -> None:
        self._run("glt_cuda_aggregate", KINDS[kind], x, weights, out)

    def grad(
        self, kind: str, grad: Tensor, weights: Tensor | None, x: Tensor | None, out: Tensor | None, grad_x: Tensor
    ) -> None:
        room = {"sum": 0, "mean": self._edges.num_rows}.get(kind, grad.numel())
        of_sums = torch.float64 if grad.dtype == torch.float64 else torch.float32
        workspace = self._kernels.empty(room, dtype=of_sums)
        arrays = (grad, weights, x, out, workspace, grad_x)
        self._run("glt_cuda_aggregate_grad", *self._by_source(), KINDS[kind], *arrays)

    def weights_grad(self, kind: str, grad: Tensor, x: Tensor, grad_weights: Tensor) -> None:
        self._run("glt_cuda_aggregate_weights_grad", self._destinations(), KINDS[kind], grad, x, grad_weights)

    def check(self) -> None:
        """Waits. Raises `DataError` for edges that contradict themselves."""
        status, *detail = read(self.error)
        self._edges.check(status, np.array(detail))

    def _run(self, name: str, *arguments: Tensor | int | None) -> None:
        self._kernels.run(name, addressof(self._struct), *arguments, self.error)

    def _positions(self) -> Tensor:
        return torch.arange(self._edges.num_edges, device=self._indptr.device)

    def _destinations(self) -> Tensor:
        """int64 [E]; of edges before the first row or behind the last, any number up to D."""
        return torch.searchsorted(self._indptr[1:], self._positions(), right=True)

    def _by_source(self) -> tuple[Tensor, Tensor, Tensor]:
        """Where the edges of each source begin, int64 [S + 1]; of each, its destination and its position, int64 [E]. By torch's
        stable sort, which is a radix sort on a device; the host counts."""
        positions, sources = self._positions(), self._edges.num_sources
        is_inside = (positions >= self._indptr[0]) & (positions < self._indptr[-1])
        key, edge = torch.where(is_inside, positions if self._src is None else self._src, sources).sort(stable=True)
        begins = torch.searchsorted(key, torch.arange(sources + 1, device=key.device))
        return begins, self._destinations()[edge], edge
