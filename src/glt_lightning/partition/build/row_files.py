"""Files of rows of neighbours, which tasks have sorted: read chunk by chunk, and checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from glt_lightning.kernels import NeighborRows, spread
from glt_lightning.partition.sources.files import NpyFile

_CACHED_EDGES = 1 << 15  # per chunk that stays in a core's cache while it is read several times


class RowFiles:
    """Rows of neighbours: indptr mapped, neighbours read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.indptr = NpyFile(folder / "indptr.npy").mapped()
        self._file = NpyFile(folder / "indices.npy")

    @property
    def dtype(self) -> np.dtype:
        return self._file.dtype

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def read(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns (indptr from 0, neighbours) of the rows [begin, end)."""
        indptr = self.indptr[begin : end + 1]
        return indptr - indptr[0], self._file[int(indptr[0]) : int(indptr[-1])]

    def mapped(self) -> np.ndarray:
        return self._file.mapped()


def merged(
    files: Sequence[RowFiles], offset: int, total: int, most_edges: int, begin: int, last: int
) -> Iterator[NeighborRows]:
    """Yields chunks of the rows [begin, last); each row concatenates its neighbours in all the files.

    offset: number of the first node of the files, which have ``last`` rows if they are several.  total: number of all nodes.
    """
    ends = files[0].indptr if len(files) == 1 else sum((f.indptr for f in files), start=np.zeros(last + 1, np.int64))
    while begin < last:
        end = min(last, max(begin + 1, int(np.searchsorted(ends, ends[begin] + most_edges, side="right")) - 1))
        indptr, neighbors = _joined([f.read(begin, end) for f in files], end - begin)
        yield NeighborRows(offset + begin, indptr, neighbors, total)
        begin = end


def _joined(pieces: Sequence[tuple[np.ndarray, np.ndarray]], num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Concatenates the corresponding rows of all pieces. Returns (indptr, neighbours)."""
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return np.zeros(num_rows + 1, np.int64), np.empty(0, np.int32)
    indptr = sum((p[0] for p in pieces), start=np.zeros(num_rows + 1, np.int64))
    out = np.empty(int(indptr[-1]), max((p[1].dtype for p in pieces), key=lambda d: d.itemsize))
    first = indptr[:-1].copy()
    for own, neighbors in pieces:
        sizes = np.diff(own)
        out[spread(first, sizes)] = neighbors
        first += sizes
    return indptr, out


def asymmetry(files: RowFiles, offset: int, total: int, begin: int, end: int) -> int | None:
    """Returns the checksum of the edges of some rows minus that of their reverses: for all rows together it is 0 modulo 2^64 if
    each edge has its reverse. None: an edge occurs twice.

    offset: number of the first node of the files.  total: number of all nodes.
    """
    difference = 0
    for each in merged([files], 0, total, _CACHED_EDGES, begin, end):
        src, dst = each.neighbors.astype(np.uint64) - np.uint64(offset), _row_of_each(each).astype(np.uint64)
        if ((src[1:] == src[:-1]) & (dst[1:] == dst[:-1])).any():  # sources are sorted within a row
            return None
        difference += _checksum(src, dst) - _checksum(dst, src)
    return difference


def _checksum(src: np.ndarray, dst: np.ndarray) -> int:
    """A 64-bit sum over the edges (uint64 [E] each) that does not depend on their order; sums of chunks add up.

    The constants are those of splitmix64 (Steele, Lea, Flood 2014).
    """
    z = src * np.uint64(0x9E3779B97F4A7C15) + dst
    z ^= z >> np.uint64(32)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(29)
    return int(z.sum(dtype=np.uint64))


def _row_of_each(rows: NeighborRows) -> np.ndarray:
    """Returns int64 [E]: the node whose row lists each neighbour."""
    return np.repeat(np.arange(rows.first, rows.first + len(rows)), np.diff(rows.indptr))
