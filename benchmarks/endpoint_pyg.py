"""What a PyG user writes to predict one node on request: a loader and the model, in one process, without a server.

    PYTHON benchmarks/endpoint_pyg.py GRAPH [--requests 1000] [--hidden 128] [--fanouts 10 10]

GRAPH: as of headline_pyg.py. The loader of PyG is made for each request with the sampler of the first, as making that one sorts
all edges; where pyg-lib and torch-sparse are missing, a loader of ours, which has no such sampler, is kept for all requests.
One thread of torch, one request after the other. ``model``: the model alone, on batches that are there.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from headline_pyg import LOADER, NeighborLoader, read
from measure import report
from torch_geometric.nn import GraphSAGE


def loaders(data: Any, fanouts: list[int], nodes: torch.Tensor) -> Callable[[int], Any]:
    """Returns what gives the batch of the request with a number."""
    options = {"num_neighbors": fanouts, "batch_size": 1}
    loader = NeighborLoader(data, **options, input_nodes=nodes)
    if LOADER == "ours":
        batches = iter(loader)
        return lambda number: next(batches)
    sampler = loader.node_sampler
    return lambda number: next(
        iter(NeighborLoader(data, **options, input_nodes=nodes[number : number + 1], neighbor_sampler=sampler))
    )


def times(answer: Callable[[Any], Any], requests: Iterable[Any]) -> np.ndarray:
    """Milliseconds of each request."""
    taken = []
    for request in requests:
        began = time.perf_counter()
        answer(request)
        taken.append(time.perf_counter() - began)
    return 1e3 * np.array(taken)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 10])
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = read(args.graph, {})
    model = GraphSAGE(data.num_features, args.hidden, len(args.fanouts), int(data.y.max()) + 1).eval()
    nodes = torch.from_numpy(np.random.default_rng(0).integers(0, data.num_nodes, args.requests + 10))
    batch_of, batches = loaders(data, args.fanouts, nodes), []

    def predict(batch: Any) -> torch.Tensor:
        return model(batch.x, batch.edge_index)[: batch.batch_size].softmax(1)

    def answer(number: int) -> None:
        batches.append(batch_of(number))
        predict(batches[-1])

    times(answer, range(10))  # not counted: what runs once
    found = {LOADER: times(answer, range(10, len(nodes))), "model": times(predict, batches[10:])}
    for system, taken in found.items():
        p50, p99 = np.quantile(taken, (0.5, 0.99))
        report(
            bench="endpoint_pyg",
            system=system,
            requests=args.requests,
            p50_ms=p50,
            p99_ms=p99,
            per_s=1e3 / taken.mean(),
        )


if __name__ == "__main__":
    main()
