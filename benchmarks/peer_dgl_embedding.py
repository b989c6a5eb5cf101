"""DGL's DistEmbedding and its sparse optimizers in one process and thread, in DGL's standalone mode: lookups and whole steps, in
M rows per CPU second, with the batches and the gradient of `embedding.py`.

    PYTHON_OF_DGL benchmarks/peer_dgl_embedding.py [--rows 300000] [--width 64] [--batch 100000] [--rounds 5]

The standalone mode has neither servers nor messages: tensors are those of the process, as the rows of one's own host are with
shared memory.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import torch
from dgl.distributed.optim.pytorch.sparse_optim import SparseAdagrad, SparseAdam
from measure import report


def standalone(rows: int, folder: Path) -> dgl.distributed.DistGraph:
    """A graph with as many nodes, and hardly an edge, in one part."""
    graph = dgl.graph(([0], [1]), num_nodes=rows)
    dgl.distributed.partition_graph(graph, "bench", 1, str(folder), part_method="random")
    os.environ["DGL_DIST_MODE"] = "standalone"
    dgl.distributed.initialize("unused")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    return dgl.distributed.DistGraph("bench", part_config=str(folder / "bench.json"))


def uniform(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.rand(shape, dtype=dtype)


def stepping(table: Any, optimizer: Any, gradient: torch.Tensor) -> Callable[[torch.Tensor], object]:
    def step(rows: torch.Tensor) -> None:
        table(rows).backward(gradient)
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("rows", 300_000), ("width", 64), ("batch", 100_000), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dgl.utils.set_num_threads(1)
    rng, gradient = np.random.default_rng(0), torch.randn(args.batch, args.width)
    with tempfile.TemporaryDirectory() as folder:
        graph = standalone(args.rows, Path(folder))
        policy = graph.get_node_partition_policy("_N")
        ways: dict[str, Callable[[torch.Tensor], object]] = {}
        for name, kind in (("adagrad", SparseAdagrad), ("adam", SparseAdam)):
            table = dgl.distributed.DistEmbedding(args.rows, args.width, name, uniform, policy)
            ways.setdefault("lookup", table)
            ways[name] = stepping(table, kind([table], lr=0.01), gradient)
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(args.rounds + 1):
            rows = torch.from_numpy(rng.choice(args.rows, args.batch, replace=False))
            for name, run in ways.items():
                begin = time.process_time()
                with torch.set_grad_enabled(name != "lookup"):
                    run(rows)
                if number:  # the first touches new memory
                    rates[name].append(args.batch / (time.process_time() - begin) / 1e6)
        for name, found in rates.items():
            report(way=f"{name}, DGL {dgl.__version__}", m_rows_per_cpu_s=float(np.median(found)))


if __name__ == "__main__":
    main()
