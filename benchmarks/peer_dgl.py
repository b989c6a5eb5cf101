"""DGL on the same graph, one thread: sampling, its loader, a tiny call. Run it with an interpreter that has DGL.

    PYTHON_OF_DGL benchmarks/peer_dgl.py PARTITION

Measured with DGL 2.1.0, torch 2.2.1, torchdata 0.7.1, numpy < 2. PARTITION holds one part. DGL expands all nodes found
so far in every hop, so its batches are larger (1.14 times the edges at [15, 10, 5]); compare per edge and per row. It always
returns edge ids.
"""

from __future__ import annotations

import argparse
import time
from itertools import repeat
from pathlib import Path

import dgl
import numpy as np
import torch
from measure import report

CASES = {"15,10,5": 1024, "10,25": 1000}
WARM_UP = 5


def csc(indptr: torch.Tensor, indices: torch.Tensor) -> dgl.DGLGraph:
    graph = dgl.graph(("csc", (indptr, indices, torch.empty(0, dtype=torch.int64)))).formats(["csc"])
    graph.create_formats_()
    return graph


def sampling(graph: dgl.DGLGraph, train: torch.Tensor, seconds: float) -> None:
    for fanouts, size in CASES.items():
        sampler = dgl.dataloading.NeighborSampler([int(k) for k in fanouts.split(",")][::-1])
        batches = train[torch.randperm(len(train))].split(size)[:-1]
        for seeds in batches[:WARM_UP]:
            sampler.sample_blocks(graph, seeds)
        edges = count = 0
        begin = time.process_time()
        while time.process_time() - begin < seconds:
            _, _, blocks = sampler.sample_blocks(graph, batches[count % len(batches)])
            edges, count = edges + sum(b.num_edges() for b in blocks), count + 1
        used = time.process_time() - begin
        figures = {
            "m_edges_per_cpu_s": edges / used / 1e6,
            "cpu_ms": used / count * 1e3,
            "edges_per_batch": edges / count,
        }
        report(bench="sampling", system="dgl", fanouts=fanouts, **figures)


def loading(graph: dgl.DGLGraph, train: torch.Tensor, batches: int = 25) -> None:
    sampler = dgl.dataloading.NeighborSampler([5, 10, 15], prefetch_node_feats=["x"], prefetch_labels=["y"])
    loader = dgl.dataloading.DataLoader(graph, train, sampler, batch_size=1024, shuffle=True, num_workers=0)
    stream = (batch for _ in repeat(None) for batch in loader)
    for _ in range(WARM_UP):
        next(stream)
    begin = time.process_time()
    rows = sum(next(stream)[2][0].srcdata["x"].shape[0] for _ in range(batches))
    used = time.process_time() - begin
    figures = {"m_rows_per_cpu_s": rows / used / 1e6, "cpu_ms": used / batches * 1e3, "rows": rows // batches}
    report(bench="loader", system="dgl", workers=0, **figures)


def tiny(calls: int = 1000) -> None:
    graph = csc(torch.arange(0, 10_001, 10), torch.arange(10_000) * 7919 % 1000)
    sampler = dgl.dataloading.NeighborSampler([5, 5])
    took = []
    for i in range(calls):
        seeds = torch.tensor([i * 37 % 1000])
        begin = time.perf_counter()
        sampler.sample_blocks(graph, seeds)
        took.append(time.perf_counter() - begin)
    report(bench="tiny", system="dgl", us_per_call=float(np.median(took) * 1e6))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0, help="CPU time of each case of sampling")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dgl.utils.set_num_threads(1)
    part = args.partition / "part0"
    rows = [torch.from_numpy(np.load(part / f"edges/0/{n}.npy").astype(np.int64)) for n in ("indptr", "indices")]
    train = torch.from_numpy(np.load(args.partition / "splits/train.npy"))
    graph = csc(*rows)
    sampling(graph, train, args.seconds)
    graph.ndata["x"], graph.ndata["y"] = (torch.from_numpy(np.load(part / f"nodes/0/{n}.npy")) for n in ("x", "y"))
    loading(graph, train)
    tiny()


if __name__ == "__main__":
    main()
