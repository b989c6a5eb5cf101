"""CPU seconds of a training step: the ready module, PyG's own model on the same batches, and the matrix products alone.

    python benchmarks/step.py PARTITION [--models GraphSAGE GAT GCN] [--rounds 5] [--batch_size 1024] [--hidden 256]
        [--edge_format tensor edge_index edge_index_csr]

PARTITION: a partition folder; all of its parts are mapped. Each round runs forward and backward of every system once, on the same
batch, with --threads threads. ``ours bf16``: under autocast to bfloat16, all others in float32. ``stock``: PyG's class with
``trim_to_layer``. ``products``: the linear layers of GraphSAGE on the rows that they need, forward and backward, without reading
or aggregating a single edge: what no aggregation can be faster than. The allocator keeps freed memory, as in training;
--return_memory: as ``sampling.keep_memory: false``. With several --edge_format each system runs on the same picks in each.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise, product

import torch
from measure import report
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data

from glt_lightning import LoaderSpec, Session
from glt_lightning.base.sampling import EDGE_FORMATS
from glt_lightning.kernels import keep_freed_memory
from glt_lightning.loader.trim import layer_size
from glt_lightning.models.gnn import HomogeneousGNN, gnn_class

CLASSES, LAYERS = 47, 3


class Products(nn.Module):
    """The matrix products of GraphSAGE: two a layer, of the destinations and of what was aggregated for them."""

    def __init__(self, width: int, hidden: int, layers: int = LAYERS, classes: int = CLASSES) -> None:
        super().__init__()
        widths = [width] + [hidden] * (layers - 1) + [classes]
        self.own = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.aggregated = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def forward(self, batch: Data) -> Tensor:
        x, layers = batch.x, len(self.own)
        for i, (own, aggregated) in enumerate(zip(self.own, self.aggregated, strict=True)):
            rows = layer_size(layers - 1 - i, batch.num_sampled_nodes, batch.num_sampled_edges).destinations
            x = own(x[:rows]) + aggregated(x[-rows:])
            x = x.relu() if i < layers - 1 else x
        return x


class Stock(nn.Module):
    """PyG's model as its documentation uses it."""

    def __init__(self, name: str, width: int, hidden: int, layers: int = LAYERS, classes: int = CLASSES) -> None:
        super().__init__()
        self.gnn = gnn_class(name)(width, hidden, layers, classes, dropout=0.5)

    def forward(self, batch: Data) -> Tensor:
        hops = {
            "num_sampled_nodes_per_hop": batch.num_sampled_nodes,
            "num_sampled_edges_per_hop": batch.num_sampled_edges,
        }
        return self.gnn(batch.x, batch.edge_index, **hops)[: batch.batch_size]


def step(model: nn.Module, batch: Data, labels: Tensor, bf16: bool) -> float:
    """CPU seconds of forward and backward."""
    model.zero_grad(set_to_none=True)
    began = time.process_time()
    with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
        loss = functional.cross_entropy(model(batch).float(), labels)
    loss.backward()
    return time.process_time() - began


def batches(args: argparse.Namespace) -> Iterator[dict[str, Data]]:
    """Each batch in every format."""
    with Session(args.partition) as session:
        spec = LoaderSpec(
            name="train", num_neighbors=[15, 10, 5], batch_size=args.batch_size, shuffle=True, split="train"
        )
        loaders = [session.make_loader(replace(spec, edge_format=each)) for each in args.edge_format]
        for number, formats in enumerate(zip(*loaders, strict=True)):
            if number > args.rounds:
                return
            yield {name: batch.clone() for name, batch in zip(args.edge_format, formats, strict=True)}


def systems_of(name: str, width: int, hidden: int) -> dict[str, nn.Module]:
    ours = HomogeneousGNN(name, width, hidden, LAYERS, CLASSES, dropout=0.5, num_nodes=None, options={})
    return {f"ours {name}": ours, f"ours bf16 {name}": ours, f"stock {name}": Stock(name, width, hidden)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition")
    parser.add_argument("--models", nargs="+", default=["GraphSAGE"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--return_memory", action="store_true")
    parser.add_argument("--edge_format", nargs="+", choices=EDGE_FORMATS, default=["tensor"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if not args.return_memory:
        keep_freed_memory()
    systems: dict[str, nn.Module] = {}
    spent: dict[tuple[str, str], list[float]] = {}
    for number, formats in enumerate(batches(args)):
        batch = formats[args.edge_format[0]]
        labels = torch.arange(batch.batch_size) % CLASSES
        if not systems:
            systems["products"] = Products(batch.x.size(1), args.hidden)
            for name in args.models:
                systems |= systems_of(name, batch.x.size(1), args.hidden)
        for (name, model), edge_format in product(systems.items(), args.edge_format):
            cpu_s = step(model, formats[edge_format], labels, "bf16" in name)
            if number:  # the first step of each also loads code
                spent.setdefault((name, edge_format), []).append(cpu_s)
    for (name, edge_format), seconds in spent.items():
        report(
            bench="step",
            system=name,
            edge_format=edge_format,
            threads=args.threads,
            keeps_memory=not args.return_memory,
            rounds=len(seconds),
            cpu_s=sorted(seconds)[len(seconds) // 2],
            least_s=min(seconds),
            most_s=max(seconds),
        )


if __name__ == "__main__":
    main()
