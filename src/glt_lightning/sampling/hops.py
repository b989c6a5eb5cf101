"""The nodes and edges of a k-hop batch, from any source."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.kernels import ExcludedEdges, Trees, run_hops
from glt_lightning.sampling.neighbors import Found, NeighborSource
from glt_lightning.sampling.subgraph import complete_edges


def k_hop(
    source: NeighborSource,
    seeds: Mapping[int, np.ndarray],
    key: int,
    excluded: ExcludedEdges | None = None,
    trees: Trees | None = None,
) -> Found:
    """The nodes and edges of a batch, also those edges that ``source.config.subgraph`` asks for. Its arrays in the host's memory
    are valid until the next batch.

    seeds: by node type int64 [S] gids, of any number of types; a seed that comes twice has two rows.
    key: 64-bit key of all draws.
    excluded: edges that the batch is sampled without; rows that have none of them are drawn from as ever.
    trees: of the seeds, where the source's config is ``disjoint``; None: each seed has its own.
    Raises `DataError` for seeds and excluded edges outside their types and trees that do not fit the seeds, `PartitionError` for
    damaged rows, `PeerError`, naming an owner that does not answer.
    """
    begin = time.perf_counter()
    source.begin()
    if source.config.disjoint:
        trees = (trees or Trees()).for_seeds(seeds)
    elif trees is not None:
        raise DataError("k_hop: got trees for a batch that is not disjoint.")
    found = source.khop(seeds, key, excluded, trees)
    if found is None:
        batch = source.local.start(seeds, trees)
        later = excluded
        if excluded is not None and trees is None and source.config.importance is None:
            # a node is expanded once, a seed in the first hop: later hops mostly have nothing to look for, unless they walk
            later = excluded.without_seeds(seeds, source.view)
        run_hops(source, batch, key, source.config.fanouts, (excluded, later))
        found = batch.result()
    found = complete_edges(source, found, excluded)
    counters = source.local.counters
    counters.sample_s = time.perf_counter() - begin - counters.remote_s
    return found
