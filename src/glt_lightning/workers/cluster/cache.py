"""Builds the remote cache of a host: chooses its rows, takes the memory, and fetches them from their owners."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import CacheOptions, DataError, OptionError
from glt_lightning.graph import (
    Candidates,
    LocalPartition,
    Ranked,
    RowCache,
    TopologyCache,
    bytes_for_lists,
    cache_handle,
    cached_node_bytes,
    choose,
    choose_policy,
    rank_by_counts,
    rank_by_edges,
    rank_stored,
    require_memory,
    rows_by_bytes,
    rows_by_ratio,
)
from glt_lightning.sampling import RemoteRows, wire_dtype
from glt_lightning.workers.cluster.cache_fill import Wanted, fetch_rows
from glt_lightning.workers.cluster.presample import Presampled, presample
from glt_lightning.workers.cluster.topology_fill import make_topology

_log = logging.getLogger(__name__)

NOTHING_TO_CACHE = (
    "cache: all parts are mapped here, so no row is remote, and cache.ratio and cache.bytes have no effect. Remove them, or give "
    "hosts different parts (cluster.placement)."
)

_UNWEIGHTED = (
    "cache.policy: %s ranks rows as if all edges weighed the same, and neighbours are drawn by %s, so that rows which are hardly "
    "drawn may take the place of others. Set cache.policy to presample, which counts batches that are drawn by it, or to dynamic."
)

_BESIDE_A_ROW = 50  # bytes of bookkeeping of a dynamic cache per row
_TRAINED = ([15, 10, 5], 1024)  # fan-outs and batch size that are assumed if the options name none


class CacheMaker:
    """Makes the remote cache of a host that maps ``partition``. Close it: that frees the cache.

    The constructor checks all options and reserves the memory, before any peer is called; unless the hottest rows are only
    known from batches that have to be sampled first. With policy ``dynamic`` the memory belongs to ``processes`` sampler
    processes, and is empty at first.

    Raises `OptionError` for options that do not fit the graph or this host.
    """

    def __init__(self, partition: LocalPartition, options: CacheOptions, processes: int = 1) -> None:
        self._partition, self._options, self._processes = partition, options, processes
        self._policy = choose_policy(partition, options)
        self._ranked = rank_stored(partition, self._policy)
        if self._ranked is None and self._policy == "degree":
            self._ranked = rank_by_edges(partition)
        elif self._ranked is not None and not any(len(each.gids) for each in self._ranked):
            # The stored ranking starts from the training seeds of each part, and these parts have none.
            _log.warning(
                "cache.policy: %s: the partition ranks no remote rows for parts %s, which have no training seeds. Rows are "
                "ranked by degree instead.",
                options.policy if options.policy == self._policy else f"{options.policy} ({self._policy})",
                list(partition.parts),
            )
            self._policy, self._ranked = "degree", rank_by_edges(partition)
        if options.weight_attr is not None and options.policy != "dynamic" and self._ranked is not None:
            _log.warning(_UNWEIGHTED, self._policy, options.weight_attr)
        self._gids: Sequence[np.ndarray] | None = None
        self._topology_bytes = options.topology_bytes
        self._rows: RowCache | None = None
        self._topology: TopologyCache | None = None
        self._file: Path | None = None
        self._capacity: list[int] = []
        self._filled = self._topology_made = False
        self._presampled = self._ranked is None or options.topology == "auto"
        rows_by_ratio(partition.manifest, self._ranked or _none(partition), options)
        if self._ranked is not None and not self._presampled:
            self._reserve(self._ranked)

    def make(self, remote: RemoteRows, progress: bool | None = None) -> Mapping[str, Any]:
        """Fetches the rows, and returns the handle with which the processes of this host open the cache.

        Raises `PeerError` for an owner that does not answer; it may be tried again.

        progress: show it; None: on a terminal.
        """
        if self._gids is None:
            self._presample(remote, progress)
        assert self._gids is not None
        assert self._ranked is not None
        if self._rows is not None and not self._filled:
            manifest, tables = self._partition.manifest, self._rows.tables
            wanted = [
                Wanted.nodes(manifest, t, gids, table.rows)
                for t, (gids, table) in enumerate(zip(self._gids, tables, strict=True))
                if table is not None
            ]
            fetch_rows(wanted, manifest, remote, "filling the cache", progress)
            self._rows.arrays.finish(self._file)
        if self._topology_bytes and not self._topology_made:
            hottest = [ranked.gids for ranked in self._ranked]
            made_by = self._made_by("topology")
            self._topology = make_topology(self._partition, remote, hottest, self._topology_bytes, made_by, progress)
        origin = f", from {self._file}" if self._filled else ""
        self._filled = self._topology_made = True
        _log.info("%s", self._summary(origin))
        return cache_handle(self._rows, self._topology, self._capacity)

    def close(self) -> None:
        for each in (self._rows, self._topology):
            if each is not None:
                each.close()

    def _presample(self, remote: RemoteRows, progress: bool | None) -> None:
        options = self._options
        fanouts = _TRAINED[0] if options.num_neighbors is None else options.num_neighbors
        batch_size = options.batch_size or _TRAINED[1]
        by_counts = self._ranked is None  # else presampling only divides the memory between rows and lists
        option = "cache.policy: presample" if by_counts else "cache.topology: auto"
        weights = options.weight_attr
        counted = presample(self._partition, remote, fanouts, batch_size, progress, weight_attr=weights, option=option)
        if self._ranked is None:
            self._ranked = rank_by_counts(self._partition, counted.in_batch)
        if options.topology == "auto":
            self._topology_bytes = self._divided(counted)
        self._reserve(self._ranked)

    def _divided(self, counted: Presampled) -> int:
        budget = self._options.budget
        assert budget is not None, "topology needs bytes"
        partition, id_bytes = self._partition, wire_dtype(self._partition.manifest).itemsize
        rows, frontier = (rank_by_counts(partition, each) for each in (counted.in_batch, counted.in_frontier))
        return bytes_for_lists(partition, rows, frontier, counted.in_frontier, counted.picks, id_bytes, budget)

    def _reserve(self, ranked: Sequence[Ranked]) -> None:
        options, manifest = self._options, self._partition.manifest
        if options.policy == "dynamic":
            self._gids = [each.gids for each in _none(self._partition)]
            self._capacity = self._dynamic_rows()
            return
        if options.budget is None:
            counts = rows_by_ratio(manifest, ranked, options)
        else:
            counts = rows_by_bytes(manifest, ranked, options.budget - self._topology_bytes)
        self._gids = [np.sort(r.gids[:k]) for r, k in zip(ranked, counts, strict=True)]
        if not sum(counts):
            return
        made_by = self._made_by("rows")
        self._file = self._saved_file() if options.save else None
        if self._file is not None and self._file.exists():
            try:
                self._rows, self._filled = RowCache.open(self._file, manifest, made_by), True
                return
            except DataError as error:
                _log.info("%s The cache is built anew.", error)
        try:
            self._rows = RowCache.create(manifest, self._gids, made_by, self._file)
        except MemoryError as error:
            raise OptionError(
                f"cache: not enough memory for {sum(counts):,} rows: {error}. Lower cache.ratio or cache.bytes."
            ) from None

    def _dynamic_rows(self) -> list[int]:
        """The same share of each node type, or as much of it as the bytes allow."""
        options, manifest = self._options, self._partition.manifest
        remote = _remote_nodes(self._partition)
        if options.budget is None:
            rows = rows_by_ratio(manifest, [Ranked(np.arange(n), np.empty(0)) for n in remote], options)
        else:
            alike = [Candidates.unranked(n, self._dynamic_bytes(t)) for t, n in enumerate(remote)]
            rows = choose(alike, options.budget - self._topology_bytes)
        try:
            require_memory(self._dynamic_size(rows))
        except MemoryError as error:
            raise OptionError(
                f"cache: not enough memory for {sum(rows):,} rows: {error}. Lower cache.ratio or cache.bytes."
            ) from None
        return [n // self._processes for n in rows]

    def _dynamic_bytes(self, node_type: int) -> int:
        """Bytes of one row of a dynamic cache."""
        return cached_node_bytes(self._partition.manifest, node_type) + _BESIDE_A_ROW

    def _dynamic_size(self, rows: Sequence[int]) -> int:
        return sum(n * self._dynamic_bytes(t) for t, n in enumerate(rows))

    def _made_by(self, what: str) -> Mapping[str, Any]:
        """The options that a saved cache must have been built with."""
        options, partition = self._options, self._partition
        weights = [] if options.weight_attr is None else [options.weight_attr]  # caches of earlier releases have none
        return {
            "what": what,
            "graph": partition.manifest.options_hash,
            "parts": list(partition.parts),
            "policy": self._policy,
            "ratio": options.ratio,
            "bytes": options.budget,
            "topology": self._topology_bytes,
            "batches": [options.num_neighbors, options.batch_size, *weights] if self._presampled else None,
        }

    def _saved_file(self) -> Path:
        parts = "-".join(map(str, self._partition.parts))
        return self._partition.directory / "caches" / f"parts-{parts}-{self._policy}.bin"

    def _summary(self, origin: str) -> str:
        """One log line: what lies in the cache."""
        manifest, shares = self._partition.manifest, []
        for name, n, gids in zip(manifest.schema.node_types, manifest.num_nodes, self._gids or [], strict=True):
            of = "nodes" if manifest.schema.homogeneous else name
            if len(gids):
                shares.append(f"{len(gids):,} rows ({len(gids) / n:.1%} of all {of})")
        rows = f"{', '.join(shares) or 'no rows'} of remote parts, {self._policy}"
        size = 0 if self._rows is None else self._rows.nbytes
        if self._capacity:
            capacity, size = sum(self._capacity), self._processes * self._dynamic_size(self._capacity)
            rows = f"dynamic, up to {capacity:,} rows of remote parts in each of {self._processes} sampler processes"
        lists = ""
        if self._topology is not None:
            lists = f"; neighbour lists of {self._topology.num_nodes:,} nodes, {self._topology.nbytes / 1e6:,.1f} MB"
        return f"cache on the host of parts {list(self._partition.parts)}: {rows}, {size / 1e6:,.1f} MB{origin}{lists}."


def _remote_nodes(partition: LocalPartition) -> list[int]:
    """Number of remote nodes of each type."""
    manifest = partition.manifest
    own = [sum(manifest.rows(p, t) for p in partition.parts) for t in range(len(manifest.num_nodes))]
    return [n - mine for n, mine in zip(manifest.num_nodes, own, strict=True)]


def _none(partition: LocalPartition) -> list[Ranked]:
    return [Ranked(np.empty(0, dtype=np.int64), np.empty(0)) for _ in partition.schema.node_types]
