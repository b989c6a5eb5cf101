"""What streaming partitioning does to each edge, for growing graphs of one model: does an edge cost more in a larger one?

    python benchmarks/streaming.py [--nodes 300000,1000000,4000000] [--degree 25] [--communities 1000] [--rounds 1]

Random graphs with communities: each node has as many neighbours, 0.8 of them in its own. CPU nanoseconds an edge, one
thread, of each kernel that runs over all edges: ``propagate`` (mean of two passes, each node its own label at first),
``pairs`` (edges between clusters, counted in a table of 4 M pairs, as ``partition.memory_bytes`` of 2 GiB gives), ``refine``
(a pass with four labels).  clusters: found by the passes.  forgotten: share of the edges between clusters for which the
table had no room. The processor's caches make small graphs cheaper; what grows faster than that is in the algorithm.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from measure import report

from glt_lightning.kernels import Labels, NeighborRows, PairTable

_PAIRS = 1 << 22
_CHUNK = 200_000
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


def measure(rows: NeighborRows) -> dict[str, float]:
    nodes, edges = rows.num_nodes, len(rows.neighbors)

    def ns(work: Callable[[], object]) -> float:
        begin = time.thread_time()
        work()
        return (time.thread_time() - begin) / edges * 1e9

    weights = np.ones((nodes, 1), np.int32)
    labels = Labels(np.arange(nodes), weights, nodes)
    capacity = np.array([-(-nodes // 256)])
    passes = [ns(lambda: labels.propagate(rows, capacity, everywhere=False)) for _ in range(2)]
    used, clusters = np.unique(labels.labels, return_inverse=True)
    clusters = clusters.astype(np.int32)
    pairs, parts = PairTable(_PAIRS), Labels(clusters % 4, weights, 4)
    found = {
        "propagate_ns": float(np.mean(passes)),
        "pairs_ns": ns(lambda: pairs.add(rows, clusters)),
        "refine_ns": ns(lambda: parts.propagate(rows, np.array([nodes]), everywhere=True)),
    }
    between = pairs.forgotten + int(pairs.graph(len(used))[2].sum()) // 2
    return found | {"clusters": len(used), "forgotten": pairs.forgotten / max(1, between)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="300000,1000000,4000000")
    parser.add_argument("--degree", type=int, default=25)
    parser.add_argument("--communities", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    for number in range(args.rounds):
        for nodes in map(int, args.nodes.split(",")):
            rows = graph(nodes, args.degree, args.communities)
            report(
                bench="streaming", system="ours", round=number, nodes=nodes, edges=len(rows.neighbors), **measure(rows)
            )


if __name__ == "__main__":
    main()
