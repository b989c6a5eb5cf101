"""Reads the attributes of chosen nodes, local or remote, in the form of batches: to fill the memory of a training device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

import numpy as np

from glt_lightning.graph import LocalPartition
from glt_lightning.kernels import Router
from glt_lightning.sampling import RemoteRows, RowTable, ask_owners, wire_dtype

_CHUNK_BYTES = 4 << 20  # of rows read, or asked for, at once
_AHEAD = 8  # chunks in flight


def read_rows(
    partition: LocalPartition, remote: RemoteRows | None, node_type: int, gids: np.ndarray
) -> Iterator[tuple[int, Mapping[str, np.ndarray]]]:
    """Yields (position of the first row, ``n_id`` and attributes -> rows), a few MB at a time. gids: int64 [K].

    remote: the owners of the parts that are not mapped; None if all are. Raises `PeerError` for an owner that does not
    answer, or whose answer does not fit the question.
    """
    manifest = partition.manifest
    names = ("n_id", *manifest.node_attrs(node_type))
    shards = {name: partition.node_shards(node_type, name) for name in names}
    bounds = np.asarray(manifest.bounds[node_type], dtype=np.int64) + manifest.offsets[node_type]
    owners = np.zeros(manifest.num_parts, dtype=np.int32) if remote is None else remote.owner_of_part
    router = Router(bounds, owners, 1 if remote is None else remote.num_owners, wire_dtype(manifest))
    chunk = max(1, _CHUNK_BYTES // sum(s.row_bytes for s in shards.values()))
    waiting: deque[tuple[int, RowTable]] = deque()
    for first in range(0, len(gids), chunk):
        table = RowTable("node", node_type, {name: name for name in names}, dict(shards))
        table.route_by(router)
        route = table.route(gids[first : first + chunk])
        if remote is not None:
            ask_owners(remote, [(table, route)])
        waiting.append((first, table))
        if len(waiting) > _AHEAD:
            yield _read(*waiting.popleft())
    while waiting:
        yield _read(*waiting.popleft())


def _read(first: int, table: RowTable) -> tuple[int, Mapping[str, np.ndarray]]:
    return first, table.gathered(threads=1)
