"""Tensors of one's own in a job: the same values under every strategy, as in a script without a Trainer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from glt_lightning import DistGraph, DistTensor, GLTDataModule, node_split
from glt_lightning.errors import SamplerError
from tests.helpers import run_script
from tests.lightning.tiny import NODES

WITH_TESTS = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}

# Every rank writes to its rows, in a run or alone; rank 0 prints the values by user id.
SCRIPT = """
import json, os, signal, sys
import torch
from lightning.pytorch import Trainer, seed_everything
from glt_lightning import DistGraph, GLTDataModule
from tests.lightning.test_dist_graph import Using
from tests.lightning.tiny import Noting

options = json.loads(sys.argv[1])
torch.set_num_threads(1)

def main():
    seed_everything(1)
    using = Using(options.get("die", False))
    data = GLTDataModule(num_neighbors=[5, 5], batch_size=10, **options["data"])
    trainer = Trainer(accelerator="cpu", devices=2, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[using], strategy=options["strategy"])
    trainer.fit(Noting(dropout=0.0), data)
    if trainer.is_global_zero:
        print("RESULT", json.dumps(using.found), flush=True)

if __name__ == "__main__":
    main()
"""


def work(graph: DistGraph, die: bool = False) -> dict[str, Any]:
    """What a program does with a graph, whatever the ranks and parts; the same on every rank."""
    h = DistTensor((NODES, 3), torch.float32, "h", init=("normal", 0.0, 1.0), graph=graph)
    rows = node_split(graph.ndata["train_mask"])
    h[rows] = graph.user_ids(rows).float()[:, None].expand(-1, 3)
    counts = DistTensor((NODES,), torch.int64, "counts", graph=graph)
    counts.add_([0, 5, 5], 1)
    if die:
        if graph.rank == 1:
            with h.table._lock.held():
                os.kill(os.getpid(), 9)
        for _ in range(1000):  # its lock does not stay
            h[rows] = 1.0
    graph.barrier()
    by_id = graph.rows_of(torch.arange(NODES))
    seeds = by_id[::17]
    edges = graph.sample_neighbors(seeds, 3, key=7)
    found = {
        "h": h[by_id].double().sum(1).tolist(),
        "x": graph.ndata["x"][by_id].double().sum(1).tolist(),
        "train": graph.ndata["train_mask"].count_nonzero(),
        "edges": sorted(zip(graph.user_ids(edges.src).tolist(), graph.user_ids(edges.dst).tolist(), strict=True)),
        "e_id": sorted(graph.user_ids(edges.edge_row, graph.edge_types[0]).tolist()),
    }
    assert counts[:6].tolist() == [graph.world_size, 0, 0, 0, 0, 2 * graph.world_size]
    graph.barrier()
    return json.loads(json.dumps(found))


class Using(Callback):
    """Uses the graph when a fit begins."""

    def __init__(self, die: bool = False) -> None:
        self.found: dict[str, Any] = {}
        self._die = die

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        self.found = work(data.dist_graph, self._die)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        assert data.dist_graph.tables["h"].num_rows == NODES


def alone(data: GLTDataModule) -> dict[str, Any]:
    data.prepare_data()
    with DistGraph(data.partition_dir, seed=5) as graph:
        return work(graph)


def test_under_auto_it_is_as_alone(
    make_data: Callable[..., GLTDataModule], make_model: Any, make_trainer: Callable[..., Trainer]
) -> None:
    data, using = make_data(partition={"num_parts": 2}, sampling={"seed": 5}), Using()
    expected = alone(data)
    make_trainer(max_epochs=1, callbacks=[using]).fit(make_model(), data)
    assert using.found == expected
    with pytest.raises(SamplerError, match="graph: no graph is open here; ask the data module for dist_graph"):
        _ = data._standalone.graph


CASES = {
    "ddp": ("ddp", {}),
    "worker": ("glt_worker", {}),
    "worker, parts by rank": ("glt_worker", {"placement": "rank"}),
    "servers": ("glt_server_client", {}),
}


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c[-1] == "k" else pytest.mark.slow) for c in CASES])
def test_on_two_ranks_it_is_as_alone(
    case: str, make_data: Callable[..., GLTDataModule], graph_npz: Path, tmp_path: Path
) -> None:
    strategy, cluster = CASES[case]
    same = {"partition": {"num_parts": 2}, "sampling": {"seed": 5}}
    expected = alone(make_data(**same))
    data = {"dataset": str(graph_npz), "root": str(tmp_path / "root"), "cluster": cluster, **same}
    output = run_script(SCRIPT, json.dumps({"data": data, "strategy": strategy}), env=WITH_TESTS).stdout
    (line,) = [line for line in output.splitlines() if line.startswith("RESULT ")]
    assert json.loads(line.removeprefix("RESULT ")) == expected


@pytest.mark.slow
def test_a_rank_that_is_killed_while_it_writes_is_named(graph_npz: Path, tmp_path: Path) -> None:
    data = {"dataset": str(graph_npz), "root": str(tmp_path / "root")}
    given = json.dumps({"data": data, "strategy": "glt_worker", "die": True})
    ended = run_script(SCRIPT, given, env=WITH_TESTS, check=False, timeout=90)
    assert ended.returncode != 0
    assert re.search(r"error: rank 1 \(process \d+\) of this host died; rank 0 cannot go on", ended.stdout)
    assert "has been writing to it" not in ended.stdout  # the kernel has freed its lock
