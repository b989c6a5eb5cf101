"""`SamplingMonitor`: how fast batches come, and how long training waits for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils._pytree import tree_leaves

from glt_lightning.loader import DistNeighborLoader


class SamplingMonitor(Callback):
    """Logs totals of each training epoch: ``glt/batches_per_s``, ``glt/seeds_per_s``, ``glt/sampled_edges_per_s`` over all
    ranks, and ``glt/wait_share``, the share of the time of training that a rank waited for its next batch.

    Validation is not counted. Without a loader of ours nothing is logged.
    """

    def __init__(self) -> None:
        self._elapsed_s = 0.0
        self._since = 0.0
        self._before: dict[str, float] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(trainer)  # an epoch that is resumed in its middle does not start

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self._lap()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._lap()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._since = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        totals = _totals(trainer)
        if not totals or self._elapsed_s == 0:
            return
        per_s = {name: (total - self._before.get(name, 0)) / self._elapsed_s for name, total in totals.items()}
        options: dict[str, Any] = {"on_step": False, "on_epoch": True, "batch_size": 1, "sync_dist": True}
        pl_module.log("glt/wait_share", per_s.pop("wait_s"), reduce_fx="mean", **options)
        for name, value in per_s.items():
            pl_module.log(f"glt/{name}_per_s", value, reduce_fx="sum", **options)

    def _begin(self, trainer: Trainer) -> None:
        self._elapsed_s, self._since = 0.0, time.perf_counter()
        self._before = _totals(trainer)

    def _lap(self) -> None:
        now = time.perf_counter()
        self._elapsed_s += now - self._since
        self._since = now


def _totals(trainer: Trainer) -> dict[str, float]:
    """Sums over the training loaders; empty if none is ours."""
    stats = [loader.stats() for loader in _loaders(trainer)]
    names = {"batches": "batches", "seeds": "seeds", "sampled_edges": "edges", "wait_s": "wait_s"}
    return {name: sum(getattr(s, field) for s in stats) for name, field in names.items()} if stats else {}


def _loaders(trainer: Trainer) -> Iterator[DistNeighborLoader]:
    yield from (leaf for leaf in tree_leaves(trainer.train_dataloader) if isinstance(leaf, DistNeighborLoader))
