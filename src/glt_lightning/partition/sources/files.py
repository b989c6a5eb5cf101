"""``.npy`` files that are read by ranges, so that what was read does not stay in this process's memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from glt_lightning.errors import DataError
from glt_lightning.partition.pread import read_exactly


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
            raise DataError(
                f"{path}: expected plain numbers in C order, got {self.dtype} {list(self.shape)}, fortran={fortran}."
            )
        if size != self.dtype.itemsize * math.prod(self.shape):
            raise DataError(
                f"{path}: {size} bytes of data are not {self.dtype} {list(self.shape)}; the file is cut off or damaged."
            )
        self._row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice | np.ndarray, /) -> np.ndarray:
        if not isinstance(index, slice):
            return np.load(self.path, mmap_mode="r", allow_pickle=False)[index]
        begin, end, step = index.indices(len(self))
        out = np.empty((max(0, end - begin), *self.shape[1:]), self.dtype)
        with self._open() as stream:
            self._read(stream, out, begin * self._row_bytes)
        return out[::step]

    def blocks(self, size: int, row: int | None = None) -> Iterator[np.ndarray]:
        """The rows in order, or the elements of row ``row``, ``size`` at a time. A block is valid until the next."""
        count, shape, width, at = len(self), self.shape[1:], self._row_bytes, 0
        if row is not None:
            count, shape, width, at = self.shape[1], (), self.dtype.itemsize, row * self._row_bytes
        out = np.empty((min(size, count), *shape), self.dtype)
        with self._open() as stream:
            for begin in range(0, count, size):
                block = out[: min(size, count - begin)]
                self._read(stream, block, at + begin * width)
                yield block

    def _open(self) -> BinaryIO:
        return open(self.path, "rb", buffering=0)

    def _read(self, stream: BinaryIO, out: np.ndarray, at: int) -> None:
        try:
            read_exactly(stream.fileno(), out, self._offset + at)
        except EOFError as error:
            raise DataError(f"{self.path}: {error}; was it changed while it was read?") from None
