"""DGL's loader of edges on the same graph, one thread, for link.py, which starts it: a round for each line that it reads.

    PYTHON_OF_DGL benchmarks/peer_dgl_link.py PARTITION [--batches 10] < lines

`as_edge_prediction_sampler` over the `NeighborSampler` [15, 10], 512 edges of the graph a batch, with features. ``dgl``: one
negative for each edge, of any destination (`Uniform`).  ``dgl strict``: as many pairs that are no edges (`GlobalUniform`).
``dgl exclude``: as ``dgl``, with the edges of the batch left out of what was sampled (``self``). PARTITION holds one part. DGL
expands all nodes found so far in every hop.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import dgl
import torch
from dgl.dataloading import negative_sampler
from measure import report
from peer import PeerGraph

FANOUTS, EDGES_PER_BATCH, POSITIVES = [15, 10], 512, 100_000
KINDS: dict[str, dict[str, Any]] = {
    "dgl": {"negative_sampler": negative_sampler.Uniform(1)},
    "dgl strict": {"negative_sampler": negative_sampler.GlobalUniform(1)},
    "dgl exclude": {"negative_sampler": negative_sampler.Uniform(1), "exclude": "self"},
}


def endless(graph: dgl.DGLGraph, edges: torch.Tensor, options: dict[str, Any]) -> Iterator[Any]:
    sampler = dgl.dataloading.NeighborSampler(FANOUTS[::-1], prefetch_node_feats=["x"])
    sampler = dgl.dataloading.as_edge_prediction_sampler(sampler, **options)
    loader = dgl.dataloading.DataLoader(graph, edges, sampler, batch_size=EDGES_PER_BATCH, shuffle=True, num_workers=0)
    return (batch for _ in repeat(None) for batch in loader)


def load(batch: Any) -> int:
    """The number of sampled edges; the features are read when they are asked for."""
    blocks = batch[-1]
    assert len(blocks[0].srcdata["x"]) == blocks[0].num_src_nodes()
    return sum(block.num_edges() for block in blocks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition", type=Path)
    parser.add_argument("--batches", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dgl.utils.set_num_threads(1)
    data = PeerGraph.load(args.partition)
    # by source, too: whether a pair is an edge is looked up there, and an edge's ends among pairs
    graph = dgl.graph(("csc", (data.indptr, data.indices, torch.empty(0, dtype=torch.int64))))
    graph.create_formats_()
    graph.ndata["x"] = data.x
    edges = torch.randperm(graph.num_edges())[:POSITIVES]
    streams = {name: endless(graph, edges, options) for name, options in KINDS.items()}
    for _ in sys.stdin:
        for name, stream in streams.items():
            began = time.process_time()
            count = sum(load(next(stream)) for _ in range(args.batches))
            report(system=name, cpu_s=time.process_time() - began, edges=count, last=name == list(KINDS)[-1])


if __name__ == "__main__":
    main()
