"""The graph of clusters: the number of edges between each two, in bounded memory.

Edges between clusters are dealt out over buckets of a file, each pair of clusters to one of them. A bucket fits the cache of a
core while its edges are counted, so that an edge takes little longer in a large graph than in a small one.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from glt_lightning.kernels import LabelPairs, NeighborRows
from glt_lightning.partition.build.edges import ranges_within
from glt_lightning.partition.tasks.exchange import RunWriter, read_buckets

_BUCKET_EDGES = 1 << 16
_MOST_BITS = 12  # of the number of a bucket: keys are written to that many places at a time
_AT_ONCE = 1 << 20  # edges that are read before they are counted
_KEY_BYTES = 8

CsrGraph = tuple[np.ndarray, np.ndarray, np.ndarray]


def cluster_graph(
    all_rows: Iterable[NeighborRows],
    entries: int,
    clusters: np.ndarray,
    count: int,
    most: int,
    folder: Path,
    threads: int,
) -> CsrGraph:
    """Returns the clusters and the pairs of them with the most edges: indptr [clusters + 1], neighbours, numbers of edges.

    all_rows: of all nodes, each edge in the rows of both its ends.  entries: of these, or more.
    clusters: int32 [N], the cluster of each node.  count: of clusters.  most: of pairs; of more, those with fewer edges are
    dropped, at a tie those of higher numbers.  folder: of the file.
    """
    bits = min(_MOST_BITS, (entries // 2 // _BUCKET_EDGES).bit_length())
    pairs = LabelPairs(clusters, bits, max(1, min(most, count * (count - 1) // 2, entries // 2)), threads)
    file = folder / "pairs"
    with RunWriter(file, _KEY_BYTES, 1 << bits) as writer:
        for rows in all_rows:
            writer.add(*pairs.keys(rows))
    buckets = np.concatenate([[0], np.cumsum(np.diff(writer.runs.table, axis=1).sum(axis=0))])
    groups = ranges_within(buckets, min(_AT_ONCE, 4 * most))
    memory = np.empty(max((int(buckets[high] - buckets[low]) for low, high in groups), default=0), np.uint64)
    for low, high in groups:
        data, first = read_buckets([writer.runs], low, high, _KEY_BYTES, memory.view(np.uint8))
        pairs.add(data.view(np.uint64), first)
    file.unlink()
    return pairs.graph(count)
