"""One rank of a small training that stops at a given point, so that harm can be done there.

Its argument is an `Options` as JSON, its environment that of a launcher. In its working folder rank 0 writes ``began``
with the first batch, and ``at`` when it is at the point, where it waits for a file ``go``. Each rank writes the seeds of its
batches (``seeds0.jsonl``) and, after each epoch, the digest of its weights (``weights0.jsonl``).
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint

from glt_lightning import GLTDataModule, GraphSAGE, PredictionWriter
from glt_lightning.base import ServingOptions
from glt_lightning.workers import ServerPlan
from tests.lightning.tiny import SHAPE

_PATIENCE_S = 120.0  # with whoever says when to go on
_MID = (1, 3)  # epoch and batch of the point in mid-epoch


@dataclass(frozen=True, kw_only=True)
class Options:
    """strategy, cluster (a `ClusterOptions` as JSON), data (arguments of a `GLTDataModule`): the mode.

    point: where rank 0 waits, a key of `POINTS`; "" for nowhere.  raises: rank 1 raises an error there, when rank 0 goes on.
    limit: ``limit_train_batches``.  output: folder of the checkpoints, or of the predictions with the point ``predict``.
    """

    strategy: str
    cluster: dict[str, Any]
    data: dict[str, Any]
    point: str = ""
    raises: bool = False
    limit: int | None = None
    output: str = "output"

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Stop(Callback):
    """Waits at the point, once."""

    def __init__(self, options: Options) -> None:
        self._options, self._waited = options, False

    def _reach(self, trainer: Trainer, point: str) -> None:
        if self._waited or self._options.point != point:
            return
        self._waited = True
        if trainer.is_global_zero:
            Path("at").touch()
        if trainer.is_global_zero or self._options.raises:
            deadline = time.monotonic() + _PATIENCE_S
            while not Path("go").exists():
                assert time.monotonic() < deadline, "nobody says when to go on"
                time.sleep(0.01)
        if self._options.raises and trainer.global_rank == 1:
            raise ZeroDivisionError("of this cell")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._reach(trainer, "start")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx) == _MID:
            self._reach(trainer, "mid-epoch")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if args[-1] == trainer.num_training_batches - 1:
            self._reach(trainer, "train to val" if self._options.limit is None else "early stop")

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._reach(trainer, "checkpoint")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._reach(trainer, "shutdown")

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._reach(trainer, "predict")


class Notes(Callback):
    """Writes down what a rank saw, and what became of its weights."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._note(trainer, "train", batch)

    def on_validation_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, *args: Any) -> None:
        if not trainer.sanity_checking:
            self._note(trainer, "val", batch)

    def on_predict_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, *args: Any) -> None:
        self._note(trainer, "predict", batch)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            Path("began").touch()

    on_predict_start = on_sanity_check_start

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        digest = hashlib.sha256()
        for parameter in pl_module.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        self._write(trainer, "weights", digest.hexdigest())

    def _note(self, trainer: Trainer, stage: str, batch: Any) -> None:
        self._write(trainer, "seeds", [stage, trainer.current_epoch, batch.input_id.tolist()])

    def _write(self, trainer: Trainer, name: str, value: object) -> None:
        with Path(f"{name}{trainer.global_rank}.jsonl").open("a") as sink:
            sink.write(json.dumps(value) + "\n")


def main() -> None:
    options = Options(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    seed_everything(1)
    plan = ServerPlan(directory="", cluster=ServingOptions(), address="").to_json()
    cluster = ServerPlan.from_json(plan | {"cluster": options.cluster}).cluster
    data = GLTDataModule(num_neighbors=[5, 5], batch_size=2, cluster=cluster, **options.data)
    predicts = options.point == "predict"
    writer = PredictionWriter(f"{options.output}/pred") if predicts else ModelCheckpoint(options.output, save_top_k=-1)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=options.strategy,
        max_epochs=2,
        limit_train_batches=options.limit,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=not predicts,
        callbacks=[Notes(), Stop(options), writer],
    )
    model = GraphSAGE(**SHAPE, dropout=0.0)
    if predicts:
        trainer.predict(model, data, return_predictions=False)
    else:
        trainer.fit(model, data)


if __name__ == "__main__":
    main()
