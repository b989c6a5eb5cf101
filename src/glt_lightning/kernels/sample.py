"""Sampling the rows of one edge type."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from glt_lightning.base import DEFAULT_DRAW, DataError, DrawOptions
from glt_lightning.kernels.excluded import ExcludedEntries
from glt_lightning.kernels.graph import GraphView
from glt_lightning.kernels.native import call, check, library
from glt_lightning.kernels.trees import Trees


@dataclass(frozen=True)
class RowDraw:
    """The draw of neighbours for rows of one edge type.

    gids: int64 [F], destination nodes, all local.  fanout: -1 (all), or 1 to `types.MAX_FANOUT`.  excluded: entries of rows to
    leave out.  trees: the trees of the rows of each node type, in a disjoint batch.
    """

    graph: GraphView
    edge_type: int
    gids: np.ndarray
    fanout: int
    batch_key: int
    hop: int
    draw: DrawOptions = DEFAULT_DRAW
    excluded: ExcludedEntries | None = None
    trees: Trees | None = None

    def picks(
        self, require_room: Callable[[int], None] = lambda nbytes: None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Draws. Returns (counts int64 [F], neighbours int64 [sum of counts] in row order, edge rows like neighbours or None).

        require_room: called with the bytes of the picks before memory is allocated; may raise to refuse it.
        Raises `DataError` for an id that is not a local node of the destination type, `PartitionError` for a damaged row.
        """
        counts = self.count()
        total = int(counts.sum())
        require_room(total * 8 * len(self.draw.columns))
        neighbors = np.empty(total, dtype=np.int64)
        edge_rows = np.empty_like(neighbors) if self.draw.with_edge else None
        self.pick(counts, 0, neighbors, edge_rows, threads=self.draw.threads)
        return counts, neighbors, edge_rows

    def count(self) -> np.ndarray:
        """Returns int64 [F]: the number of picks of each row. Raises as `picks`."""
        counts = np.empty(len(self.gids), dtype=np.int64)
        rows = (self.graph.address, self.edge_type, self.gids.ctypes.data, len(self.gids), self.fanout)
        status, detail = call(library().glt_count_rows, *rows, self.draw.replace, self._excluded, self._trees, counts)
        check(status, detail, "sample")
        return counts

    @property
    def _excluded(self) -> Any:
        return None if self.excluded is None else ctypes.byref(self.excluded.struct)

    @property
    def _trees(self) -> Any:
        if self.trees is None:
            return None
        mine = self.trees.of.get(int(self.graph.dst_types[self.edge_type]))
        if mine is None or len(mine) != len(self.gids):
            got = "none" if mine is None else len(mine)
            raise DataError(f"sample: expected a tree for each of {len(self.gids)} rows, got {got}.")
        if (most := int(mine.max(initial=-1))) >= self.trees.num_trees:
            raise DataError(f"sample: tree {most} of a row is not one of the {self.trees.num_trees} trees.")
        return ctypes.byref(self.trees.struct([mine], self.draw.last))

    def pick(
        self,
        counts: np.ndarray,
        first: int,
        neighbors: np.ndarray,
        edge_rows: np.ndarray | None = None,
        *,
        threads: int = 1,
    ) -> None:
        """Writes picks ``first`` on of all rows' picks, in row order, into neighbors and edge_rows (int64 [n]).

        counts: the result of `count`. Takes no further memory, however many picks a row has.
        """
        status, detail = call(
            library().glt_pick_rows,
            self.graph.address,
            self.edge_type,
            self.gids,
            len(self.gids),
            self.fanout,
            self.batch_key,
            self.hop,
            self.draw.replace,
            threads,
            self._excluded,
            self._trees,
            counts,
            first,
            len(neighbors),
            neighbors,
            edge_rows,
        )
        check(status, detail, "sample")
