"""Training in the workers of Ray Train: ranks as Ray numbers them, and checkpoints where Ray keeps them.

Ray starts the processes, puts them where there is room, and starts them again when one is lost; strategies and loaders are
those of every other run. Nothing here is imported unless a script or ``launch`` asks for it, and Ray only then.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from glt_lightning.base import ClusterOptions, OptionError, at_least
from glt_lightning.lightning.ray_jobs import RayJob, RayNode, ray_module

CHECKPOINT = "checkpoint.ckpt"  # the name that Ray's own callback for Lightning gives it


@dataclass(frozen=True, kw_only=True)
class RayWorker(RayNode):
    """A worker of Ray Train, or a trial of Ray Tune, as `ray_worker` yields it.

    Attributes:
        trainer_options: Options of Lightning's Trainer: the number of nodes and of ranks on each, and who numbers them.
        checkpoint: Path of the checkpoint to continue from, for ``fit``; None in a run that begins.
    """

    trainer_options: dict[str, Any]
    checkpoint: str | None


@contextmanager
def ray_worker(job: RayJob | None = None) -> Iterator[RayWorker]:
    """Tells a worker of Ray Train what it is, during a ``with`` block; the checkpoint is gone after it. A trial of Ray Tune
    gets the same; it is the only rank.

    job: what the workers of several nodes, and graph servers, share. None: the data module has certificates of its own.

    Raises `OptionError` without Ray Train, or if nodes have different numbers of workers.

    Example:
        >>> def train(config):
        ...     with ray_worker(config["job"]) as worker:
        ...         data = GLTDataModule("products", cluster=worker.cluster)
        ...         trainer = Trainer(strategy="glt_worker", callbacks=[ReportToRay()], **worker.trainer_options)
        ...         trainer.fit(model, data, ckpt_path=worker.checkpoint)
    """
    session = _session()
    host = ray_module("ray.util").get_node_ip_address()
    trial = session.__name__ == "ray.tune"
    number, count, options = (0, 1, {"devices": 1}) if trial else _ranks(session.get_context())
    with ExitStack() as closing:
        cluster = ClusterOptions(host=host if count > 1 else None)
        if job is not None and (count > 1 or job.servers):
            security = closing.enter_context(job.certified(host))
            cluster = ClusterOptions(host=host, servers=job.reach_servers(), security=security)
        saved, path = session.get_checkpoint(), None
        if saved is not None:
            path = str(Path(closing.enter_context(saved.as_directory()), CHECKPOINT))
        yield RayWorker(number=number, count=count, cluster=cluster, trainer_options=options, checkpoint=path)


def _ranks(context: Any) -> tuple[int, int, dict[str, Any]]:
    """The number of this node among all, and options of the Trainer."""
    world, local = context.get_world_size(), context.get_local_world_size()
    first = local if world == 1 else ray_module("ray.train.collective").broadcast_from_rank_zero(local)
    if first != local or world % local:
        raise OptionError(
            f"{world} workers of Ray, {local} of them on this node and {first} on that of rank 0: each node needs as many. Set "
            "ScalingConfig.num_workers to a multiple of the room on a node, and placement_strategy to STRICT_PACK or SPREAD."
        )
    environment = ray_module("ray.train.lightning").RayLightningEnvironment()
    options = {"devices": local, "num_nodes": world // local, "plugins": [environment]}
    return context.get_node_rank(), world // local, options


class ReportToRay(Callback):
    """Reports metrics, and a checkpoint from which a run goes on with the very next batch, to Ray Train or Ray Tune.

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
        session, self._reported = _session(), trainer.global_step
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        metrics |= {"epoch": trainer.current_epoch, "step": trainer.global_step}
        folder = Path(tempfile.mkdtemp(prefix="glt-ray-"))
        try:
            trainer.save_checkpoint(folder / CHECKPOINT, weights_only=False)  # the first rank writes
            checkpoint = session.Checkpoint.from_directory(str(folder)) if trainer.is_global_zero else None
            session.report(metrics, checkpoint=checkpoint)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _session() -> ModuleType:
    """Ray Train in one of its workers, Ray Tune in a trial. Raises `OptionError` elsewhere."""
    train = ray_module("ray.train")
    try:
        train.get_context()
    except (RuntimeError, DeprecationWarning):  # the latter in a trial
        tune = ray_module("ray.tune")
        if tune.get_context().get_trial_id() is None:
            raise OptionError("Ray: this process is no worker of Ray Train, and no trial of Ray Tune.") from None
        return tune
    return train
