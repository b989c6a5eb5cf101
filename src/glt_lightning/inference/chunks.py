"""Which rows are computed together, and by which rank of a host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def cut(degrees: np.ndarray, batch_size: int, most_edges: int) -> np.ndarray:
    """Ranges of rows, int64 [C, 2]: at most ``batch_size`` rows and ``most_edges`` edges in each, where no single row has more.

    degrees: int64 [N], edges into each row.

    >>> cut(np.array([1, 1, 9, 1, 1, 1]), 2, 5).tolist()
    [[0, 2], [2, 3], [3, 5], [5, 6]]
    """
    ends = np.cumsum(degrees)
    found, begin = [], 0
    while begin < len(degrees):
        before = ends[begin - 1] if begin else 0
        by_edges = int(np.searchsorted(ends, before + most_edges, side="right"))
        end = max(begin + 1, min(begin + batch_size, by_edges, len(degrees)))
        found.append((begin, end))
        begin = end
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def chunks_of(parts: Sequence[tuple[int, np.ndarray]], batch_size: int, most_edges: int) -> np.ndarray:
    """The chunks of all parts of a host. parts: (first row, degrees) of each. No chunk has rows of two parts: so chunks do
    not depend on which parts a host has."""
    pieces = [first + cut(degrees, batch_size, most_edges) for first, degrees in parts]
    return np.concatenate([np.empty((0, 2), dtype=np.int64), *pieces])


def share_of(chunks: np.ndarray, turn: int, ranks: int) -> np.ndarray:
    """Those of local rank ``turn`` of ``ranks``. Rows lie hottest first, so ranges next to each other go to different ranks."""
    return np.ascontiguousarray(chunks[turn::ranks])
