"""The nodes and edges of a k-hop batch, from any source."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from glt_lightning.ops.excluded import ExcludedEdges
from glt_lightning.ops.hops import run_hops
from glt_lightning.sampler.neighbors import Found, NeighborSource


def k_hop(
    source: NeighborSource, seeds: Mapping[int, np.ndarray], key: int, excluded: ExcludedEdges | None = None
) -> Found:
    """The nodes and edges of a batch. Its arrays in the host's memory are valid until the next batch.

    seeds: by node type int64 [S] gids, of any number of types; a seed that comes twice has two rows.
    key: 64-bit key of all draws.
    excluded: edges that the batch is sampled without; rows that have none of them are drawn from as ever.
    Raises `DataError` for seeds and excluded edges outside their types, `PartitionError` for damaged rows, `PeerError`,
    naming an owner that does not answer.
    """
    begin = time.perf_counter()
    source.begin()
    found = source.khop(seeds, key, excluded)
    if found is None:
        batch = source.local.start(seeds)
        # a node is expanded once, a seed in the first hop: later hops mostly have nothing to look for
        later = None if excluded is None else excluded.without_seeds(seeds, source.view)
        run_hops(source, batch, key, source.config.fanouts, (excluded, later))
        found = batch.result()
    counters = source.local.counters
    counters.sample_s = time.perf_counter() - begin - counters.remote_s
    return found
