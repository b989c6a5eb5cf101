"""Builds the remote cache of a host: chooses its rows, takes the memory, and fetches them from their owners."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from glt_lightning.base import CacheOptions, OptionError
from glt_lightning.graph import (
    LocalPartition,
    RowCache,
    TopologyCache,
    cache_handle,
    choose_policy,
    rank_by_edges,
    rank_stored,
    rows_by_bytes,
    rows_by_ratio,
)
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
        self._policy = choose_policy(partition, options)
        ranked = rank_stored(partition, self._policy)
        if ranked is not None and not any(len(each.gids) for each in ranked):
            # The stored ranking starts from the training seeds of each part, and these parts have none.
            _log.warning(
                "cache.policy: %s: the partition ranks no remote rows for parts %s, which have no training seeds. Rows are "
                "ranked by degree instead.",
                options.policy if options.policy == self._policy else f"{options.policy} ({self._policy})",
                list(partition.parts),
            )
            self._policy, ranked = "degree", None
        self._ranked = rank_by_edges(partition) if ranked is None else ranked
        self._rows: RowCache | None = None
        self._topology: TopologyCache | None = None
        self._filled = self._topology_made = False
        self._gids = self._choose()
        if any(map(len, self._gids)):
            self._reserve()

    def make(self, remote: RemoteRows, progress: bool | None = None) -> Mapping[str, Any]:
        """Fetches the rows, and returns the handle (JSON values) with which the processes of this host open the cache.

        progress: show it; None: on a terminal.
        Raises `PeerError` for an owner that does not answer. A second call goes on from there.
        """
        if self._rows is not None and not self._filled:
            manifest, tables = self._partition.manifest, self._rows.tables
            wanted = [
                Wanted.nodes(manifest, t, gids, table.rows)
                for t, (gids, table) in enumerate(zip(self._gids, tables, strict=True))
                if table is not None
            ]
            fetch_rows(wanted, manifest, remote, "filling the cache", progress)
            self._rows.arrays.finish()
        self._filled = True
        budget = self._options.topology_bytes
        if budget and not self._topology_made:
            hottest = [ranked.gids for ranked in self._ranked]
            self._topology = make_topology(self._partition, remote, hottest, budget, progress)
        self._topology_made = True
        _log.info("%s", self._summary())
        return cache_handle(self._rows, self._topology)

    def close(self) -> None:
        for each in (self._rows, self._topology):
            if each is not None:
                each.close()

    def _choose(self) -> list[np.ndarray]:
        """Chooses the nodes to cache: for each node type their gids, int64, ascending."""
        options, manifest = self._options, self._partition.manifest
        if options.budget is None:
            counts = rows_by_ratio(manifest, self._ranked, options)
        else:
            counts = rows_by_bytes(manifest, self._ranked, options.budget - options.topology_bytes)
        return [np.sort(r.gids[:k]) for r, k in zip(self._ranked, counts, strict=True)]

    def _reserve(self) -> None:
        try:
            self._rows = RowCache.create(self._partition.manifest, self._gids)
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
        rows = f"{', '.join(shares) or 'no rows'} of remote parts, {self._policy}"
        size = 0 if self._rows is None else self._rows.nbytes
        lists = ""
        if self._topology is not None:
            lists = f"; neighbour lists of {self._topology.num_nodes:,} nodes, {self._topology.nbytes / 1e6:,.1f} MB"
        return f"cache on the host of parts {list(self._partition.parts)}: {rows}, {size / 1e6:,.1f} MB{lists}."
