"""Working storage of the partitioner: memory if it fits, else a file without a name."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import TracebackType

import numpy as np

from glt_lightning.graph import disk_full_speaks
from glt_lightning.partition.build.pread import read_exactly


def float_matrix(rows: int, columns: int, folder: Path, limit: int) -> np.ndarray:
    """Zeros, float32 [rows, columns]: in memory if that takes at most ``limit`` bytes, else a memory-mapped nameless file."""
    size = 4 * rows * columns
    if size <= limit:
        return np.zeros((rows, columns), np.float32)
    with tempfile.TemporaryFile(dir=folder) as file, disk_full_speaks(folder, size):
        os.posix_fallocate(
            file.fileno(), 0, size
        )  # else writing a mapped page on a full disk kills the process (SIGBUS)
        return np.memmap(file, np.float32, "r+", shape=(rows, columns))


class Scratch:
    """``size`` bytes that are written in pieces and read in ranges.

    Attributes:
        memory: uint8 [size] if the bytes are held in memory, else None.
    """

    def __init__(self, size: int, folder: Path, limit: int) -> None:
        self.memory = np.empty(size, np.uint8) if size <= limit else None
        self._folder, self._size = folder, size
        # Without a name from the start, so that the kernel frees it however this process ends.
        self._buffer = np.empty(0, np.uint8)
        self._file = None if self.memory is not None else tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115

    def write(self, offset: int, array: np.ndarray) -> None:
        data = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        if self._file is None:
            assert self.memory is not None
            self.memory[offset : offset + len(data)] = data
            return
        with disk_full_speaks(self._folder, self._size):
            while data:
                written = os.pwrite(self._file.fileno(), data, offset)
                data, offset = data[written:], offset + written

    def read(self, begin: int, end: int) -> np.ndarray:
        """Bytes [begin, end), valid until the next read."""
        if self.memory is not None:
            return self.memory[begin:end]
        assert self._file is not None
        if len(self._buffer) < end - begin:
            self._buffer = np.empty(end - begin, np.uint8)
        out = self._buffer[: end - begin]
        read_exactly(self._file.fileno(), out, begin)
        return out

    def close(self) -> None:
        self.memory, self._buffer = None, np.empty(0, np.uint8)
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
