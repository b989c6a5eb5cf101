"""A program that uses tensors of its own, alone or in a job, and gives the same values wherever it runs."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from glt_lightning import DistGraph, DistTensor, node_split


def work(graph: DistGraph, die: bool = False) -> dict[str, Any]:
    """What a program does with a graph, whatever the ranks and parts; the same on every rank."""
    nodes = graph.num_nodes()
    h = DistTensor((nodes, 3), torch.float32, "h", init=("normal", 0.0, 1.0), graph=graph)
    rows = node_split(graph.ndata["train_mask"])
    h[rows] = graph.user_ids(rows).float()[:, None].expand(-1, 3)
    counts = DistTensor((nodes,), torch.int64, "counts", graph=graph)
    counts.add_([0, 5, 5], 1)
    if die:
        if graph.rank == 1:
            with h.table._lock.held():
                os.kill(os.getpid(), 9)
        for _ in range(1000):  # its lock does not stay
            h[rows] = 1.0
    graph.barrier()
    by_id = graph.rows_of(torch.arange(nodes))
    pending = h.read_later(by_id), graph.ndata["x"].read_later(by_id)
    seeds = by_id[::17]
    edges = graph.sample_neighbors(seeds, 3, key=7)
    found = {
        "h": pending[0].result().double().sum(1).tolist(),
        "x": pending[1].result().double().sum(1).tolist(),
        "train": graph.ndata["train_mask"].count_nonzero(),
        "edges": sorted(zip(graph.user_ids(edges.src).tolist(), graph.user_ids(edges.dst).tolist(), strict=True)),
        "e_id": sorted(graph.user_ids(edges.edge_row, graph.edge_types[0]).tolist()),
    }
    assert counts[:6].tolist() == [graph.world_size, 0, 0, 0, 0, 2 * graph.world_size]
    graph.barrier()
    return json.loads(json.dumps(found))


class Busy(Callback):
    """Rank 1 reads rows of the other host, or adds to them, without end; rank 0, whose rows they are, is killed in the middle."""

    def __init__(self, how: str) -> None:
        self._how = how

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        graph: DistGraph = trainer.datamodule.dist_graph  # type: ignore[attr-defined]
        h = DistTensor((graph.num_nodes(), 64), torch.float32, "h", graph=graph)
        rows = torch.nonzero(torch.from_numpy(h.table.home_of(np.arange(len(h))) == 0))[:, 0]
        graph.barrier()
        if trainer.global_rank == 0:
            time.sleep(1.0)  # so that the other one is at it
            print(f"killed {os.getpid()}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        while len(rows):
            if self._how == "read":
                h[rows]
            else:
                h.add_(rows, torch.ones(len(rows), 64))


class Using(Callback):
    """Uses the graph when a fit begins."""

    def __init__(self, die: bool = False) -> None:
        self.found: dict[str, Any] = {}
        self._die = die

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        self.found = work(data.dist_graph, self._die)
        if trainer.is_global_zero:
            Path("found.json").write_text(json.dumps(self.found))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        assert data.dist_graph.tables["h"].num_rows == data.num_nodes
