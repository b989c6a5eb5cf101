"""What a device reads: copies in its own memory, and arrays of the host where they lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from glt_lightning.graph.arrays import open_array
from glt_lightning.graph.local_partition import LocalPartition
from glt_lightning.graph.shared_arrays import SharedArrays
from glt_lightning.kernels import CudaShards, Encoding, Kernels, Registered, RowsAt

# torch has few operations on these; they travel as the signed integers with the same bytes
_CARRIED_AS = {"uint16": np.int16, "uint32": np.int32, "uint64": np.int64}


class DeviceMemory:
    """Keeps the memory of one partition for one device. Close it.

    shared: arrays of the host, by their paths in the folder; closed with this, and also where this cannot be made.
    read_in_place: the device shall read them where they are.

    Attributes:
        nbytes: ``device``: of copies; ``uva``: of memory of the host that the device reads.
    """

    def __init__(
        self, partition: LocalPartition, kernels: Kernels, shared: SharedArrays | None, read_in_place: bool
    ) -> None:
        self._partition, self._kernels, self._shared = partition, kernels, shared
        self._copies: list[Tensor] = []
        self.nbytes, self._registered = {"device": 0, "uva": 0}, None
        try:
            if shared is not None and read_in_place:
                self._registered = Registered(kernels, shared.memory)
                self.nbytes["uva"] = shared.nbytes
        except BaseException:
            self._release()
            raise

    def array(self, path: str) -> np.ndarray:
        """The mapped file, or what the host has of it."""
        if self._shared is not None and path in self._shared.arrays:
            return self._shared.arrays[path]
        return open_array(self._partition.directory, path, self._partition.manifest.arrays[path])

    def copy(self, array: np.ndarray) -> Tensor:
        """On the device, under a dtype that torch carries."""
        self._copies.append(self._kernels.copy(_carried(array)))
        self.nbytes["device"] += array.nbytes
        return self._copies[-1]

    def address_of_copy(self, array: np.ndarray) -> int:
        return self.copy(array).data_ptr()

    def address_of(self, array: np.ndarray) -> int:
        """Where the device reads what `array` gave, or a piece of it, on the host."""
        return self._on_host().address_of(array)

    def shards(
        self,
        kind: str,
        paths: Sequence[str | None],
        bounds: np.ndarray,
        encoding: Encoding | None,
        hot: Sequence[int],
    ) -> CudaShards:
        """An attribute whose parts are the arrays at ``paths``, None where a part is not mapped.

        kind: ``device``, ``uva`` or ``hybrid``.  bounds: int64 [P + 1].  hot: of P parts, how many of the first rows are on
        the device, if it is ``hybrid``.
        """
        shards: list[Tensor | RowsAt | None] = []
        starts: list[int] = []
        for path, begin, k in zip(paths, bounds[:-1].tolist(), hot, strict=True):
            array = None if path is None else self.array(path)
            if array is None or kind == "device":
                pieces: list[Tensor | RowsAt | None] = [None if array is None else self.copy(array)]
            elif kind == "hybrid" and k:
                pieces = [self.copy(array[:k]), self._rows_at(array[k:])]
            else:
                pieces = [self._rows_at(array)]
            starts += [begin, begin + k][: len(pieces)]
            shards += pieces
        whole = np.array([*starts, bounds[-1]], dtype=np.int64)
        return CudaShards(shards, self._kernels, bounds=whole, encoding=encoding)

    def _rows_at(self, array: np.ndarray) -> RowsAt:
        dtype = torch.from_numpy(_carried(array[:0])).dtype
        return RowsAt(
            address=self._on_host().address_of_rows(array),
            rows=len(array),
            dtype=dtype,
            row_shape=array.shape[1:],
            stride=array.strides[0] if len(array) > 1 and array.nbytes else None,  # else numpy promises nothing of it
            keep=array,
        )

    def _on_host(self) -> Registered:
        assert self._registered is not None, "no memory of the host is registered"
        return self._registered

    def close(self) -> None:
        """Gives it back; no kernel may be reading it. Safe to call twice."""
        try:
            if self._registered is not None:
                self._registered.close()
        finally:  # also where the device has failed
            self._copies.clear()
            self._release()

    def _release(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None


def _carried(array: np.ndarray) -> np.ndarray:
    return array.view(_CARRIED_AS.get(array.dtype.name, array.dtype))
