"""`DistEmbedding` beside `torch.nn.Embedding(sparse=True)`, DGL's DistEmbedding and the limit of memory: lookups, and whole steps
(lookup, backward pass, optimizer), in M rows per CPU second of one process and thread.

    python benchmarks/embedding.py [--rows 1000000] [--width 64] [--batch 200000] [--rounds 7] [--dgl PYTHON_OF_DGL]

Rows of a batch are distinct, as nodes of a batch are, and uniform. The gradient is given, so that no loss is measured. Ours and
those of torch take turns; the limit (`row_bound.c`) and DGL (`peer_dgl_embedding.py`) run after them. torch has no sparse Adagrad
of rows and no row-wise one; `torch.optim.Adagrad` takes sparse gradients.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import report
from torch import nn
from torch_geometric.data import Data

from glt_lightning import DistEmbedding, DistGraph, PartitionOptions, SparseAdagrad, SparseAdam, SparseSGD
from glt_lightning.partition import open_source, partition_graph

PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sgd": (SparseSGD, torch.optim.SGD),
    "adagrad": (SparseAdagrad, torch.optim.Adagrad),
    "adam": (lambda tables, lr: SparseAdam(tables, lr=lr, correction="global"), torch.optim.SparseAdam),
}
ALONE = {
    "adam, by row": lambda tables: SparseAdam(tables, lr=0.01),
    "adagrad, row-wise": lambda tables: SparseAdagrad(tables, lr=0.01, rowwise=True),
}


def graph_of(rows: int, folder: Path) -> DistGraph:
    """A graph with as many nodes, and hardly an edge."""
    data = Data(num_nodes=rows, edge_index=torch.tensor([[0], [1]]))
    partition_graph(
        open_source(data, str(folder)), folder / "parts", PartitionOptions(), undirected=None, normalize="none"
    )
    return DistGraph(folder / "parts")


def made(graph: DistGraph, width: int) -> DistEmbedding:
    embedding = DistEmbedding(width)
    embedding.attach(graph)
    return embedding


def stepping(table: Any, optimizer: Any, gradient: torch.Tensor) -> Callable[[torch.Tensor], object]:
    def step(rows: torch.Tensor) -> None:
        optimizer.zero_grad()
        table(rows).backward(gradient)
        optimizer.step()

    return step


def ways_of(graph: DistGraph, args: argparse.Namespace) -> dict[str, tuple[str, Callable[[torch.Tensor], object]]]:
    """Name -> (what it is compared with, or nothing; what is done with the rows of a batch)."""
    gradient = torch.randn(args.batch, args.width)
    rows, dense = made(graph, args.width), nn.Embedding(args.rows, args.width, sparse=True)
    ways: dict[str, tuple[str, Callable[[torch.Tensor], object]]] = {"lookup, torch": ("", dense)}
    ways["lookup"] = ("lookup, torch", rows)
    for name, (ours, theirs) in PAIRS.items():
        dense = nn.Embedding(args.rows, args.width, sparse=True)
        table = made(graph, args.width)
        ways[f"{name}, torch"] = ("", stepping(dense, theirs(dense.parameters(), lr=0.01), gradient))
        ways[name] = (f"{name}, torch", stepping(table, ours([table], lr=0.01), gradient))
    for name, make in ALONE.items():
        table = made(graph, args.width)
        ways[name] = (f"{name.split(',')[0]}, torch", stepping(table, make([table]), gradient))
    return ways


def others(args: argparse.Namespace, folder: Path) -> None:
    """The limit of memory, and DGL."""
    here = Path(__file__).parent
    bound = folder / "row_bound"
    subprocess.run(["cc", "-O3", "-march=native", here / "row_bound.c", "-o", bound], check=True)
    commands = [[bound, args.rows, args.width, args.batch, args.rounds]]
    if args.dgl:
        sizes = [f"--{name}={getattr(args, name)}" for name in ("rows", "width", "batch", "rounds")]
        commands.append([args.dgl, here / "peer_dgl_embedding.py", *sizes])
    for command in commands:
        done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
        print(*(line for line in done.stdout.splitlines() if line.startswith("{")), sep="\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("rows", 1_000_000), ("width", 64), ("batch", 200_000), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dgl", help="Python that imports DGL")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder, graph_of(args.rows, Path(folder)) as graph:
        ways = ways_of(graph, args)
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(args.rounds + 1):
            rows = torch.from_numpy(rng.choice(args.rows, args.batch, replace=False))
            for name, (_, run) in ways.items():
                begin = time.process_time()
                if name.startswith("lookup"):
                    with torch.no_grad():
                        run(rows)
                else:
                    run(rows)
                if number:  # the first touches new memory
                    rates[name].append(args.batch / (time.process_time() - begin) / 1e6)
        for name, (other, _) in ways.items():
            beside = {"of_torch": float(np.median(np.divide(rates[name], rates[other])))} if other else {}
            report(way=name, m_rows_per_cpu_s=float(np.median(rates[name])), **beside)
        others(args, Path(folder))


if __name__ == "__main__":
    main()
