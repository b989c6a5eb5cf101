"""`SeedProgressBar`: Lightning's progress bar, with a rate that means one thing."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
from torch.utils._pytree import tree_leaves

from glt_lightning.loader import DistNeighborLoader
from glt_lightning.page import numbers

# The first that fits the width of the terminal is shown; where none does, metrics are left out from the end.
_LAYOUTS = (
    "{desc}: {percentage:3.0f}%|{bar}| {done}/{whole}{unit} [{elapsed}<{remaining}, {speed}{unit}/s{postfix}]",
    "{desc}: {percentage:3.0f}% of {whole}{unit}, {remaining} left, {speed}{unit}/s{postfix}",
    "{desc}: {percentage:3.0f}%, {remaining} left, {speed}{unit}/s{postfix}",
    "{desc}: {percentage:3.0f}%, {speed}{unit}/s{postfix}",
)
_ENDLESS = "{desc}: {done}{unit} [{elapsed}, {speed}{unit}/s{postfix}]"
_LEAST_BAR = 10  # columns; a shorter bar says less than its percentage
_FRAMES_S = 0.1
_LOG_FRAMES_S = 30.0  # in a file or a pipe, where every frame stays

Count = Callable[[int], int]


class _Bar(Tqdm):
    """A bar over one phase, which may be begun again. Its time ends with what was counted last, so that work between
    phases is in no rate."""

    start_t = _until = _left_out = 0.0
    _count: Count | None = None
    _begun = False
    _written = ""
    batches: int | None = None

    def begin(self, title: str, count: Count | None, batches: int | None, done: int) -> None:
        """count: seeds of so many batches; None counts batches.  batches: of the phase, None where it has no end.
        done: batches of an earlier process."""
        if self.disable:
            return
        self._count, self.batches = count, batches
        self.desc, self.unit = title, " batches" if count is None else " seeds"
        self.total = None if batches is None else self._counted(batches)
        self.n = self.initial = self.last_print_n = self._counted(done)
        self._until = self.start_t = self.last_print_t = self._time()
        self._left_out, self._begun = 0.0, True
        if self.mininterval < _LOG_FRAMES_S:
            self.refresh()

    def advance(self, batches: int, metrics: dict[str, Any]) -> None:
        """batches: so many are done."""
        if self.disable:
            return
        self._until = self._time()
        self.set_postfix(metrics, refresh=False)
        self.update(self._counted(batches) - self.n)

    def _counted(self, batches: int) -> int:
        return batches if self._count is None else self._count(batches)

    def leave_out(self, seconds: float) -> None:
        """Takes time out of the rate that was not of this phase."""
        if not self.disable:
            self._left_out += seconds
            self._until += seconds

    @property
    def format_dict(self) -> dict[str, Any]:
        known: dict[str, Any] = super().format_dict
        if not self._begun:
            return known
        elapsed, new = self._until - self.start_t - self._left_out, self.n - self.initial
        known |= {"elapsed": elapsed, "rate": new / elapsed if new and elapsed > 0 else None}
        known |= {"done": f"{self.n:,}", "whole": f"{self.total or 0:,}", "speed": _speed(known["rate"])}
        return known | self._layout(known)

    def display(self, msg: str | None = None, pos: int | None = None) -> Any:
        """Nothing before it is known what is counted. A frame in a file is a line of its own."""
        if not self._begun:
            return True
        if _live():
            return super().display(msg, pos)
        if msg is None and (text := str(self)) != self._written:
            self._written = text
            self.fp.write(f"{text}\n")
        return True

    def clear(self, *args: Any, **kwargs: Any) -> None:
        """Makes room for a line of the log; in a file there is nothing in its way."""
        if _live():
            super().clear(*args, **kwargs)

    def close(self) -> None:
        if not self.disable and not _live():
            self.display()
            self.sp = None  # or tqdm ends a line that has ended
        super().close()

    def _layout(self, known: dict[str, Any]) -> dict[str, Any]:
        if not known["total"]:
            return {"bar_format": _ENDLESS}
        columns = known["ncols"] or math.inf
        for layout in _LAYOUTS:
            text = self.format_meter(**known | {"ncols": None, "bar_format": layout.replace("{bar}", " " * _LEAST_BAR)})
            if len(text) <= columns:
                return {"bar_format": layout}
        metrics = (known["postfix"] or "").split(", ")
        while metrics and len(text) > columns:
            text = text.removesuffix(f", {metrics.pop()}")
        return {"bar_format": _LAYOUTS[-1], "postfix": ", ".join(metrics)}


class _RoomForLines(logging.Filter):
    """Takes bars off the line on which a log is about to write, such as the reason for which `EarlyStopping` ends a fit."""

    def __init__(self) -> None:
        super().__init__()
        self._handlers: list[logging.Handler] = []

    def open(self) -> None:
        self.close()
        logs = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric", "glt_lightning", None)]
        self._handlers = [handler for log in logs for handler in log.handlers]
        for handler in self._handlers:
            handler.addFilter(self)

    def close(self) -> None:
        for handler in self._handlers:
            handler.removeFilter(self)
        self._handlers = []

    def filter(self, record: logging.LogRecord) -> bool:
        if _live():
            for bar in list(getattr(_Bar, "_instances", ())):
                bar.clear()
        return True


class SeedProgressBar(TQDMProgressBar):
    """One bar per phase, which counts the seeds of all ranks.

    Its rate is the mean of the phase so far: seeds of all ranks in a second, waiting for batches included, validation
    within a training epoch excluded; at the end of an epoch it is `SamplingMonitor`'s ``glt/seeds_per_s``. With loaders of
    other strategies it counts this rank's batches. The line is made to fit the terminal. Without a terminal, a frame is
    written every 30 s and at the end of each phase.

    The arguments are those of Lightning's `TQDMProgressBar`.

    Example:
        >>> trainer = Trainer(callbacks=[SeedProgressBar(refresh_rate=10)], enable_progress_bar=True)
        >>> trainer.progress_bar_callback.refresh_rate
        10
    """

    def __init__(self, refresh_rate: int = 1, process_position: int = 0, leave: bool = False) -> None:
        super().__init__(refresh_rate, process_position, leave)
        self._validation_began = 0.0
        self._room = _RoomForLines()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self._room.open()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._room.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._room.close()

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> Any:
        """Without Lightning's number of the run's folder, which is no metric."""
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        return metrics

    # Lightning makes a bar for each phase

    def init_sanity_tqdm(self) -> _Bar:
        return self._bar(self.sanity_check_description, leave=False, hidden=not _live())

    def init_train_tqdm(self) -> _Bar:
        return self._bar(self.train_description)

    def init_validation_tqdm(self) -> _Bar:
        below = self.trainer.state.fn != "validate"  # the bar of the training epoch
        return self._bar(self.validation_description, int(below), leave=not below, hidden=below and not _live())

    def init_test_tqdm(self) -> _Bar:
        return self._bar(self.test_description)

    def init_predict_tqdm(self) -> _Bar:
        return self._bar(self.predict_description)

    def _bar(self, title: str, line: int = 0, leave: bool = True, hidden: bool = False) -> _Bar:
        return _Bar(
            desc=title,
            position=2 * self.process_position + line,
            disable=self.is_disabled or hidden,
            leave=leave,
            dynamic_ncols=True,
            file=sys.stdout,
            smoothing=0,
            miniters=1,
            mininterval=_FRAMES_S if _live() else _LOG_FRAMES_S,
        )

    # Training

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        super().on_train_start(trainer)
        # An epoch that is resumed in its middle does not start. One that was at its end does, and its batches count no more.
        done = trainer.fit_loop.batch_idx + 1
        self._begin_epoch(trainer, done if done < self.total_train_batches else 0)

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        if self._leave or self.train_progress_bar.disable:
            self.train_progress_bar = self.init_train_tqdm()
        self._begin_epoch(trainer, 0)

    def _begin_epoch(self, trainer: Trainer, done: int) -> None:
        loader = _only(tree_leaves(trainer.train_dataloader))
        title = f"Epoch {trainer.current_epoch}"
        self._begin(self.train_progress_bar, title, loader, self.total_train_batches, done)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._advance(self.train_progress_bar, batch_idx, lambda: self.get_metrics(trainer, pl_module))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        if trainer.current_epoch + 1 == trainer.max_epochs or trainer.global_step == trainer.max_steps:
            self.train_progress_bar.close()  # else Lightning's message that it stops lands on the same line

    # Evaluation

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validation_began = time.perf_counter()
        super().on_validation_start(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.val_progress_bar.close()
        self.reset_dataloader_idx_tracker()
        if trainer.state.fn == "fit" and isinstance(bar := self._train_progress_bar, _Bar):
            bar.leave_out(time.perf_counter() - self._validation_began)
            bar.set_postfix(self.get_metrics(trainer, pl_module), refresh=_live())

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self.has_dataloader_changed(dataloader_idx):
            title = self.sanity_check_description if trainer.sanity_checking else self.validation_description
            total = self.total_val_batches_current_dataloader
            self._begin_part(self.val_progress_bar, title, trainer.val_dataloaders, dataloader_idx, total)

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self.has_dataloader_changed(dataloader_idx):
            total = self.total_test_batches_current_dataloader
            self._begin_part(
                self.test_progress_bar, self.test_description, trainer.test_dataloaders, dataloader_idx, total
            )

    def on_predict_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self.has_dataloader_changed(dataloader_idx):
            total = self.total_predict_batches_current_dataloader
            loaders = trainer.predict_dataloaders
            if (title_of := getattr(pl_module, "title_of_loader", None)) is None:
                self._begin_part(self.predict_progress_bar, self.predict_description, loaders, dataloader_idx, total)
            else:  # layer by layer
                self._begin(self.predict_progress_bar, title_of(dataloader_idx), None, total, 0)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Any, o: Any, b: Any, batch_idx: int, d: int = 0
    ) -> None:
        self._advance(self.val_progress_bar, batch_idx)

    def on_test_batch_end(self, trainer: Trainer, pl_module: Any, o: Any, b: Any, batch_idx: int, d: int = 0) -> None:
        self._advance(self.test_progress_bar, batch_idx)

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Any, o: Any, b: Any, batch_idx: int, d: int = 0
    ) -> None:
        self._advance(self.predict_progress_bar, batch_idx)

    # Both

    def _begin_part(self, bar: Any, title: str, loaders: Any, number: int, batches: float) -> None:
        """One of the loaders of a phase."""
        leaves = tree_leaves(loaders)
        loader = leaves[number] if number < len(leaves) else None
        self._begin(bar, f"{title} {number}" if len(leaves) > 1 else title, loader, batches, 0)

    def _begin(self, bar: Any, title: str, loader: Any, batches: float, done: int) -> None:
        count = _count_of_seeds(loader, self.trainer.world_size)
        bar.begin(title, count, None if math.isinf(batches) else int(batches), done)

    def _advance(self, bar: Any, batch_idx: int, metrics: Callable[[], Any] = dict) -> None:
        if self.is_enabled and ((batch_idx + 1) % self.refresh_rate == 0 or batch_idx + 1 == bar.batches):
            bar.advance(batch_idx + 1, metrics())


def _count_of_seeds(loader: Any, world_size: int) -> Count | None:
    """Seeds of all ranks by batches of this one; None where that is not known."""
    if not isinstance(loader, DistNeighborLoader):
        return None
    plan = loader.plan
    return plan.seeds_after if plan.world_size == world_size and plan.steps is None else None


def _speed(rate: float | None) -> str:
    return "?" if rate is None else numbers.rate(rate)


def _only(loaders: list[Any]) -> Any:
    return loaders[0] if len(loaders) == 1 else None


def _live() -> bool:
    """Whether a frame replaces the one before: on a terminal and in a notebook."""
    return sys.stdout.isatty() or "ipykernel" in sys.modules
