"""Partitioning in a script, with the classes of GraphLearn-for-PyTorch; `docs/coming-from.md` explains them.

python examples/partition_products.py --root data --num-parts 2
python examples/partition_products.py --root data --num-parts 2 --partitioner frequency
python -m lightning fit --model GraphSAGE --data GLTDataModule --data.partition.dir data/ogbn_products-random-2
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from ogb.nodeproppred import PygNodePropPredDataset
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage

import glt_lightning.compat.glt as glt


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="ogbn-products")
    parser.add_argument("--root", type=Path, default=Path("data"))
    parser.add_argument("--num-parts", type=int, default=2)
    parser.add_argument("--num-neighbors", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--partitioner", choices=("random", "frequency", "metis", "streaming"), default="random")
    args = parser.parse_args(argv)

    # OGB keeps its processed data as pickles; torch >= 2.6 reads only classes of those that are listed.
    with torch.serialization.safe_globals([DataEdgeAttr, DataTensorAttr, GlobalStorage]):
        dataset = PygNodePropPredDataset(args.dataset, str(args.root))
    data, splits = dataset[0], dataset.get_idx_split()

    graph = {
        "output_dir": args.root / f"{args.dataset.replace('-', '_')}-{args.partitioner}-{args.num_parts}",
        "num_parts": args.num_parts,
        "num_nodes": data.num_nodes,
        "edge_index": data.edge_index,
        "node_feat": data.x,
        "node_label": data.y,
        "splits": splits,
        "edge_assign_strategy": "by_dst",
    }
    if args.partitioner == "frequency":
        topology = glt.data.Topology(edge_index=data.edge_index, layout="CSC")
        sampler = glt.sampler.NeighborSampler(glt.data.Graph(topology), args.num_neighbors, edge_dir="in")
        shares = torch.tensor_split(splits["train"], args.num_parts)
        probs = [sampler.sample_prob(seeds, data.num_nodes) for seeds in shares]
        partitioner = glt.partition.FrequencyPartitioner(**graph, probs=probs)
    elif args.partitioner == "random":
        partitioner = glt.partition.RandomPartitioner(**graph)
    elif args.partitioner == "metis":
        partitioner = glt.partition.MetisPartitioner(**graph)
    else:
        partitioner = glt.partition.StreamingPartitioner(**graph)
    manifest = partitioner.partition()
    print(f"{graph['output_dir']}: {manifest.total_nodes} nodes in {manifest.num_parts} parts")


if __name__ == "__main__":
    main()
