"""From the start of a process to its first optimizer step: ours under a Trainer, and a plain full-batch script of PyG.

    python benchmarks/first_step.py GRAPH.npz PARTITION [--system ours|pyg] [--workers 0] [--hidden 256]

GRAPH.npz: x, edge_index and y; PARTITION: one of it, made if it is not there (run once before). One thread, GraphSAGE of 3
layers, [15, 10, 5] x 1024 for ours. CPU and wall seconds up to the end of each stage, samplers included.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from measure import age_s, cpu_s, report

_found: dict[str, float] = {}


def stage(name: str) -> None:
    _found[f"{name}_wall_s"], _found[f"{name}_cpu_s"] = age_s(os.getpid()), cpu_s()


def pyg(args: argparse.Namespace) -> None:
    import numpy as np
    import torch
    from torch_geometric.nn import GraphSAGE

    stage("imports")
    torch.set_num_threads(1)
    arrays = np.load(args.graph)
    x, y, edge_index = (torch.from_numpy(arrays[name]) for name in ("x", "y", "edge_index"))
    model = GraphSAGE(x.size(1), args.hidden, 3, int(y.max()) + 1, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters())
    stage("before_the_step")
    torch.nn.functional.cross_entropy(model(x, edge_index), y).backward()
    optimizer.step()
    stage("step")


def ours(args: argparse.Namespace) -> None:
    import torch
    from lightning.pytorch import Callback, Trainer

    from glt_lightning import GLTDataModule, GraphSAGE

    class Stages(Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            stage("before_the_step")  # its batch is there

        def on_train_batch_end(self, *_: Any) -> None:
            stage("step")

    stage("imports")
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    partition, sampling = {"num_parts": 1, "dir": os.path.abspath(args.partition)}, {"num_workers": args.workers}
    data = GLTDataModule(args.graph, batch_size=1024, partition=partition, sampling=sampling)
    model = GraphSAGE(data.num_features, data.num_classes, hidden_channels=args.hidden, num_layers=3)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    steps = {"max_steps": 1, "limit_val_batches": 0}
    Trainer(accelerator="cpu", devices=1, callbacks=[Stages()], **quiet, **steps).fit(model, data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("partition")
    parser.add_argument("--system", choices=("ours", "pyg"), default="ours")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--hidden", type=int, default=256)
    args = parser.parse_args()
    (ours if args.system == "ours" else pyg)(args)
    report(bench="first_step", system=args.system, workers=args.workers, **_found)


if __name__ == "__main__":
    main()
