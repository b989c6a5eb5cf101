"""Fills a cache with rows of others, by bulk questions to their owners."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.row_cache import CachedRows, RowCache
from glt_lightning.errors import PeerError
from glt_lightning.ops.route import Router
from glt_lightning.partition.progress import Progress
from glt_lightning.sampler.source import Gathered, RemoteRows, Rows, wire_dtype

_CHUNK_BYTES = 4 << 20  # of rows asked for at once
_AHEAD = 8  # questions on their way


def fill_rows(
    cache: RowCache,
    gids: Sequence[np.ndarray],
    partition: LocalPartition,
    remote: RemoteRows,
    progress: bool | None = None,
) -> None:
    """Writes the attributes of all its rows. gids: for each node type, as `RowCache.create` was given them.

    Raises `PeerError` for an owner that does not answer, or not what was asked.
    """
    with Progress(progress).phase("filling the cache", sum(map(len, gids)), "rows") as done:
        waiting: deque[_Asked] = deque()
        for asked in _questions(cache, gids, partition, remote):
            waiting.append(asked)
            if len(waiting) >= _AHEAD:
                done(waiting.popleft().store())
        while waiting:
            done(waiting.popleft().store())


@dataclass(frozen=True)
class _Asked:
    """One question on its way. at: int64 [n], the rows of the cache that it is for."""

    table: CachedRows
    at: np.ndarray
    answer: Gathered

    def store(self) -> int:
        (found,) = self.answer()
        for name, rows in self.table.rows.items():
            theirs = found[name]
            if theirs.dtype != rows.dtype or theirs.shape != (len(self.at), *rows.shape[1:]):
                raise PeerError(
                    f"an owner answered {theirs.dtype} {list(theirs.shape)} for {len(self.at)} rows of {name!r}."
                )
            rows[self.at] = theirs
        return len(self.at)


def _questions(
    cache: RowCache, members: Sequence[np.ndarray], partition: LocalPartition, remote: RemoteRows
) -> Iterator[_Asked]:
    manifest, wire = partition.manifest, wire_dtype(partition.manifest)
    for t, (table, gids) in enumerate(zip(cache.tables, members, strict=True)):
        if table is None:
            continue
        bounds = np.asarray(manifest.bounds[t], dtype=np.int64) + manifest.offsets[t]
        router = Router(bounds, remote.owner_of_part, remote.num_owners, wire)
        names = tuple(table.rows)
        chunk = max(1, _CHUNK_BYTES // sum(a.itemsize * int(np.prod(a.shape[1:])) for a in table.rows.values()))
        for first in range(0, len(gids), chunk):
            route = router(gids[first : first + chunk], np.zeros(remote.num_owners, dtype=np.int64))
            for owner in range(1, remote.num_owners):
                if len(ids := route.of(owner)):
                    at = first + np.flatnonzero(route.owner == owner)
                    yield _Asked(table, at, remote.gather(owner, [Rows("node", t, names, ids)]))
