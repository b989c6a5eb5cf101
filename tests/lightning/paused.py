"""Training of two ranks, in processes of their own, whose first rank can wait in mid-epoch while a test looks on."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from glt_lightning import ClusterOptions
from tests.helpers import Run, started
from tests.lightning.test_two_ranks import WITH_TESTS

LIMIT_S = 120.0
STEPS, STOP = 15, 7  # of a rank; where rank 0 waits

# Options: strategy, cluster, data, stops (rank 0 waits before step STOP until a file ``go`` is there), resume (checkpoint).
SCRIPT = f"""
import json, os, sys, time
from pathlib import Path
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from glt_lightning import ClusterOptions, GLTDataModule
from glt_lightning.base import ServingOptions
from glt_lightning.workers import ServerPlan
from tests.lightning.tiny import Noting

options = json.loads(sys.argv[1])
torch.set_num_threads(1)

class Pause(Callback):
    def on_train_start(self, trainer, module):
        Path(f"pid{{trainer.global_rank}}").write_text(str(os.getpid()))

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if options["stops"] and trainer.global_step == {STOP} and trainer.is_global_zero:
            Path("at").touch()
            deadline = time.monotonic() + 90
            while not Path("go").exists():
                assert time.monotonic() < deadline, "the test does not go on"
                time.sleep(0.01)

def main():
    seed_everything(1)
    plan = ServerPlan(directory="", cluster=ServingOptions(), address="").to_json()
    cluster = ServerPlan.from_json(plan | {{"cluster": options["cluster"]}}).cluster
    data = GLTDataModule(num_neighbors=[5, 5], batch_size=10, cluster=cluster, **options["data"])
    model = Noting(dropout=0.0)
    keep = ModelCheckpoint(dirpath="ckpt", filename="{{step}}", every_n_train_steps=3, save_top_k=-1)
    trainer = Trainer(accelerator="cpu", devices=2, strategy=options["strategy"], max_epochs=3, logger=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[keep, Pause()])
    trainer.fit(model, data, ckpt_path=options["resume"])
    result = {{"losses": model.losses, "weights": [p.flatten().tolist() for p in model.parameters()]}}
    Path(f"result{{trainer.global_rank}}.json").write_text(json.dumps(result))

if __name__ == "__main__":
    main()
"""


@contextlib.contextmanager
def training(
    folder: Path,
    strategy: str,
    cluster: ClusterOptions,
    data: dict[str, Any],
    *,
    stops: bool = False,
    resume: str | None = None,
) -> Iterator[Run]:
    """A run of the script in ``folder``, which keeps its checkpoints."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    options = {"strategy": strategy, "cluster": asdict(cluster), "data": data, "stops": stops, "resume": resume}
    with started([sys.executable, script, json.dumps(options)], env=WITH_TESTS, cwd=folder) as run:
        yield run


def results(run: Run, folder: Path) -> list[dict[str, Any]]:
    """Losses and weights of the ranks, once the training has ended well."""
    assert run.wait(LIMIT_S) == 0, run.output
    return [json.loads((folder / f"result{rank}.json").read_text()) for rank in range(2)]


def wait_for(path: Path, run: Run) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not path.exists():
        assert run.popen.poll() is None, run.output
        assert time.monotonic() < deadline, run.output
        time.sleep(0.02)
