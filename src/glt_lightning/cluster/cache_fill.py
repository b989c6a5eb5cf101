"""Fills a cache with rows of others, by bulk questions to their owners."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.data.cache_choice import CacheChoice, choose_rows
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.row_cache import CachedRows, RowCache
from glt_lightning.errors import DataError, OptionError, PeerError
from glt_lightning.ops.route import Router
from glt_lightning.options import CacheOptions
from glt_lightning.partition.progress import Progress
from glt_lightning.sampler.source import Gathered, RemoteRows, Rows, wire_dtype

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 4 << 20  # of rows asked for at once
_AHEAD = 8  # questions on their way


def make_cache(
    partition: LocalPartition, remote: RemoteRows, options: CacheOptions, progress: bool | None = None
) -> RowCache | None:
    """The rows of other parts that the options ask for, fetched from their owners; None where there are none to keep.

    With ``options.save`` they are read from a file beside the partition if an earlier run has left one.

    progress: show it; None: on a terminal.
    Raises as `prepare_cache`, and `PeerError` for an owner that does not answer.
    """
    prepared = prepare_cache(partition, options)
    if prepared is None:
        return None
    try:
        return prepared.fill(remote, progress)
    except BaseException:
        prepared.close()
        raise


def prepare_cache(partition: LocalPartition, options: CacheOptions) -> PreparedCache | None:
    """Room for the rows of other parts that the options ask for; None where there are none to keep.

    Raises `OptionError` for options that do not fit the graph or this host.
    """
    choice = choose_rows(partition, options)
    if not choice.rows:
        return None
    made_by = _made_by(partition, options, choice)
    file = _file(partition, options) if options.save else None
    cache = None if file is None else _kept(file, partition, made_by)
    if cache is not None:
        return PreparedCache(partition, choice, cache, file, filled=True)
    try:
        cache = RowCache.create(partition.manifest, choice.gids, made_by, file)
    except MemoryError as error:
        raise OptionError(
            f"cache: no room for {choice.rows:,} rows: {error}. Lower cache.ratio or cache.bytes."
        ) from None
    return PreparedCache(partition, choice, cache, file, filled=False)


@dataclass
class PreparedCache:
    """A cache that has its memory, and its rows once it is filled. Close it."""

    partition: LocalPartition
    choice: CacheChoice
    cache: RowCache
    file: Path | None
    filled: bool

    def fill(self, remote: RemoteRows, progress: bool | None = None) -> RowCache:
        """Fetches the rows. Raises `PeerError` for an owner that does not answer; it may be tried again."""
        found = self.file if self.filled else None
        if not self.filled:
            _fill(self.cache, self.choice, self.partition, remote, Progress(progress))
            self.cache.arrays.finish(self.file)
            self.filled = True
        _log.info("%s", _said(self.partition, self.choice, self.cache, found))
        return self.cache

    def close(self) -> None:
        self.cache.close()


def _fill(
    cache: RowCache, choice: CacheChoice, partition: LocalPartition, remote: RemoteRows, progress: Progress
) -> None:
    with progress.phase("filling the cache", choice.rows, "rows") as done:
        waiting: deque[_Asked] = deque()
        for asked in _questions(cache, choice, partition, remote):
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


def _questions(cache: RowCache, choice: CacheChoice, partition: LocalPartition, remote: RemoteRows) -> Iterator[_Asked]:
    manifest, wire = partition.manifest, wire_dtype(partition.manifest)
    for t, (table, gids) in enumerate(zip(cache.tables, choice.gids, strict=True)):
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


def _made_by(partition: LocalPartition, options: CacheOptions, choice: CacheChoice) -> dict[str, Any]:
    return {
        "graph": partition.manifest.options_hash,
        "parts": list(partition.parts),
        "policy": choice.policy,
        "ratio": options.ratio,
        "bytes": options.budget,
    }


def _file(partition: LocalPartition, options: CacheOptions) -> Path:
    parts = "-".join(map(str, partition.parts))
    return partition.directory / "caches" / f"parts-{parts}-{options.policy}.bin"


def _kept(file: Path, partition: LocalPartition, made_by: Mapping[str, Any]) -> RowCache | None:
    """The cache of an earlier run, if it was made with the same options from the same graph."""
    if not file.exists():
        return None
    try:
        return RowCache.open(file, partition.manifest, made_by)
    except DataError as error:
        _log.info("%s It is made anew.", error)
        return None


def _said(partition: LocalPartition, choice: CacheChoice, cache: RowCache, file: Path | None) -> str:
    """One line: what the options come to."""
    manifest = partition.manifest
    shares = []
    for name, n, gids in zip(manifest.schema.node_types, manifest.num_nodes, choice.gids, strict=True):
        of = "nodes" if manifest.schema.homogeneous else name
        if len(gids):
            shares.append(f"{len(gids):,} rows ({len(gids) / n:.1%} of all {of})")
    origin = f", from {file}" if file is not None else ""
    return f"cache: {', '.join(shares)} of other parts, {choice.policy}, {cache.nbytes / 1e6:,.1f} MB{origin}."
