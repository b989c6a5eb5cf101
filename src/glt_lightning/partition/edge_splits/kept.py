"""Some of a user's edges, and their attributes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from glt_lightning.partition.sources.base import EdgeList, Rows


class KeptEdges:
    """An `EdgeList` without some columns. Edge ids stay the columns of the user's edges.

    columns: int64 [kept], ascending.
    """

    def __init__(self, edges: EdgeList, columns: np.ndarray) -> None:
        self._edges, self.columns = edges, columns

    @property
    def num_edges(self) -> int:
        return len(self.columns)

    @property
    def num_columns(self) -> int:
        """Number of the user's edges."""
        return self._edges.num_edges

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        begin = 0
        for sources, destinations in self._edges.chunks(size):
            end = begin + len(sources)
            low, high = np.searchsorted(self.columns, (begin, end))
            if high > low:
                kept = self.columns[low:high] - begin
                yield sources[kept], destinations[kept]
            begin = end


class KeptRows:
    """The rows of an edge attribute that belong to `KeptEdges`."""

    def __init__(self, rows: Rows, columns: np.ndarray) -> None:
        self._rows, self._columns = rows, columns

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self._columns), *self._rows.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        return self._rows.dtype

    def __len__(self) -> int:
        return len(self._columns)

    def __getitem__(self, index: slice | np.ndarray, /) -> np.ndarray:
        return self._rows[self._columns[index]]


def num_columns(edges: EdgeList) -> int:
    """Number of the user's edges, with those that are left out."""
    return edges.num_columns if isinstance(edges, KeptEdges) else edges.num_edges


def user_columns(edges: EdgeList, ids: np.ndarray) -> np.ndarray:
    """Edge ids of the user's edges, for ids that count the kept ones alone; those of added reverse edges follow each."""
    if not isinstance(edges, KeptEdges) or not len(ids):
        return ids
    found: np.ndarray = edges.columns[ids % edges.num_edges] + (ids // edges.num_edges) * edges.num_columns
    return found.astype(ids.dtype)
