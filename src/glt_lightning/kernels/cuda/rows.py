"""Gathers rows on a CUDA device."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DataError
from glt_lightning.kernels.aggregate import KINDS, Edges
from glt_lightning.kernels.assign import NeighborRows
from glt_lightning.kernels.build import Encoding
from glt_lightning.kernels.cuda.stream import Kernels, kernels_of, raise_if
from glt_lightning.kernels.native import check
from glt_lightning.kernels.rows import row_bytes

_NOWHERE = 16  # aligned for every access, of which there is none


# The dtypes of tensors that may hold the stored rows of an encoding.
_STORED_AS = {
    "float16": (torch.float16,),
    "bfloat16": (torch.bfloat16, torch.int16, torch.uint16),
    "int8": (torch.uint8, torch.int8),
}


@dataclass(frozen=True, kw_only=True)
class RowsAt:
    """Rows at an address that the device reads, such as in registered memory of the host.

    address: the device address (`Registered.address_of`).  stride: bytes from the beginning of a row to that of the next; None:
    rows are contiguous.  keep: the object that keeps the memory alive.
    """

    address: int
    rows: int
    dtype: torch.dtype
    row_shape: tuple[int, ...]
    stride: int | None = None
    keep: object = None


class CudaShards:
    """An array whose rows lie in P shards, stacked in order, in device or pinned memory: the twin of `kernels.rows.Shards`.

    shards: P contiguous tensors [rows, ...] or `RowsAt`, of one dtype and one row shape; None for a shard that is not here.
    start: id of the first row.  bounds: int64 [P + 1], needed if a shard is None; else derived.
    encoding: the encoding of the stored values, which a gather decodes to float32. None: values are stored unchanged.
    lasting: the array serves any stream; else only the current one, and the constructor does not wait for it.

    A gather moves bytes and returns the torch dtype of the shards. If torch has another dtype for that of numpy (int16 for
    bfloat16), the caller converts the result (`Tensor.view`). Several threads and streams may gather at once; an instance must
    live until the device has finished its work.

    Attributes:
        dtype, row_shape: Dtype and row shape that a gather returns.
        stored_dtype, stored_row_shape, row_bytes: Dtype, row shape and bytes per row of the shards.
    """

    def __init__(
        self,
        shards: Sequence[Tensor | RowsAt | None],
        device: Kernels | torch.device | str,
        *,
        start: int = 0,
        bounds: np.ndarray | None = None,
        encoding: Encoding | None = None,
        lasting: bool = True,
    ) -> None:
        self._kernels, self._encoding = kernels_of(device), encoding
        self._shards = [self._rows_of(s) if isinstance(s, Tensor) else s for s in shards]
        present = [s for s in self._shards if s is not None]
        if not present:
            raise DataError("shards: expected at least one shard, got none.")
        first = present[0]
        for s in present:
            if (s.dtype, s.row_shape) != (first.dtype, first.row_shape):
                raise DataError(
                    f"shards: expected contiguous {first.dtype} rows of shape {list(first.row_shape)}, got {s.dtype} rows of "
                    f"shape {list(s.row_shape)}."
                )
        self.dtype, self.row_shape = self.stored_dtype, self.stored_row_shape = first.dtype, first.row_shape
        if encoding is not None:
            self._require_stored_as(encoding)
            self.dtype, self.row_shape = torch.float32, encoding.row_shape(first.row_shape)
        self.row_bytes = row_bytes(first.dtype, first.row_shape)
        strides = self._strides_of_shards()
        if bounds is None:
            bounds = start + np.cumsum([0, *(s.rows for s in present)])
        if len(bounds) != len(self._shards) + 1:
            raise DataError(
                f"bounds: expected {len(self._shards) + 1} for {len(self._shards)} shards, got {len(bounds)}."
            )
        self.bounds = np.ascontiguousarray(bounds, dtype=np.int64)
        # rows without bytes have no address, and address 0 stands for a shard that is not here
        addresses = np.array([0 if s is None else s.address or _NOWHERE for s in self._shards], dtype=np.uint64)
        copy = self._kernels.copy if lasting else self._kernels.put
        self._bounds, self._pointers = copy(self.bounds), copy(addresses.view(np.int64))
        self._strides = copy(strides) if (strides != self.row_bytes).any() else None
        self._error = copy(np.zeros(5, dtype=np.int64))

    def __len__(self) -> int:
        return int(self.bounds[-1] - self.bounds[0])

    @cached_property
    def raw(self) -> CudaShards:
        """The same rows as they are stored."""
        return self if self._encoding is None else CudaShards(self._shards, self._kernels, bounds=self.bounds)

    def extended(self, more: Sequence[tuple[int, Tensor | RowsAt]], end: int) -> CudaShards:
        """Returns the array with further shards behind these. more: (id of the first row, rows as stored), ascending.  end: the
        end of the ids; ids in gaps between shards have no rows. It serves the current stream alone (not ``lasting``)."""
        if not more:
            return self
        bounds = np.array([*self.bounds[:-1].tolist(), *(start for start, _ in more), end], dtype=np.int64)
        shards = [*self._shards, *(rows for _, rows in more)]
        return CudaShards(shards, self._kernels, bounds=bounds, encoding=self._encoding, lasting=False)

    def gather(self, ids: Tensor, out: Tensor | None = None, *, error: Tensor | None = None) -> Tensor:
        """Gathers rows ``ids`` (int64 [n]) into [n, ...]: ``out`` (contiguous), or a new tensor. Does not wait.

        error: int64 [5], zeros: receives an id outside the array (`raise_if`), whose row is left unchanged. None: call `check`.
        """
        ids = self._kernels.require_ids(ids, "ids")
        if out is None:
            out = self._kernels.empty(len(ids), *self.row_shape, dtype=self.dtype)
        self._require_out(out, len(ids))
        table = (self._pointers, self._strides, self._bounds, len(self._shards))
        rest = (ids, len(ids), out, self._error if error is None else error)
        if self._encoding is None:
            self._kernels.run("glt_cuda_gather", *table, self.row_bytes, *rest)
        else:
            encoded = (self._encoding.number, prod(self.row_shape))
            self._kernels.run("glt_cuda_gather_decode", *table, *encoded, *rest)
        return out

    def check(self) -> None:
        """Waits, and raises `DataError` if any id gathered so far was not in the array, by calls without an ``error``."""
        raise_if(Kernels.read(self._error), "gather")

    def _rows_of(self, shard: Tensor) -> RowsAt:
        if not shard.is_contiguous():
            raise DataError(f"shards: expected contiguous rows, got strides {shard.stride()} for {list(shard.shape)}.")
        if shard.numel() and shard.device != self._kernels.device and not shard.is_pinned():
            raise DataError(
                f"shards: expected memory of {self._kernels.device} or pinned memory, got a tensor on {shard.device}."
            )
        row_shape = tuple(shard.shape[1:])
        return RowsAt(address=shard.data_ptr(), rows=len(shard), dtype=shard.dtype, row_shape=row_shape, keep=shard)

    def _strides_of_shards(self) -> np.ndarray:
        """Returns the strides of the shards in bytes, int64 [P]."""
        strides = [self.row_bytes if s is None or s.stride is None else s.stride for s in self._shards]
        for stride in strides:
            if stride < self.row_bytes or stride % self.stored_dtype.itemsize:
                raise DataError(
                    f"shards: expected a stride of at least {self.row_bytes} bytes and a multiple of "
                    f"{self.stored_dtype.itemsize}, got {stride}."
                )
        return np.array(strides, dtype=np.int64)

    def _require_stored_as(self, encoding: Encoding) -> None:
        dtype, shape = self.stored_dtype, self.stored_row_shape
        has_head = not encoding.head or (len(shape) == 1 and shape[0] >= encoding.head)
        if dtype not in _STORED_AS[encoding.name] or not has_head:
            raise DataError(f"shards: {dtype} rows of shape {list(shape)} do not hold {encoding.name}.")
        for s in self._shards:
            if s is not None and s.rows and s.address % dtype.itemsize:
                raise DataError(
                    f"shards: expected an address that is a multiple of {dtype.itemsize}, got {s.address:#x}."
                )

    def _require_out(self, out: Tensor, n: int) -> None:
        shape = (n, *self.row_shape)
        if out.dtype != self.dtype or tuple(out.shape) != shape or not out.is_contiguous():
            raise DataError(
                f"out: expected contiguous {self.dtype} {list(shape)}, got {out.dtype} {list(out.shape)}"
                f"{'' if out.is_contiguous() else ', not contiguous'}."
            )


# Sums over the rows that list a node, on a CUDA device.


class CudaNeighborSums:
    """The twin of `NeighborSums` on a device. The sums are equal, since they are integers. Takes 8 bytes of device memory per
    node and column.

    Rows and values are copied to the device and freed again, chunk by chunk.
    """

    def __init__(self, num_nodes: int, width: int, kernels: Kernels) -> None:
        self._kernels, self._width = kernels, width
        self._out = kernels.zeros(num_nodes * width)
        self._error = kernels.new_error()

    def add(self, rows: NeighborRows, values: np.ndarray) -> None:
        """Adds ``sums[neighbour] += values[row]`` for each entry of the rows. values: int64 [rows, K]."""
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
        """Returns the sums, int64 [N, K]. Waits for the device. Raises `DataError` for a neighbour that is no node."""
        error = self._error.tolist()
        check(error[0], np.array(error[1:]), "spread rows")
        return self._out.reshape(-1, self._width).cpu().numpy()

    def _put(self, array: np.ndarray) -> torch.Tensor:
        # A pageable copy returns when the source may change, so chunks can be reused; the device keeps its own until
        # the kernel that reads it, which is on the same stream, is done.
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._kernels.device, copy=True)


# Aggregation over the edges of a batch by a CUDA device, and its gradients.


class CudaEdges:
    """The twin of `Edges` on a device, with equal results. Its methods take tensors instead of addresses, and do not wait.

    edges: the edges, whose indptr and src are the addresses of ``indptr`` and ``src``.

    Attributes:
        error: int64 [5], a status that the device sets for edges that contradict themselves; later calls then write nothing.
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
        """Raises `DataError` for edges that contradict themselves. Waits for the device."""
        status, *detail = Kernels.read(self.error)
        self._edges.check(status, np.array(detail))

    def _run(self, name: str, *arguments: Tensor | int | None) -> None:
        self._kernels.run(name, addressof(self._struct), *arguments, self.error)

    def _positions(self) -> Tensor:
        return torch.arange(self._edges.num_edges, device=self._indptr.device)

    def _destinations(self) -> Tensor:
        """Returns the destination of each edge, int64 [E]; for edges before the first row or behind the last, any number up to
        D."""
        return torch.searchsorted(self._indptr[1:], self._positions(), right=True)

    def _by_source(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sorts edges by source. Returns the position of each source's first edge, int64 [S + 1], and for each edge its
        destination and its position, int64 [E]. Uses torch's stable sort, which is a radix sort on a device, where the host
        counts."""
        positions, sources = self._positions(), self._edges.num_sources
        is_inside = (positions >= self._indptr[0]) & (positions < self._indptr[-1])
        key, edge = torch.where(is_inside, positions if self._src is None else self._src, sources).sort(stable=True)
        begins = torch.searchsorted(key, torch.arange(sources + 1, device=key.device))
        return begins, self._destinations()[edge], edge
