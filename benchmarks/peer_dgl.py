"""DGL on the same graph: sampling and its loader, one thread. Run it with an interpreter that has DGL (2.1.0, torch 2.2).

    PYTHON_OF_DGL benchmarks/peer_dgl.py PARTITION

PARTITION holds one part. DGL expands all nodes found so far in every hop, so its batches are larger; compare per edge
and per row.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import dgl
import numpy as np
import torch
from measure import own_cpu_s, report

CASES = {"15,10,5": 1024, "10,25": 1000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition")
    parser.add_argument("--seconds", type=float, default=3.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dgl.utils.set_num_threads(1)
    part = Path(args.partition, "part0")
    indptr, indices = (
        torch.from_numpy(np.load(part / "edges/0" / f"{n}.npy").astype(np.int64)) for n in ("indptr", "indices")
    )
    train = torch.from_numpy(np.load(Path(args.partition, "splits/train.npy")))
    graph = dgl.graph(("csc", (indptr, indices, torch.empty(0, dtype=torch.int64)))).formats(["csc"])
    graph.create_formats_()
    for fanouts, size in CASES.items():
        sampler = dgl.dataloading.NeighborSampler([int(k) for k in fanouts.split(",")][::-1])
        seeds = train[torch.randperm(len(train))].split(size)
        edges = count = 0
        for i in range(5):
            sampler.sample_blocks(graph, seeds[i])
        begin, stop = own_cpu_s(), time.monotonic() + args.seconds
        while time.monotonic() < stop:
            _, _, blocks = sampler.sample_blocks(graph, seeds[count % (len(seeds) - 1)])
            edges, count = edges + sum(b.num_edges() for b in blocks), count + 1
        used = own_cpu_s() - begin
        report(
            system="dgl", work="n_id", fanouts=fanouts, m_edges_per_cpu_s=edges / used / 1e6, cpu_ms=used / count * 1e3
        )
    graph.ndata["x"] = torch.from_numpy(np.load(part / "nodes/0/x.npy"))
    graph.ndata["y"] = torch.from_numpy(np.load(part / "nodes/0/y.npy"))
    sampler = dgl.dataloading.NeighborSampler([5, 10, 15], prefetch_node_feats=["x"], prefetch_labels=["y"])
    loader = dgl.dataloading.DataLoader(graph, train, sampler, batch_size=1024, shuffle=True, num_workers=0)
    rows = count = 0
    begin = 0.0
    for i, (_, _, blocks) in enumerate(loader):
        if i == 5:
            begin, rows, count = own_cpu_s(), 0, 0
        rows, count = rows + blocks[0].srcdata["x"].shape[0], count + 1
        if i >= 25:
            break
    used = own_cpu_s() - begin
    report(system="dgl", work="loader", workers=0, m_rows_per_cpu_s=rows / used / 1e6, cpu_ms=used / count * 1e3)


if __name__ == "__main__":
    main()
