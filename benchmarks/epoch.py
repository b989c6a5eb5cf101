"""CPU seconds of one training epoch on a data set: the ready module, PyG's model on the same batches, and on the whole graph.

    python benchmarks/epoch.py DATASET.npz [--num_neighbors 15 10] [--batch_size 512] [--hidden 128] [--return_memory]

DATASET: as `GLTDataModule.dataset`; a typed one is trained with one convolution per edge type. One epoch is every batch of the
train split: sampling (in this process), forward, backward and Adam's step, one thread. Systems take turns; the first epoch of
each is not counted. ``stock``: PyG's class with ``trim_to_layer``; its ``to_hetero`` for several types, which trims
nothing. ``whole graph``: one step of PyG's class over all nodes and edges, of a graph with one type. ``products``: the linear
layers of GraphSAGE alone, on the rows of each batch that they need. --return_memory: the allocator returns freed memory, as
for a script without us.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from measure import report
from step import Products, Stock
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import to_hetero

from glt_lightning import GLTDataModule, GraphSAGE, LoaderSpec, PartitionOptions, Session
from glt_lightning.kernels import keep_freed_memory
from glt_lightning.models.gnn import gnn_class

Step = Callable[[Any], Tensor]


class StockTyped(nn.Module):
    """PyG's model over several edge types: every node type projected to one width, then its ``to_hetero``."""

    def __init__(self, name: str, data: GLTDataModule, hidden: int, layers: int) -> None:
        super().__init__()
        widths, counts = data.num_features, data.num_nodes
        self.encoders = nn.ModuleDict(
            {t: nn.Linear(widths[t], hidden) if widths.get(t) else nn.Embedding(counts[t], hidden) for t in counts}
        )
        model = gnn_class(name)(hidden, hidden, layers, data.num_classes, dropout=0.5)
        self.gnn, self.target = to_hetero(model, data.metadata), data.target_type

    def forward(self, batch: Any) -> Tensor:
        x = {t: encoder(self.input_of(batch[t])) for t, encoder in self.encoders.items()}
        return self.gnn(x, batch.edge_index_dict)[self.target][: batch[self.target].batch_size]

    @staticmethod
    def input_of(store: Any) -> Tensor:
        return store.x.float() if "x" in store else store.n_id


def labels(batch: Any, target: str | None) -> Tensor:
    store = batch[target] if target else batch
    return store.y[: store.batch_size]


def epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Iterable[Any], target: str | None) -> float:
    began = time.process_time()
    for batch in loader:
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(model(batch), labels(batch, target)).backward()
        optimizer.step()
    return time.process_time() - began


def products(model: nn.Module, loader: Iterable[Any]) -> float:
    spent = 0.0
    for batch in loader:
        began = time.process_time()
        model(batch).sum().backward()
        spent += time.process_time() - began
    return spent


def measure(args: argparse.Namespace, data: GLTDataModule, session: Session) -> Iterator[tuple[str, float]]:
    layers, target = len(args.num_neighbors), data.target_type if data.metadata else None
    sizes = {"num_neighbors": args.num_neighbors, "batch_size": args.batch_size}
    loader = session.make_loader(LoaderSpec(name="train", shuffle=True, split="train", **sizes))
    graph = {"metadata": data.metadata, "num_nodes": data.num_nodes, "target_type": target}
    ours = GraphSAGE(data.num_features, data.num_classes, args.hidden, layers, model=args.model, **graph)
    models = {"ours": ours.gnn}
    if target:
        models["stock"] = StockTyped(args.model, data, args.hidden, layers)
    else:
        models["stock"] = Stock(args.model, data.num_features, args.hidden, layers, data.num_classes)
    if whole := None if target else whole_graph(data, session):
        models["whole graph"] = gnn_class(args.model)(
            data.num_features, args.hidden, layers, data.num_classes, dropout=0.5
        )
    optimizers = {name: torch.optim.Adam(model.parameters(), lr=0.003) for name, model in models.items()}
    alone = Products(data.num_features, args.hidden, layers, data.num_classes) if whole else None
    while True:
        for name, model in models.items():
            if name == "whole graph":
                yield name, whole_step(model, optimizers[name], whole)
            else:
                yield name, epoch(model, optimizers[name], loader, target)
        if alone:
            yield "products", products(alone, loader)


def whole_graph(data: GLTDataModule, session: Session) -> Any:
    """All nodes and all edges as one batch."""
    seeds = torch.arange(data.num_nodes).numpy()
    spec = LoaderSpec(name="all", num_neighbors=[-1], batch_size=len(seeds), seeds=seeds)
    return next(iter(session.make_loader(spec))).clone()


def whole_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> float:
    began = time.process_time()
    optimizer.zero_grad(set_to_none=True)
    functional.cross_entropy(model(batch.x, batch.edge_index), batch.y).backward()
    optimizer.step()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--model", default="GraphSAGE")
    parser.add_argument("--num_neighbors", type=int, nargs="+", default=[15, 10])
    parser.add_argument("--batch_size", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--return_memory", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if not args.return_memory:
        keep_freed_memory()
    spent: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        partition = PartitionOptions(num_parts=1, dir=folder)
        data = GLTDataModule(args.dataset, root=folder, undirected=True, partition=partition)
        data.prepare_data()
        with Session(data.partition_dir) as session:
            for name, cpu_s in measure(args, data, session):
                spent.setdefault(name, []).append(cpu_s)
                if min(map(len, spent.values())) > args.rounds and len(set(map(len, spent.values()))) == 1:
                    break
    for name, seconds in spent.items():
        counted = sorted(seconds[1:])  # the first also loads code
        report(
            bench="epoch",
            data=args.dataset.rsplit("/", 1)[-1],
            system=name,
            model=args.model,
            keeps_memory=not args.return_memory,
            rounds=len(counted),
            cpu_s=counted[len(counted) // 2],
            least_s=counted[0],
            most_s=counted[-1],
        )


if __name__ == "__main__":
    main()
