"""A typed graph in memory that a CUDA device reads."""

from __future__ import annotations

import copy
import ctypes
import resource
import weakref
from collections.abc import Callable, Sequence
from ctypes import addressof, c_void_p
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DataError, NativeError
from glt_lightning.kernels.cuda.stream import Kernels, kernels_of
from glt_lightning.kernels.graph import GraphView, segment_hints
from glt_lightning.kernels.native import GraphStruct

# Returns the address at which the device reads an array. The function keeps the memory alive, not its caller.
Place = Callable[[np.ndarray], int]


@dataclass
class GraphAddresses:
    """The addresses at which a device reads the arrays of a graph in Q parts; 0 for an array that is not here. T node types, R
    edge types.

    bounds: int64 [T * Q + 1], first gid of each segment.  user_ids: [T * Q].  indptr, indices, edge_base, num_edges: [R * Q],
    as in `GraphView`; the values of ``indptr`` count from the beginning of ``indices``, ``sums`` and ``times``.
    """

    bounds: np.ndarray
    user_ids: list[int] = field(default_factory=list)
    indptr: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    edge_base: list[int] = field(default_factory=list)
    num_edges: list[int] = field(default_factory=list)
    sums: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)

    @classmethod
    def whole(cls, view: GraphView, place: Place) -> GraphAddresses:
        """Returns the addresses of the whole, unsplit graph."""
        arrays, user_ids = view._keep
        return cls(
            view.bounds,
            [0 if ids is None else place(ids) for ids in user_ids],
            [0 if r is None else place(r.indptr) for r in arrays],
            [0 if r is None else place(r.indices) for r in arrays],
            view._edge_base.tolist(),
            view._num_edges.tolist(),
            [0 if r is None or r.sums is None else place(r.sums) for r in arrays],
            [0 if r is None or r.times is None else place(r.times) for r in arrays],
        )

    @classmethod
    def split(
        cls,
        view: GraphView,
        rows: np.ndarray,
        hot: Place,
        rest: Place,
        *,
        ids: Place | None = None,
        pointers: Place | None = None,
    ) -> GraphAddresses:
        """Returns the addresses of a graph with each part split in two: its first rows, and the rows behind them.

        rows: int64 [T, P], the number of first rows.  hot: copies an array of first rows and returns its address.  rest: returns
        the address of a whole array.  ids, pointers: as ``rest``, for user ids and row pointers that are not split.
        """
        arrays, user_ids = view._keep
        starts = view.bounds[:-1]
        bounds = np.append(np.stack([starts, starts + rows.reshape(-1)], axis=1).reshape(-1), view.num_nodes)
        made = cls(bounds)
        for each, k in zip(user_ids, rows.reshape(-1).tolist(), strict=True):
            made.user_ids += (0, 0) if each is None else _split(each, k, k, hot, rest, ids)
        for r, t in enumerate(view.dst_types.tolist()):
            for p in range(view.num_parts):
                of, k = arrays[r * view.num_parts + p], int(rows[t, p])
                made.edge_base += [int(view.edge_bounds[r, p])] * 2
                if of is None or len(of.indptr) == 0:
                    made._append((0, 0), (0, 0), (0, 0), (0, 0), (0, 0))
                    continue
                entries = int(of.indptr[k])
                lists = of.indices[:entries]
                sums, times = (
                    (0, 0) if each is None else (hot(each[:entries]) if k else 0, rest(each))
                    for each in (of.sums, of.times)
                )
                made._append(
                    _split(of.indptr, k, k + 1, hot, rest, pointers),
                    (hot(lists) if k else 0, rest(of.indices)),
                    (len(lists), len(of.indices)),
                    sums,
                    times,
                )
        return made

    def _append(
        self,
        indptr: tuple[int, int],
        indices: tuple[int, int],
        num_edges: tuple[int, int],
        sums: tuple[int, int],
        times: tuple[int, int],
    ) -> None:
        self.indptr += indptr
        self.indices += indices
        self.num_edges += num_edges
        self.sums += sums
        self.times += times


def _split(array: np.ndarray, k: int, entries: int, hot: Place, rest: Place, whole: Place | None) -> tuple[int, int]:
    """Returns the addresses of the entries of the first k rows, and of the remaining rows."""
    at = (rest if whole is None else whole)(array)
    first = at if whole is not None else (hot(array[:entries]) if k else 0)
    return first, at + k * array.itemsize


class DeviceGraph:
    """A `GraphView` in memory that the device reads.

    addresses: those of the view's arrays; the memory belongs to the caller and has to live as long as this object.
    """

    def __init__(
        self, kernels: Kernels, view: GraphView, addresses: GraphAddresses, keep: Sequence[Tensor] = ()
    ) -> None:
        self.kernels = kernels
        self.num_types, self.num_edge_types, self.num_nodes = view.num_types, view.num_edge_types, view.num_nodes
        self.src_types, self.dst_types = view.src_types.tolist(), view.dst_types.tolist()
        self.type_sizes = np.diff(view.type_offsets).tolist()
        self._keep = list(keep)
        shift, hint = segment_hints(addresses.bounds)
        all_ids = [] if view.labor is None else view.labor.joined
        self.struct = GraphStruct(
            num_types=view.num_types,
            num_edge_types=view.num_edge_types,
            num_parts=(len(addresses.bounds) - 1) // view.num_types,
            id_bytes=view.id_bytes,
            shift=shift,
            bounds=self._put(addresses.bounds),
            hint=self._put(hint),
            src_type=self._put(view.src_types),
            dst_type=self._put(view.dst_types),
            key=self._put(view.keys),
            indptr=self._table(addresses.indptr),
            indices=self._table(addresses.indices),
            user_ids=self._table(addresses.user_ids),
            edge_base=self._table(addresses.edge_base),
            num_edges=self._table(addresses.num_edges),
            sums=self._table(addresses.sums) if any(addresses.sums) else None,
            times=self._table(addresses.times) if any(addresses.times) else None,
            type_key=None if view.labor is None else self._put(np.array(view.labor.keys, dtype=np.uint64)),
            all_ids=None if view.labor is None else self._table([0 if a is None else self._put(a) for a in all_ids]),
            num_ids=None if view.labor is None else self._table([0 if a is None else len(a) for a in all_ids]),
        )
        self.address = ctypes.addressof(self.struct)

    @classmethod
    def from_view(cls, view: GraphView, device: Kernels | torch.device | str) -> DeviceGraph:
        """Copies the arrays of the parts that are mapped; takes their bytes of device memory."""
        kernels, keep = kernels_of(device), []

        def place(array: np.ndarray) -> int:
            keep.append(kernels.copy(array))
            return keep[-1].data_ptr()

        return cls(kernels, view, GraphAddresses.whole(view, place), keep)

    def drawn_by(self, *, sums: bool, labor: bool) -> DeviceGraph:
        """Returns the graph, in the same memory, for draws by its prefix sums or uniform ones, and by LABOR or not."""
        graph = copy.copy(self)
        graph.struct = GraphStruct.from_buffer_copy(self.struct)
        if not sums:
            graph.struct.sums = None
        if not labor:
            graph.struct.all_ids = None
        graph.address = ctypes.addressof(graph.struct)
        return graph

    def without_edges(self, src_types: Sequence[int], dst_types: Sequence[int]) -> DeviceGraph:
        """Returns the same nodes with other edge types, which have no edges: for batches whose edges are found by walks."""
        graph = copy.copy(self)
        graph.src_types, graph.dst_types, graph.num_edge_types = list(src_types), list(dst_types), len(src_types)
        graph.struct = GraphStruct.from_buffer_copy(self.struct)
        graph.struct.num_edge_types = 0
        graph.address = ctypes.addressof(graph.struct)
        return graph

    def _put(self, array: np.ndarray) -> int:
        self._keep.append(self.kernels.copy(array))
        return self._keep[-1].data_ptr()

    def _table(self, numbers: Sequence[int]) -> int:
        return self._put(np.array(numbers, dtype=np.int64))


# Host memory that a CUDA device reads in place, over the bus.


_PAGE_BYTES = resource.getpagesize()


class Registered:
    """Page-locks host memory and maps it for a device. Close it when the device has finished all work that reads it. An object
    that is garbage-collected unlocks its memory, too, before that is unmapped. Either waits for the device.

    memory: uint8 [nbytes], writable, beginning at a page, registered once in this process; referenced until closed.
    Raises `NativeError` if it cannot be locked.
    """

    def __init__(self, kernels: Kernels, memory: np.ndarray) -> None:
        if memory.dtype != np.uint8 or memory.ndim != 1 or not memory.flags.c_contiguous or not memory.flags.writeable:
            raise DataError(
                f"memory: expected writable, contiguous uint8 [nbytes], got {memory.dtype} {list(memory.shape)}"
                f"{'' if memory.flags.writeable else ', read-only'}."
            )
        self._first, self.nbytes = memory.ctypes.data, memory.nbytes
        if self.nbytes and self._first % _PAGE_BYTES:
            raise DataError(
                f"memory: expected an address that begins a page of {_PAGE_BYTES:,} bytes, got {self._first:#x}."
            )
        self._on_device = self._register(kernels) if self.nbytes else 0
        self._unlock = weakref.finalize(self, _unlock, kernels, memory)
        self._unlock.atexit = False

    def _register(self, kernels: Kernels) -> int:
        on_device = c_void_p()
        try:
            kernels.ask("glt_cuda_host_register", self._first, self.nbytes, addressof(on_device))
        except NativeError as error:
            raise NativeError(
                f"{self.nbytes:,} bytes of host memory could not be page-locked for {kernels.device}: {error} The host, and the "
                "memory limit of the container, must have that much free. Free memory, raise the limit, use a smaller graph, or "
                "set sampling.topology and sampling.features to device or cpu."
            ) from None
        return int(on_device.value or 0)

    def address_of(self, array: np.ndarray) -> int:
        """Returns the device address of a contiguous array in this memory. Valid until closed."""
        return self._address(array, array.nbytes if array.flags.c_contiguous else None)

    def address_of_rows(self, array: np.ndarray) -> int:
        """Returns the device address of an array with contiguous rows, between which other bytes may lie (``strides[0]``)."""
        row = array[:1]
        if not row.flags.c_contiguous or (len(array) > 1 and array.strides[0] < row.nbytes):
            return self._address(array, None)
        return self._address(array, (len(array) - 1) * array.strides[0] + row.nbytes if array.nbytes else 0)

    def _address(self, array: np.ndarray, extent: int | None) -> int:
        """Returns the device address of an array. extent: bytes from its first to its last; None: its memory layout is not
        supported."""
        if not self._unlock.alive:
            raise NativeError("memory: this registered memory was closed, so the device can no longer read it.")
        offset = array.ctypes.data - self._first if extent else 0
        if extent is None or offset < 0 or offset + extent > self.nbytes:
            raise DataError(
                f"array: expected a contiguous one within the {self.nbytes:,} bytes registered, got {array.dtype} "
                f"{list(array.shape)}, strides {list(array.strides)}, at byte {offset:,}."
            )
        return self._on_device + offset

    def close(self) -> None:
        """Unlocks the memory. Safe to call twice, also after an error."""
        self._unlock()

    def __enter__(self) -> Registered:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _unlock(kernels: Kernels, memory: np.ndarray) -> None:
    if memory.nbytes:
        kernels.ask("glt_cuda_host_unregister", memory.ctypes.data)
