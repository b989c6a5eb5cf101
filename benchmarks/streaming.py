"""What streaming partitioning does to each edge, for growing graphs of one model: does an edge cost more in a larger one?

    python benchmarks/streaming.py [--nodes 300000,1000000,4000000] [--degree 25] [--communities 1000] [--rounds 1]
    python benchmarks/streaming.py --graph DIR ...

Random graphs with communities: each node has as many neighbours, 0.8 of them in its own. CPU nanoseconds an edge, one
thread, of each kernel that runs over all edges: ``propagate`` (mean of two passes, each node its own label at first),
``pairs`` (the graph of clusters with at most 4 M pairs, as ``partition.memory_bytes`` of 2 GiB gives; between: for each
edge between clusters), ``refine`` (a pass with four labels).  clusters: found by the passes.  between: share of the edges that
are between clusters.  forgotten: share of these that are of other pairs. --graph: a folder of indptr.npy and indices.npy
(``make_graph.py``) in place of random graphs. The processor's caches make small graphs cheaper; what grows faster than that
is in the algorithm.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from measure import report

from glt_lightning.kernels import Labels, NeighborRows
from glt_lightning.partition.assign.assigners import CsrGraph, cluster_graph

_PAIRS = 1 << 22
_CHUNK = 200_000
_ENTRIES = 1 << 22  # of the rows that are passed at once, as in a partition
_INSIDE = 0.8


def graph(nodes: int, degree: int, communities: int) -> NeighborRows:
    rng = np.random.default_rng(0)
    community = rng.integers(0, communities, nodes)
    order = np.argsort(community, kind="stable")
    ends = np.searchsorted(community[order], np.arange(communities + 1))
    neighbors = np.empty(nodes * degree, np.int32)
    for begin in range(0, nodes, _CHUNK):
        own = np.repeat(community[begin : begin + _CHUNK], degree)
        inside = rng.random(len(own)) < _INSIDE
        low, high = np.where(inside, ends[own], 0), np.where(inside, ends[own + 1], nodes)
        neighbors[begin * degree :][: len(own)] = order[(low + rng.random(len(own)) * (high - low)).astype(np.int64)]
    return NeighborRows(0, np.arange(0, nodes * degree + 1, degree), neighbors, nodes)


def opened(folder: Path) -> NeighborRows:
    indptr, neighbors = np.load(folder / "indptr.npy"), np.load(folder / "indices.npy").astype(np.int32)
    return NeighborRows(0, indptr, neighbors, len(indptr) - 1)


def measure(rows: NeighborRows) -> dict[str, float]:
    nodes, edges = rows.num_nodes, len(rows.neighbors)

    def ns(work: Callable[[], object]) -> float:
        begin = time.thread_time()
        work()
        return (time.thread_time() - begin) / edges * 1e9

    weights = np.ones((nodes, 1), np.int32)
    labels = Labels(np.arange(nodes), weights, nodes)

    def join() -> CsrGraph:
        with tempfile.TemporaryDirectory() as folder:
            return cluster_graph(chunks(rows), edges, clusters, len(used), _PAIRS, Path(folder), 1)

    capacity = np.array([-(-nodes // 256)])
    passes = [ns(lambda: labels.propagate(rows, capacity, everywhere=False)) for _ in range(2)]
    used, clusters = np.unique(labels.labels, return_inverse=True)
    clusters = clusters.astype(np.int32)
    parts = Labels(clusters % 4, weights, 4)
    found = {
        "propagate_ns": float(np.mean(passes)),
        "pairs_ns": min(ns(join) for _ in range(3)),  # a virtual machine takes longer for memory that is new to it
        "refine_ns": ns(lambda: parts.propagate(rows, np.array([nodes]), everywhere=True)),
    }
    ends = (
        (each.neighbors, np.repeat(np.arange(each.first, each.first + len(each)), np.diff(each.indptr)))
        for each in chunks(rows)
    )
    between = sum(int((clusters[far] != clusters[node])[far > node].sum()) for far, node in ends)
    found |= {"between": 2 * between / edges, "pairs_between_ns": found["pairs_ns"] * edges / max(1, between)}
    return found | {"clusters": len(used), "forgotten": 1 - int(join()[2].sum()) / max(1, 2 * between)}


def chunks(rows: NeighborRows) -> Iterator[NeighborRows]:
    begin = 0
    while begin < len(rows):
        end = max(begin + 1, int(np.searchsorted(rows.indptr, rows.indptr[begin] + _ENTRIES, side="right")) - 1)
        indptr = rows.indptr[begin : end + 1]
        yield NeighborRows(begin, indptr - indptr[0], rows.neighbors[indptr[0] : indptr[-1]], rows.num_nodes)
        begin = end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="300000,1000000,4000000")
    parser.add_argument("--degree", type=int, default=25)
    parser.add_argument("--communities", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--graph", type=Path, nargs="+")
    args = parser.parse_args()
    graphs = args.graph or [*map(int, args.nodes.split(","))]
    for number in range(args.rounds):
        for each in graphs:
            rows = graph(each, args.degree, args.communities) if isinstance(each, int) else opened(each)
            line = {"bench": "streaming", "system": "ours", "round": number, "graph": "own" if args.graph else "random"}
            report(**line, nodes=len(rows), edges=len(rows.neighbors), **measure(rows))


if __name__ == "__main__":
    main()
