"""Two ranks train rows together: as one dense embedding under DDP, under every strategy, for any number of parts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import run_script
from tests.helpers.partitions import small_graph

ENV = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
}

# All cases in one pair of processes: a pair takes longer to start than to train.
SCRIPT = """
import json, sys
from pathlib import Path
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from tests.tensors.twins import Twin, data_of, digest, fit

torch.set_num_threads(1)

class Overflowing(Twin):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if batch_idx == 1 and self.current_epoch == 0 and self.global_rank == 1:
            loss = loss + self.look_up(batch).sum() * float("inf")
        return loss

def scaler():
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))

def main():
    graph, cases, ranks, found = Path("graph.pt"), json.loads(sys.argv[1]), int(sys.argv[2]), {}
    for name, strategy, parts, module, options in cases:
        kind = Overflowing if name.endswith("overflow") else Twin
        twin = kind(**module)
        if name.endswith("overflow"):
            options = options | {"plugins": scaler()}
        data = data_of(graph, Path("root"), parts, batch_size=8)
        if (then := options.pop("then", None)) is not None:  # stops, and goes on with other parts and another strategy
            trainer = fit(kind(**module), data, devices=ranks, strategy=strategy, **options | {"max_epochs": 1})
            trainer.save_checkpoint("stopped.ckpt")
            strategy, options = then[0], options | {"ckpt_path": "stopped.ckpt"}
            data = data_of(graph, Path("root"), then[1], batch_size=8)
        trainer = fit(twin, data, devices=ranks, strategy=strategy, **options)
        mine = digest(twin.table())
        everyone = trainer.strategy.broadcast(mine)
        assert everyone == mine, name  # all ranks read the same rows
        states = {} if twin.kind == "dense" else {k: digest(v) for k, v in twin.state().items()}
        found[name] = {"table": mine, "sum": float(twin.table().astype("f8").sum()), "seen": twin.steps, **states}
        if trainer.is_global_zero:
            print("DONE", name, flush=True)
    if trainer.is_global_zero:
        print("RESULT", json.dumps(found), flush=True)

if __name__ == "__main__":
    main()
"""


def run(cwd: Path, cases: list[Any], ranks: int = 2) -> dict[str, Any]:
    torch.save(small_graph(), cwd / "graph.pt")
    output = run_script(SCRIPT, json.dumps(cases), str(ranks), cwd=cwd, env=ENV, timeout=300).stdout
    (line,) = [line for line in output.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


DENSE = {"kind": "dense"}
SPARSE: dict[str, Any] = {"kind": "sparse"}


def test_two_ranks(tmp_path):
    real = {"real": True, "rule": "adam"}
    found = run(
        tmp_path,
        [
            ["dense", "ddp", 1, DENSE, {}],
            ["ddp", "ddp", 1, SPARSE, {}],
            ["worker 1", "glt_worker", 1, SPARSE, {}],
            ["worker 4", "glt_worker", 4, SPARSE, {}],
            ["server_client", "glt_server_client", 2, SPARSE, {}],
            ["dense idle", "ddp", 1, DENSE | {"idle": 1}, {}],
            ["idle", "glt_worker", 1, SPARSE | {"idle": 1}, {}],
            ["dense accumulated", "ddp", 1, DENSE, {"accumulate_grad_batches": 3}],
            ["accumulated", "ddp", 2, SPARSE, {"accumulate_grad_batches": 3}],
            ["dense overflow", "ddp", 1, DENSE, {}],
            ["overflow", "glt_worker", 1, SPARSE, {}],
            ["clipped 1", "glt_worker", 1, SPARSE | real, {"gradient_clip_val": 0.3}],
            ["clipped 4", "ddp", 4, SPARSE | real, {"gradient_clip_val": 0.3}],
            ["resumed", "glt_worker", 1, SPARSE | real, {"gradient_clip_val": 0.3, "then": ["ddp", 3]}],
            ["bare", "glt_worker", 2, SPARSE | {"bare": True}, {}],
            ["dense clipped", "ddp", 1, DENSE | {"real": True}, {"gradient_clip_val": 0.3}],
            ["sgd clipped", "ddp", 1, SPARSE | {"real": True}, {"gradient_clip_val": 0.3}],
        ],
    )
    for name in ("ddp", "worker 1", "worker 4", "server_client", "bare"):
        assert found[name] == found["dense"], name
    for name in ("idle", "accumulated", "overflow"):
        assert found[name] == found[f"dense {name}"], name
        assert found[name]["table"] != found["dense"]["table"]
    assert found["clipped 1"] == found["clipped 4"]
    assert found["resumed"].pop("seen") == found["clipped 1"].pop("seen") // 2
    assert found["resumed"] == found["clipped 1"]
    assert found["sgd clipped"]["sum"] == pytest.approx(found["dense clipped"]["sum"], rel=1e-6)
