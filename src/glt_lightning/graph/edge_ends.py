"""The two ends of stored edges, by edge row."""

from __future__ import annotations

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.graph.local_partition import LocalPartition
from glt_lightning.kernels import Shards

ENDS = "indices"  # how processes ask each other for ends: the name of a stored array, so that no attribute has it


class EdgeEnds:
    """The ends of a type's edges in the mapped parts, with the methods of `kernels.rows.Shards`: a row is int64 [2], the gids of
    source and destination."""

    dtype, row_shape, row_bytes = np.dtype(np.int64), (2,), 16

    def __init__(self, partition: LocalPartition, edge_type: int) -> None:
        self._partition, self._edge_type = partition, edge_type
        self._bounds = partition.manifest.edge_bounds(edge_type)

    def gather(self, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Returns the ends of edge rows [n], int64 [n, 2]. Raises `DataError` for an edge of a part that is not mapped."""
        found = np.empty((len(rows), 2), np.int64) if out is None else out
        parts = np.searchsorted(self._bounds, rows, side="right") - 1
        for part in np.unique(parts):
            if part not in self._partition.parts:
                raise DataError(f"edges: row {rows[parts == part][0]} is of part {part}, which is not mapped here.")
            at = np.flatnonzero(parts == part)
            local = rows[at] - self._bounds[part]
            found[at, 0] = self._partition.sources(self._edge_type, part)[local]
            pointers = self._partition.pointers(self._edge_type, part)
            found[at, 1] = self._gids(int(part), np.searchsorted(pointers, local, side="right") - 1)
        if (over := self._partition.overlaid) is not None:
            found[:, 0] += over.source_shift[self._edge_type]
        return found

    def user_ids(self, rows: np.ndarray) -> list[np.ndarray]:
        """Returns the user ids of the sources and of the destinations of edge rows. Raises as `gather`."""
        partition, schema = self._partition, self._partition.schema
        types = schema.source_types()[self._edge_type], schema.destination_types()[self._edge_type]
        offsets = partition.manifest.offsets
        return [partition.user_ids(t)[gids - offsets[t]] for t, gids in zip(types, self.gather(rows).T, strict=True)]

    def _gids(self, part: int, rows: np.ndarray) -> np.ndarray:
        manifest, over = self._partition.manifest, self._partition.overlaid
        node_type = self._partition.schema.destination_types()[self._edge_type]
        found: np.ndarray = manifest.offsets[node_type] + manifest.bounds[node_type][part] + rows
        if over is not None:
            at, gids = over.replaced[self._edge_type].gids_of(part, rows)
            found[at] = gids
        return found


def stored_rows(partition: LocalPartition, kind: str, index: int, name: str) -> Shards | EdgeEnds:
    """Returns an attribute of a type of nodes or edges as it is stored, not decoded, or the ends of edges."""
    if kind == "edge" and name == ENDS:
        return EdgeEnds(partition, index)
    open_ = partition.node_shards if kind == "node" else partition.edge_shards
    return open_(index, name).raw
