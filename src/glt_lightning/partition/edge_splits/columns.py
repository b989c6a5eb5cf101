"""Arrays as long as the edges of a graph, which need not fit in memory."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

import numpy as np

from glt_lightning.partition.arrays import write_at
from glt_lightning.partition.sources.base import EdgeList, Rows

ANOTHER_FOLDER = "choose another one for edges to predict (data.root, or folder of hold_out_edges, else TMPDIR)"
CHUNK = 1 << 20  # edges, or numbers of them, in memory at once
_BUCKET = 1 << 20  # numbers of a bucket, about


class ColumnFile:
    """Columns of numbers in a file without a name: its space is free again with the last array of it.

    Use it in a ``with`` block. folder: of the file; made if it is missing.  rows, most: number of rows, and of columns at most.
    """

    def __init__(self, folder: Path, rows: int, most: int, dtype: np.dtype | type = np.int64) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed by __exit__
        self._folder, self._rows, self._most, self._dtype = folder, rows, most, np.dtype(dtype)
        self.count = 0

    def add(self, *rows: np.ndarray) -> None:
        """Appends columns: of each row, numbers [n]. Raises `PartitionError` if the disk is full."""
        for row, values in enumerate(rows):
            data = memoryview(np.ascontiguousarray(values, self._dtype)).cast("B")
            at = self._dtype.itemsize * (row * self._most + self.count)
            write_at(self._file.fileno(), data, at, self._folder, ANOTHER_FOLDER)
        self.count += len(rows[0])

    def array(self, mode: str = "r") -> np.ndarray:
        """Maps the columns, [rows, count]. mode: of `numpy.memmap`."""
        if not self.count:
            return np.empty((self._rows, 0), self._dtype)
        os.ftruncate(self._file.fileno(), self._dtype.itemsize * self._rows * self._most)
        mapped = np.memmap(self._file, self._dtype, mode, shape=(self._rows, self._most))  # type: ignore[call-overload]
        return np.asarray(mapped)[:, : self.count]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def pieces(count: int, width: int = 1) -> Iterator[slice]:
    """Yields ranges of ``count`` rows of ``width`` numbers, about `CHUNK` numbers each."""
    size = max(1, CHUNK // max(1, width))
    return (slice(begin, min(begin + size, count)) for begin in range(0, count, size))


def chunks_of(rows: Rows) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields pieces of an array [n, ...], each with its range."""
    return ((piece, rows[piece]) for piece in pieces(len(rows), math.prod(rows.shape[1:])))


def pieces_of(edges: EdgeList) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Yields pieces of edges: their range, sources and destinations."""
    at = 0
    for src, dst in edges.chunks(CHUNK):
        yield slice(at, at + len(src)), src, dst
        at += len(src)


def mask_of(pieces: Iterable[np.ndarray]) -> np.ndarray:
    """Joins the masks of consecutive pieces."""
    return np.concatenate([np.zeros(0, bool), *pieces])


def true_columns(mask: np.ndarray, folder: Path, dtype: np.dtype | type = np.int64, mode: str = "r") -> np.ndarray:
    """Returns where a mask is true, ascending; a map of a file. mode: of the map."""
    with ColumnFile(folder, 1, int(np.count_nonzero(mask)), dtype) as columns:
        for piece, each in chunks_of(mask):
            columns.add(np.flatnonzero(each) + piece.start)
        found: np.ndarray = columns.array(mode)[0]
        return found


def true_rows(rows: Rows, mask: np.ndarray, folder: Path, dtype: type | None = None, mode: str = "r") -> np.ndarray:
    """Returns the rows of an array where a mask is true; a map of a file. dtype: they are converted to.  mode: of the map."""
    kind, count = np.dtype(rows.dtype if dtype is None else dtype), int(np.count_nonzero(mask))
    with ColumnFile(folder, 1, count * kind.itemsize * math.prod(rows.shape[1:]), np.uint8) as found:
        for piece, values in chunks_of(rows):
            found.add(values[mask[piece]].astype(kind).reshape(-1).view(np.uint8))
        mapped: np.ndarray = found.array(mode)[0].view(kind).reshape(count, *rows.shape[1:])
        return mapped


class Buckets(ColumnFile):
    """Deals numbers of 64 bits into buckets by hashes, in order, so that each bucket fits in memory.

    Use it in a ``with`` block. rows, most: how many numbers come with each hash, and how many hashes at most.
    """

    def __init__(self, folder: Path, rows: int, most: int) -> None:
        super().__init__(folder, rows, most, np.uint64)
        self._bits = min(16, (most // _BUCKET).bit_length())
        self._runs: list[np.ndarray] = []

    def deal(self, hashes: np.ndarray, *rows: np.ndarray) -> None:
        # The second shift: none is by 64
        bucket = (hashes >> np.uint64(63 - self._bits) >> np.uint64(1)).astype(np.uint16)
        self._runs.append(self.count + np.cumsum([0, *np.bincount(bucket, minlength=1 << self._bits)]))
        order = np.argsort(bucket, kind="stable")
        self.add(*(row[order] for row in rows))

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yields the numbers of each bucket, uint64 [rows, n], in the order of the buckets."""
        every = self.array()
        for at in range(1 << self._bits):
            runs = (every[:, begins[at] : begins[at + 1]] for begins in self._runs)
            yield np.concatenate([every[:, :0], *runs], axis=1)


def distinct(hashes: Iterable[np.ndarray], most: int, folder: Path) -> np.ndarray:
    """Returns the distinct hashes, uint64 ascending; a map of a file. most: their number at most."""
    with Buckets(folder, 1, most) as buckets, ColumnFile(folder, 1, most, np.uint64) as found:
        for each in hashes:
            buckets.deal(each, each)
        for (each,) in buckets:
            each.sort()
            found.add(each[np.append(True, each[1:] != each[:-1])[: len(each)]])
        return np.asarray(found.array()[0])
