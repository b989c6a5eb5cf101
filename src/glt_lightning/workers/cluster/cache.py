"""Builds the remote cache of a host: chooses its rows, takes the memory, and fetches them from their owners."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glt_lightning.base import CacheOptions, OptionError
from glt_lightning.graph import CacheChoice, LocalPartition, RemoteCache
from glt_lightning.sampling import RemoteRows
from glt_lightning.workers.cluster.cache_fill import Wanted, fetch_rows
from glt_lightning.workers.cluster.topology_fill import make_topology

_log = logging.getLogger(__name__)

NOTHING_TO_CACHE = (
    "cache: all parts are mapped here, so no row is remote, and cache.ratio and cache.bytes have no effect. Remove them, or give "
    "hosts different parts (cluster.placement)."
)


class CacheMaker:
    """Makes the remote cache of a host that maps ``partition``. Close it, which frees the cache.

    The constructor checks all options and reserves the memory for rows, before any peer is called.

    Raises `OptionError` for options that do not fit the graph or this host.
    """

    def __init__(self, partition: LocalPartition, options: CacheOptions) -> None:
        self._partition, self._options = partition, options
        self._choice = CacheChoice.by(partition, options)
        self._cache = RemoteCache()
        self._filled = self._topology_made = False
        self._gids = self._choice.nodes(options)
        if any(map(len, self._gids)):
            self._reserve()

    def make(self, remote: RemoteRows, progress: bool | None = None) -> Mapping[str, Any]:
        """Fetches the rows, and returns the handle (JSON values) with which the processes of this host open the cache.

        progress: show it; None: on a terminal.
        Raises `PeerError` for an owner that does not answer. A second call goes on from there.
        """
        rows = self._cache.rows
        if rows is not None and not self._filled:
            manifest, tables = self._partition.manifest, rows.tables
            wanted = [
                Wanted.nodes(manifest, t, gids, table.rows)
                for t, (gids, table) in enumerate(zip(self._gids, tables, strict=True))
                if table is not None
            ]
            fetch_rows(wanted, manifest, remote, "filling the cache", progress)
            rows.arrays.finish()
        self._filled = True
        budget = self._options.topology_bytes
        if budget and not self._topology_made:
            hottest = [ranked.gids for ranked in self._choice.ranked]
            lists = make_topology(self._partition, remote, hottest, budget, progress)
            self._cache = replace(self._cache, topology=lists)
        self._topology_made = True
        _log.info("%s", self._summary())
        return self._cache.handle

    def close(self) -> None:
        self._cache.close()

    def _reserve(self) -> None:
        try:
            self._cache = RemoteCache.reserved(self._partition.manifest, self._gids)
        except MemoryError as error:
            rows = sum(map(len, self._gids))
            raise OptionError(
                f"cache: not enough memory for {rows:,} rows: {error}. Lower cache.ratio or cache.bytes."
            ) from None

    def _summary(self) -> str:
        """Describes the contents of the cache in one log line."""
        manifest, shares = self._partition.manifest, []
        for name, n, gids in zip(manifest.schema.node_types, manifest.num_nodes, self._gids, strict=True):
            of = "nodes" if manifest.schema.homogeneous else name
            if len(gids):
                shares.append(f"{len(gids):,} rows ({len(gids) / n:.1%} of all {of})")
        rows = f"{', '.join(shares) or 'no rows'} of remote parts, {self._choice.policy}"
        cache = self._cache
        size = 0 if cache.rows is None else cache.rows.nbytes
        lists = ""
        if cache.topology is not None:
            lists = f"; neighbour lists of {cache.topology.num_nodes:,} nodes, {cache.topology.nbytes / 1e6:,.1f} MB"
        return f"cache on the host of parts {list(self._partition.parts)}: {rows}, {size / 1e6:,.1f} MB{lists}."
