"""`SamplingMonitor`: how fast batches come, where their rows come from, and how long training waits for them."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch.utils._pytree import tree_leaves
from tqdm import tqdm

from glt_lightning.lightning.callbacks.epoch_totals import EpochTotals
from glt_lightning.lightning.callbacks.thread_times import ThreadTimes, thread_times, times_since
from glt_lightning.loader import DistNeighborLoader

_SHOWN_EVERY_S = 0.5


class SamplingMonitor(Callback):
    """Logs totals of each training epoch over all ranks, as metrics ``glt/...`` (docs/reference/callbacks.md lists them) and as a
    line for people, which names what the epoch was bound by. Lightning's progress bar shows the seeds per second.

    Validation is not counted. Without a loader of ours nothing is logged. All ranks must have this callback, or none.

    Args:
        line: Whether there is a line.

    Example:
        >>> trainer = Trainer(callbacks=[SamplingMonitor(line=False)], max_epochs=1)
        >>> trainer.fit(model, datamodule)
        >>> float(trainer.callback_metrics["glt/local_share"])  # all rows are on this host
        1.0
    """

    def __init__(self, line: bool = True) -> None:
        self.line = line
        self.totals: EpochTotals | None = None  # of the latest epoch that ended, over all ranks
        self._elapsed_s, self._validation_s, self._since = 0.0, 0.0, 0.0
        self._before = EpochTotals()
        self._threads: ThreadTimes = {}
        self._shown = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(trainer)  # an epoch that is resumed in its middle does not start

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._lap()
        if trainer.progress_bar_callback is not None and self._since - self._shown >= _SHOWN_EVERY_S:
            self._shown = self._since
            self._show_rate(trainer, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._lap()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        now = time.perf_counter()
        self._validation_s += now - self._since
        self._since = now

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        totals = _over_ranks(trainer, self._mine(trainer))
        self.totals = totals if totals.ranks and totals.elapsed_s else None
        if self.totals is None:
            return
        # the same on all ranks by now; `sync_dist` is what Lightning asks for, and the largest of equal numbers is exact
        options: dict[str, Any] = {"on_step": False, "on_epoch": True, "batch_size": 1, "sync_dist": True}
        for name, value in totals.metrics().items():
            pl_module.log(f"glt/{name}", value, reduce_fx="max", prog_bar=name == "seeds_per_s", **options)
        if self.line:
            _say(f"glt: epoch {trainer.current_epoch}: {totals.line()}")

    def _show_rate(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Shows the rate of the epoch so far in the bar. Rank 0 draws it, and its rate stands for all: ranks train in step."""
        mine = self._mine(trainer)
        if mine.ranks:
            rate = trainer.world_size * mine.seeds / mine.elapsed_s
            pl_module.log(
                "glt/seeds_per_s", rate, prog_bar=True, logger=False, on_step=True, on_epoch=False, batch_size=1
            )

    def _begin(self, trainer: Trainer) -> None:
        self._elapsed_s, self._validation_s, self._since = 0.0, 0.0, time.perf_counter()
        self._before = _so_far(trainer)
        self._threads = thread_times()

    def _lap(self) -> None:
        now = time.perf_counter()
        self._elapsed_s += now - self._since
        self._since = now

    def _mine(self, trainer: Trainer) -> EpochTotals:
        """What this rank did in the epoch so far; nothing without a loader of ours."""
        totals = _so_far(trainer).since(self._before)
        if any(True for _ in _loaders(trainer)):
            totals.ranks, totals.elapsed_s, totals.validation_s = 1, self._elapsed_s, self._validation_s
            totals.core_s, totals.core_wait_s = times_since(self._threads)
        return totals


def _say(text: str) -> None:
    """A line in the log, not behind a progress bar."""
    with tqdm.external_write_mode(file=sys.stderr):
        rank_zero_info(fitted(text, shutil.get_terminal_size().columns) if sys.stderr.isatty() else text)


def fitted(text: str, columns: int) -> str:
    """Broken between words where a terminal would break it anywhere."""
    return textwrap.fill(text, columns, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _so_far(trainer: Trainer) -> EpochTotals:
    """Totals of the training loaders since they were made."""
    totals = EpochTotals()
    for loader in _loaders(trainer):
        totals.add(loader.stats())
    return totals


def _loaders(trainer: Trainer) -> Iterator[DistNeighborLoader]:
    yield from (leaf for leaf in tree_leaves(trainer.train_dataloader) if isinstance(leaf, DistNeighborLoader))


def _over_ranks(trainer: Trainer, mine: EpochTotals) -> EpochTotals:
    """The sum over ranks. A collective call, also for ranks that have nothing to add."""
    if trainer.world_size == 1:
        return mine
    numbers = torch.tensor(mine.to_list(), dtype=torch.float64, device=trainer.strategy.root_device)
    return EpochTotals.from_list(trainer.strategy.reduce(numbers, reduce_op="sum").tolist())
