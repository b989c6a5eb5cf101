"""Training in the workers of Ray Train: ranks as Ray numbers them, and checkpoints where Ray keeps them.

Ray starts the processes, puts them where there is room, and starts them again when one is lost; strategies and loaders are
those of every other run. Nothing here is imported unless a script or ``launch`` asks for it, and Ray only then.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from glt_lightning.base import OptionError, at_least

CHECKPOINT = "checkpoint.ckpt"  # the name that Ray's own callback for Lightning gives it


@dataclass(frozen=True)
class RayWorker:
    """A worker of Ray Train, as `ray_worker` yields it.

    Attributes:
        trainer_options: Options of Lightning's Trainer: the number of nodes and of ranks on each, and who numbers them.
        checkpoint: Path of the checkpoint to continue from, for ``fit``; None in a run that begins.
        host: Address of this node for others.
    """

    trainer_options: dict[str, Any]
    checkpoint: str | None
    host: str


@contextmanager
def ray_worker() -> Iterator[RayWorker]:
    """Tells a worker of Ray Train what it is, during a ``with`` block; the checkpoint is gone after it.

    Raises `OptionError` without Ray Train, or if nodes have different numbers of workers.

    Example:
        >>> def train(config):
        ...     with ray_worker() as worker:
        ...         trainer = Trainer(strategy="glt_worker", callbacks=[ReportToRay()], **worker.trainer_options)
        ...         trainer.fit(model, data, ckpt_path=worker.checkpoint)
    """
    train, environments = _module("ray.train"), _module("ray.train.lightning")
    context = train.get_context()
    world, local = context.get_world_size(), context.get_local_world_size()
    if world % local:
        raise OptionError(
            f"{world} workers of Ray, {local} of them on one node: each node needs as many. Set ScalingConfig.num_workers to a "
            "multiple of what a node has room for, and placement_strategy to STRICT_PACK or SPREAD."
        )
    options = {"devices": local, "num_nodes": world // local, "plugins": [environments.RayLightningEnvironment()]}
    host, saved = _module("ray.util").get_node_ip_address(), train.get_checkpoint()
    if saved is None:
        yield RayWorker(options, None, host)
        return
    with saved.as_directory() as folder:
        yield RayWorker(options, str(Path(folder, CHECKPOINT)), host)


class ReportToRay(Callback):
    """Reports metrics, and a checkpoint from which a run goes on with the very next batch, to Ray Train.

    At the end of each epoch, and where wanted within it: after a lost worker or node no more than these steps are done again.
    Ray keeps checkpoints in ``RunConfig.storage_path``.

    Args:
        every_n_steps: Steps between checkpoints within an epoch. ``None``: only at its end.

    Example:
        >>> ReportToRay(every_n_steps=500).every_n_steps
        500
    """

    def __init__(self, every_n_steps: int | None = None) -> None:
        if every_n_steps is not None:
            at_least("every_n_steps", every_n_steps, 1)
        self.every_n_steps = every_n_steps
        self._reported = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._reported = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.every_n_steps is None or trainer.is_last_batch:  # then the epoch ends
            return
        if trainer.global_step - self._reported >= self.every_n_steps:
            self._report(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._report(trainer)

    def _report(self, trainer: Trainer) -> None:
        """All ranks call this: saving is a collective operation, and so is Ray's report."""
        train, self._reported = _module("ray.train"), trainer.global_step
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        metrics |= {"epoch": trainer.current_epoch, "step": trainer.global_step}
        folder = Path(tempfile.mkdtemp(prefix="glt-ray-"))
        try:
            trainer.save_checkpoint(folder / CHECKPOINT, weights_only=False)  # the first rank writes
            checkpoint = train.Checkpoint.from_directory(str(folder)) if trainer.is_global_zero else None
            train.report(metrics, checkpoint=checkpoint)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise OptionError(f"Ray: {error}. Install it: pip install 'glt-lightning[ray-train]'.") from None
