"""DGL on the same graph, one thread: sampling, its loader, a tiny call. Run it with an interpreter that has DGL.

    PYTHON_OF_DGL benchmarks/peer_dgl.py PARTITION

Measured with DGL 2.1.0, torch 2.2.1, torchdata 0.7.1, numpy < 2. PARTITION holds one part. DGL expands all nodes found
so far in every hop, so its batches are larger (1.14 times the edges at [15, 10, 5]); compare per edge and per row. It always
returns edge ids, so one measurement stands for both.
"""

from __future__ import annotations

import dgl
import torch
from peer import (
    CASES,
    LOADER_FANOUTS,
    LOADER_SIZE,
    Options,
    PeerGraph,
    time_loader,
    time_sampling,
    time_tiny,
    tiny_rows,
)


def csc(indptr: torch.Tensor, indices: torch.Tensor) -> dgl.DGLGraph:
    graph = dgl.graph(("csc", (indptr, indices, torch.empty(0, dtype=torch.int64)))).formats(["csc"])
    graph.create_formats_()
    return graph


def main() -> None:
    options = Options.parse(__doc__)
    dgl.utils.set_num_threads(1)
    data = PeerGraph.load(options.partition)
    graph = csc(data.indptr, data.indices)
    for fanouts in CASES:
        sampler = dgl.dataloading.NeighborSampler([int(k) for k in fanouts.split(",")][::-1])

        def sample(seeds: torch.Tensor, sampler: dgl.dataloading.NeighborSampler = sampler) -> int:
            return sum(block.num_edges() for block in sampler.sample_blocks(graph, seeds)[2])

        time_sampling("dgl", fanouts, data.train, options.seconds, sample)
    graph.ndata["x"], graph.ndata["y"] = data.x, data.y
    sampler = dgl.dataloading.NeighborSampler(LOADER_FANOUTS[::-1], prefetch_node_feats=["x"], prefetch_labels=["y"])
    loader = dgl.dataloading.DataLoader(graph, data.train, sampler, batch_size=LOADER_SIZE, shuffle=True, num_workers=0)
    time_loader("dgl", loader, lambda batch: batch[2][0].srcdata["x"].shape[0], options.batches)
    small, few = csc(*tiny_rows()), dgl.dataloading.NeighborSampler([5, 5])
    time_tiny("dgl", lambda seeds: few.sample_blocks(small, seeds))


if __name__ == "__main__":
    main()
