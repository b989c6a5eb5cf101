"""DGL's GraphSAGE on the same graph, one thread: its loader, and a training step with its own kernels.

    PYTHON_OF_DGL benchmarks/peer_dgl_step.py PARTITION [--rounds 5] [--hidden 256]

The model and loader of DGL's node classification example: SAGEConv with the mean of neighbours, on blocks (each layer for the
nodes that later layers need), three layers, dropout 0.5, [15, 10, 5] x 1024. PARTITION holds one part. DGL expands all nodes
found so far in every hop, so that its batches hold more edges: ``edges`` says how many. With MALLOC_MMAP_MAX_=0 and
MALLOC_TRIM_THRESHOLD_=4000000000 in the environment the allocator keeps freed memory, as ours does in training.
"""

from __future__ import annotations

import argparse
import os
import time
from itertools import pairwise
from pathlib import Path

import dgl
import torch
from dgl.nn import SAGEConv
from measure import report
from peer import LOADER_FANOUTS, LOADER_SIZE, PeerGraph
from peer_dgl import csc
from torch import nn
from torch.nn import functional

CLASSES = 47


class SAGE(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        widths = [width, hidden, hidden, CLASSES]
        self.layers = nn.ModuleList(SAGEConv(a, b, "mean") for a, b in pairwise(widths))
        self.dropout = nn.Dropout(0.5)

    def forward(self, blocks: list[dgl.DGLGraph], x: torch.Tensor) -> torch.Tensor:
        for i, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x)
            if i + 1 < len(self.layers):
                x = self.dropout(functional.relu(x))
        return x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=256)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dgl.utils.set_num_threads(1)
    data = PeerGraph.load(args.partition)
    graph = csc(data.indptr, data.indices)
    graph.ndata["x"] = data.x
    sampler = dgl.dataloading.NeighborSampler(LOADER_FANOUTS[::-1], prefetch_node_feats=["x"])
    loader = iter(
        dgl.dataloading.DataLoader(graph, data.train, sampler, batch_size=LOADER_SIZE, shuffle=True, num_workers=0)
    )
    model = SAGE(data.x.shape[1], args.hidden)
    steps, loads, edges = [], [], 0
    for number in range(args.rounds + 1):
        began = time.process_time()
        blocks = next(loader)[2]
        loaded = time.process_time()
        labels = torch.arange(blocks[-1].num_dst_nodes()) % CLASSES
        model.zero_grad(set_to_none=True)
        functional.cross_entropy(model(blocks, blocks[0].srcdata["x"]), labels).backward()
        if number:  # the first also loads code
            loads.append(loaded - began)
            steps.append(time.process_time() - loaded)
            edges += sum(block.num_edges() for block in blocks)
    for bench, seconds in ("step", steps), ("load", loads):
        report(
            bench=bench,
            system="dgl GraphSAGE",
            threads=1,
            keeps_memory="MALLOC_MMAP_MAX_" in os.environ,
            rounds=len(seconds),
            edges=edges // len(seconds),
            cpu_s=sorted(seconds)[len(seconds) // 2],
            least_s=min(seconds),
            most_s=max(seconds),
        )


if __name__ == "__main__":
    main()
