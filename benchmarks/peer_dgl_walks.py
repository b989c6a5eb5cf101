"""DGL's random walks and PinSAGE neighbours on the same rows, one thread: started by walks.py, which see."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import dgl
import torch
from measure import report
from peer import PeerGraph

LENGTH, VISITED, NEIGHBORS, HALF = 10, 3, 10, 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("partition", type=Path)
    parser.add_argument("--seeds", type=int, default=1024)
    parser.add_argument("--walks", type=int, default=50)
    parser.add_argument("--round", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dgl.utils.set_num_threads(1)
    data = PeerGraph.load(args.partition)
    # its walks follow edges from their sources on: what we store as the sources of a row are here the destinations
    graph = dgl.graph(("csr", (data.indptr, data.indices, torch.empty(0, dtype=torch.int64)))).formats(["csr", "csc"])
    graph.create_formats_()
    sampler = dgl.sampling.RandomWalkNeighborSampler(graph, VISITED, HALF, args.walks, NEIGHBORS)

    def walk(seeds: torch.Tensor) -> int:
        trace, _ = dgl.sampling.random_walk(graph, seeds.repeat_interleave(args.walks), length=LENGTH)
        return int((trace[:, 1:] >= 0).sum())

    def pinsage(seeds: torch.Tensor) -> int:
        sampler(seeds)
        return 0

    ways: dict[str, Callable[[torch.Tensor], int]] = {"walk": walk, "pinsage stop": pinsage}
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(args.round))
    for way, call in ways.items():
        for again in range(2):  # the first one is not counted
            seeds = data.train[order[again * args.seeds : (again + 1) * args.seeds]]
            begin = time.process_time()
            steps = call(seeds)
            took = time.process_time() - begin
        found = {"m_steps_per_cpu_s": steps / took / 1e6} if steps else {}
        report(bench="walks", system="dgl", way=way, round=args.round, seeds_per_cpu_s=len(seeds) / took, **found)


if __name__ == "__main__":
    main()
