"""Node attributes, written in the order of the new numbers, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from glt_lightning.graph import ArrayEntry, ArrayWriter, node_path
from glt_lightning.kernels import row_bytes
from glt_lightning.partition.build.layout import NodeLayout
from glt_lightning.partition.build.normalize import Transform, row_chunks
from glt_lightning.partition.build.scratch import Scratch
from glt_lightning.partition.build.storage import StoredAs
from glt_lightning.partition.sources.base import Rows, in_memory

_CHUNK_BYTES = 2 << 20  # gathered, checksummed and written while it is in the CPU cache


def write_rows(
    folder: Path,
    index: int,
    name: str,
    rows: Rows,
    layout: NodeLayout,
    parts: Sequence[int],
    transform: Transform | None,
    stored: StoredAs,
    memory_bytes: int,
    done: Callable[[int], object],
) -> dict[str, ArrayEntry]:
    """Writes attribute ``name`` of node type ``index`` for the parts. done: called with the number of bytes written."""
    step = max(1, _CHUNK_BYTES // max(1, row_bytes(rows.dtype, rows.shape[1:])))
    entries: dict[str, ArrayEntry] = {}
    with _reader(folder, rows, layout, parts, memory_bytes) as reader:
        for part in parts:
            begin, end = layout.bounds[part : part + 2]
            with ArrayWriter(folder, node_path(part, index, name), stored.dtype, stored.row_shape) as writer:
                while begin < end:
                    piece = reader.read(begin, min(begin + step, end))
                    ids = layout.user_ids[begin : begin + len(piece)]
                    writer.write(stored.encode(piece if transform is None else transform(piece), ids))
                    done(piece.nbytes)
                    begin += len(piece)
            entries[writer.path] = writer.close()
    return entries


def _reader(
    folder: Path, rows: Rows, layout: NodeLayout, parts: Sequence[int], memory_bytes: int
) -> _MemoryReader | _BucketReader:
    array = in_memory(rows)
    if array is None and len(rows) * row_bytes(rows.dtype, rows.shape[1:]) <= memory_bytes // 2:
        array = rows[: len(rows)]
    if array is not None:
        return _MemoryReader(array, layout)
    return _BucketReader(folder, rows, layout, parts, memory_bytes)


class _MemoryReader:
    """Picks rows out of an array in memory."""

    def __init__(self, array: np.ndarray, layout: NodeLayout) -> None:
        self._array, self._layout = array, layout
        self._out = np.empty((0, *array.shape[1:]), array.dtype)

    def read(self, begin: int, end: int) -> np.ndarray:
        """Rows of the new numbers [begin, end); valid until the next call."""
        if len(self._out) < end - begin:  # reused: a new array per piece would cost its page faults each time
            self._out = np.empty((end - begin, *self._array.shape[1:]), self._array.dtype)
        out = self._out[: end - begin]
        return np.take(self._array, self._layout.user_ids[begin:end], axis=0, out=out, mode="clip")

    def __enter__(self) -> _MemoryReader:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class _BucketReader:
    """Reads the user's rows once, in their order, and sorts them into ranges of new numbers that fit in memory.

    Ranges without a row of a part that is written stay holes in the working file.
    Within a range, rows lie in the order of the user's ids, so the position of a row needs no index.
    """

    def __init__(self, folder: Path, rows: Rows, layout: NodeLayout, parts: Sequence[int], memory_bytes: int) -> None:
        self._rows, self._layout, self._width = rows, layout, row_bytes(rows.dtype, rows.shape[1:])
        self._capacity = max(1, memory_bytes // 4 // self._width)
        self._begin = -self._capacity
        self._bucket = np.empty((0, *rows.shape[1:]), rows.dtype)
        self._place = np.empty(0, np.int64)
        self._scratch = Scratch(len(rows) * self._width, folder, limit=0)
        try:
            self._deal(parts, memory_bytes // 8)
        except BaseException:
            self._scratch.close()
            raise

    def read(self, begin: int, end: int) -> np.ndarray:
        """Rows of the new numbers from ``begin`` on, at least one and at most ``end - begin``."""
        if not self._begin <= begin < self._begin + self._capacity:
            self._load(begin // self._capacity * self._capacity)
        return self._bucket[self._place[begin - self._begin : end - self._begin]]

    def _load(self, begin: int) -> None:
        end = min(begin + self._capacity, len(self._rows))
        data = self._scratch.read(begin * self._width, end * self._width)
        self._bucket = data.view(self._rows.dtype).reshape(-1, *self._rows.shape[1:])
        self._place = np.empty(end - begin, np.int64)
        self._place[np.argsort(self._layout.user_ids[begin:end])] = np.arange(end - begin)
        self._begin = begin

    def _deal(self, parts: Sequence[int], chunk_bytes: int) -> None:
        cursor = np.arange(0, len(self._rows), self._capacity)
        wanted = np.zeros(len(cursor), bool)
        for part in parts:
            begin, end = self._layout.bounds[part : part + 2]
            wanted[begin // self._capacity : -(-end // self._capacity)] |= begin < end
        at = 0
        for chunk in row_chunks(self._rows, chunk_bytes):
            bucket = self._layout.new[at : at + len(chunk)] // self._capacity
            dealt = chunk[np.argsort(bucket, kind="stable")]
            sizes = np.bincount(bucket, minlength=len(cursor))
            ends = np.cumsum(sizes)
            for b in np.flatnonzero(sizes * wanted).tolist():
                self._scratch.write(int(cursor[b]) * self._width, dealt[ends[b] - sizes[b] : ends[b]])
            cursor += sizes
            at += len(chunk)

    def __enter__(self) -> _BucketReader:
        return self

    def __exit__(self, *error: object) -> None:
        self._scratch.close()
