"""What a device reads: copies in its own memory, and arrays of the host where they lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from glt_lightning.data.arrays import open_array
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.shared_arrays import SharedArrays
from glt_lightning.ops.cuda import Kernels
from glt_lightning.ops.cuda_gather import CudaShards
from glt_lightning.ops.cuda_memory import Registered

# torch has few operations on these; they travel as the signed integers with the same bytes
_CARRIED_AS = {"uint16": np.int16, "uint32": np.int32, "uint64": np.int64}


class DeviceMemory:
    """Keeps the memory of one partition for one device. Close it.

    shared: arrays of the host, by their paths in the folder, that the device shall read; closed with this, and also where
    they cannot be registered.

    Attributes:
        nbytes: ``device``: of copies; ``uva``: of what is read on the host.
    """

    def __init__(self, partition: LocalPartition, kernels: Kernels, shared: SharedArrays | None = None) -> None:
        self._partition, self._kernels, self._shared = partition, kernels, shared
        self._copies: list[Tensor] = []
        self.nbytes = {"device": 0, "uva": 0 if shared is None else shared.nbytes}
        try:
            self._registered = None if shared is None else Registered(kernels, shared.memory)
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
        assert self._registered is not None, "no memory of the host is registered"
        return self._registered.address_of(array)

    def shards(self, kind: str, paths: Sequence[str | None], bounds: np.ndarray, hot: np.ndarray) -> CudaShards:
        """An attribute whose parts are the arrays at ``paths``, None where a part is not mapped.

        kind: ``device``, ``uva`` or ``hybrid``.  bounds: int64 [P + 1].  hot: int64 [P], the rows of each part that are on
        the device, if it is ``hybrid``.
        """
        shards: list[Tensor | None] = []
        starts: list[int] = []
        for path, begin, k in zip(paths, bounds[:-1].tolist(), hot.tolist(), strict=True):
            for start, rows in self._pieces(kind, path, k):
                starts.append(begin + start)
                shards.append(rows)
        return CudaShards(shards, self._kernels, bounds=np.array([*starts, bounds[-1]], dtype=np.int64))

    def _pieces(self, kind: str, path: str | None, k: int) -> Iterator[tuple[int, Tensor | None]]:
        """(first row, rows)"""
        if path is None:
            yield 0, None
            return
        array = self.array(path)
        if kind == "device":
            yield 0, self.copy(array)
            return
        if kind == "hybrid" and k:
            yield 0, self.copy(array[:k])
            yield k, torch.from_numpy(_carried(array[k:]))
        else:
            yield 0, torch.from_numpy(_carried(array))

    def close(self) -> None:
        """Gives it back; no kernel may be reading it. Safe to call twice."""
        if self._registered is not None:
            self._registered.close()
        self._copies.clear()
        self._release()

    def _release(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None


def _carried(array: np.ndarray) -> np.ndarray:
    return array.view(_CARRIED_AS.get(array.dtype.name, array.dtype))
