"""Arrays as long as the edges of a graph, which need not fit in memory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import TracebackType

import numpy as np

from glt_lightning.partition.arrays import write_at

CHUNK = 1 << 20  # edges in memory at once
_WIDTH = 8  # bytes of a number


class ColumnFile:
    """Columns of numbers of 8 bytes, in a file without a name: its space is free again with the last array of it.

    Use it in a ``with`` block. folder: of the file; made if it is missing.  rows, most: number of rows, and of columns at most.
    """

    def __init__(self, folder: Path, rows: int, most: int, dtype: type = np.int64) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed by __exit__
        self._folder, self._rows, self._most, self._dtype = folder, rows, most, np.dtype(dtype)
        self.count = 0

    def add(self, *rows: np.ndarray) -> None:
        """Appends columns: of each row, numbers [n]. Raises `PartitionError` if the disk is full."""
        for row, values in enumerate(rows):
            data = memoryview(np.ascontiguousarray(values, self._dtype)).cast("B")
            write_at(self._file.fileno(), data, _WIDTH * (row * self._most + self.count), self._folder)
        self.count += len(rows[0])

    def array(self) -> np.ndarray:
        """Maps the columns, [rows, count]."""
        if not self.count:
            return np.empty((self._rows, 0), self._dtype)
        os.ftruncate(self._file.fileno(), _WIDTH * self._rows * self._most)
        mapped = np.memmap(self._file, self._dtype, "r", shape=(self._rows, self._most))
        return np.asarray(mapped)[:, : self.count]

    def __enter__(self) -> ColumnFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def true_columns(mask: np.ndarray, folder: Path) -> np.ndarray:
    """Returns where a mask is true, int64 ascending; a map of a file."""
    with ColumnFile(folder, 1, int(np.count_nonzero(mask))) as columns:
        for begin in range(0, len(mask), CHUNK):
            columns.add(np.flatnonzero(mask[begin : begin + CHUNK]) + begin)
        found: np.ndarray = columns.array()[0]
        return found
