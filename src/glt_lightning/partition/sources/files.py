"""``.npy`` files that are read by ranges, so that what was read does not stay in this process's memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from glt_lightning.errors import DataError


class NpyFile:
    """Rows of an ``.npy`` file: slices are read, index arrays go through a map of the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as stream:
                version = np.lib.format.read_magic(stream)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                self.shape, fortran, self.dtype = read(stream)
                self._offset = stream.tell()
                size = os.fstat(stream.fileno()).st_size - self._offset
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: expected an .npy file ({error}).") from None
        if self.dtype.hasobject or (fortran and len(self.shape) > 1) or not self.shape:
            raise DataError(f"{path}: expected plain numbers in C order, got {self.dtype} {list(self.shape)}, fortran={fortran}.")
        if size != self.dtype.itemsize * math.prod(self.shape):
            raise DataError(f"{path}: {size} bytes of data are not {self.dtype} {list(self.shape)}; the file is cut off or damaged.")
        self._row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice | np.ndarray, /) -> np.ndarray:
        if not isinstance(index, slice):
            return np.load(self.path, mmap_mode="r", allow_pickle=False)[index]
        begin, end, step = index.indices(len(self))
        out = np.empty((max(0, end - begin), *self.shape[1:]), self.dtype)
        with open(self.path, "rb", buffering=0) as stream:
            stream.seek(self._offset + begin * self._row_bytes)
            _read_into(stream.fileno(), memoryview(out.reshape(-1).view(np.uint8)), self.path)
        return out[::step]

    def blocks(self, size: int) -> Iterator[np.ndarray]:
        """The rows in order, ``size`` at a time, through one buffer: a block is valid until the next."""
        out = np.empty((min(size, len(self)), *self.shape[1:]), self.dtype)
        with open(self.path, "rb", buffering=0) as stream:
            stream.seek(self._offset)
            for begin in range(0, len(self), size):
                block = out[: min(size, len(self) - begin)]
                _read_into(stream.fileno(), memoryview(block.reshape(-1).view(np.uint8)), self.path)
                yield block


def _read_into(fd: int, data: memoryview, path: Path) -> None:
    while data:
        got = os.readv(fd, [data])
        if got == 0:
            raise DataError(f"{path}: ended {len(data)} bytes early; was it changed while it was read?")
        data = data[got:]
