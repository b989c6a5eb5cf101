"""`RunReport`: a page about the run, beside its checkpoints."""

from __future__ import annotations

import errno
import platform
import time
from collections.abc import Callable
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from glt_lightning.base import numbers
from glt_lightning.lightning.callbacks.monitor import SamplingMonitor
from glt_lightning.lightning.callbacks.precision import PrecisionProbe
from glt_lightning.lightning.planner import record_path
from glt_lightning.lightning.report.page import may_be_replaced
from glt_lightning.lightning.report.run import EpochRecord, RunRecord, configuration, run_html
from glt_lightning.partition import whole_file

if TYPE_CHECKING:
    from glt_lightning.lightning.planner.expected import Expected

NAME = "report.html"
_REWRITE_S = 120.0  # a run that is killed leaves a page that is no older
_OUR_METRICS = "glt/"


class RunReport(Callback):
    """Writes ``report.html`` beside the checkpoints of a fit, on rank 0: curves of the metrics, throughput, where the time
    went, where rows came from, the configuration.

    It is written when the fit ends, also by an interruption or an error, and at most every two minutes in between. Without
    checkpoints it lies in the folder of the logger; a run that has neither, and ``fast_dev_run``, has no report. All ranks must
    have this callback, or none.

    Args:
        enabled: Whether there is a report.

    Example:
        >>> trainer = Trainer(callbacks=[RunReport(), BestCheckpoint()], enable_checkpointing=True, max_epochs=1)
        >>> trainer.fit(model, datamodule)
        >>> sorted(path.name for path in Path("checkpoints").iterdir())
        ['best.ckpt', 'last.ckpt']
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self.path: Path | None = None
        self.record: RunRecord | None = None
        self._clock: Callable[[], float] = time.monotonic
        self._began = self._written = 0.0
        self._ended: EpochRecord | None = None  # an epoch whose metrics may still come
        self._in_fit = self._in_epoch = False
        self._seen: dict[str, object] = {}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = _folder(trainer) if self.enabled else None
        self._in_fit = True
        path = None if folder is None else folder / NAME
        self._ended, self._in_epoch, self._seen = None, False, dict(trainer.callback_metrics)
        self._began = self._written = self._clock()
        earlier = self.record if path == self.path else None
        self.path, self.record = path, None
        if path is not None and trainer.is_global_zero:
            self.record = _new_record(trainer, pl_module, path.parent)
            if earlier is not None and trainer.current_epoch > max(
                earlier.epochs, default=-1
            ):  # which this fit continues
                self.record.epochs, self.record.facts = earlier.epochs, earlier.facts
                self._began -= earlier.seconds

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        done, steps = trainer.fit_loop.batch_idx + 1, trainer.num_training_batches
        if self.record is not None and 0 < done < steps:
            text = f"epoch {trainer.current_epoch} after {done} of {steps:.0f} steps; its figures count the steps since then"
            self.record.facts.append(("resumed in", text))

        probes = [each for each in trainer.callbacks if isinstance(each, PrecisionProbe)]  # type: ignore[attr-defined]
        if self.record is not None and probes and probes[0].line is not None:
            self.record.facts.append(("precision", probes[0].line))
        if self.record is not None:
            self.record.expected = _planned(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close_epoch(trainer)
        self._in_epoch = True
        if self._clock() - self._written >= _REWRITE_S:
            self._write(trainer, f"not finished at {datetime.now():%H:%M:%S}, in epoch {trainer.current_epoch}")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ended, self._in_epoch = EpochRecord(trainer.current_epoch), False
        self._note(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close_epoch(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        steps = trainer.global_step
        self._in_fit = False
        epochs = numbers.counted(trainer.current_epoch, "epoch")
        self._write(trainer, f"finished after {epochs} and {numbers.counted(steps, 'step')} of the optimizer")

        self._compare()

    def _compare(self) -> None:
        """Logs how the epochs differ from what was planned, beyond its range."""
        record = self.record
        if record is None or record.expected is None or record.totals is None:
            return
        from glt_lightning.lightning.planner.expected import misses

        found = misses(record.expected, record.totals, record.counted_epochs)
        if found:
            rank_zero_info(f"plan: an epoch differed from what was planned: {'; '.join(found)}.")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        began, self._in_fit = self._in_fit, False
        if not began or self.record is None:  # the record may be that of an earlier fit
            return
        if self._ended is not None:  # without another look at metrics, which might wait for other ranks
            self._keep(trainer, self._ended)
        outcome = _outcome(exception)
        if self._in_epoch:
            done, steps = trainer.fit_loop.batch_idx + 1, trainer.num_training_batches
            outcome += f", in epoch {trainer.current_epoch} after {done} of {steps:.0f} steps"
        self._write(trainer, outcome)

    def _close_epoch(self, trainer: Trainer) -> None:
        """Keeps the epoch that ended: by now all callbacks, and the module, have logged."""
        self._note(trainer)
        if self._ended is not None:
            self._keep(trainer, self._ended)

    def _note(self, trainer: Trainer) -> None:
        """What was logged since the last look; on all ranks, since reading a metric may sum it up over them.

        Lightning keeps what an earlier epoch logged (the validation, say, that is not run in each) and replaces the object
        when it is logged again.
        """
        found = dict(trainer.callback_metrics)
        if self.record is not None and self._ended is not None:
            fresh = {name: value for name, value in found.items() if value is not self._seen.get(name)}
            for name, value in fresh.items():
                part = name.removesuffix("_step") if name.endswith("_step") else name.removesuffix("_epoch")
                repeated = part != name and part in found
                if not name.startswith(_OUR_METRICS) and not repeated and torch.as_tensor(value).numel() == 1:
                    self._ended.metrics[name] = float(value)
        self._seen = dict(found)

    def _keep(self, trainer: Trainer, ended: EpochRecord) -> None:
        self._ended = None
        if self.record is not None:
            monitors = [each for each in trainer.callbacks if isinstance(each, SamplingMonitor)]  # type: ignore[attr-defined]
            ended.totals = monitors[0].totals if monitors else None
            self.record.epochs[ended.epoch] = ended

    def _write(self, trainer: Trainer, outcome: str) -> None:
        """Never raises: a good run shall not end by its report, nor a failed one by another error than its own."""
        self._written = self._clock()
        if self.record is None or self.path is None:
            return
        self.record.outcome, self.record.seconds = outcome, self._written - self._began
        try:
            page = run_html(_with_best(trainer, self.record))
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not may_be_replaced(self.path):
                raise FileExistsError(errno.EEXIST, "a file that is no page of ours is there")
            with whole_file(self.path) as temporary:
                temporary.write_text(page, encoding="utf-8")
        except Exception as error:
            why = (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"
            rank_zero_info(f"the report of this run cannot be written to {self.path}: {why}. Training is not affected.")


def _planned(trainer: Trainer, pl_module: LightningModule) -> Expected | None:
    """What this run was planned to take. Never raises, as a run is more than its plan."""
    data: Any = getattr(trainer, "datamodule", None)
    try:
        if getattr(data, "graph_hash", None) is None or data._servers or not record_path(data.partition_dir).exists():
            return None
        from glt_lightning.lightning.planner.expected import expected_of_run

        return expected_of_run(trainer, pl_module)
    except Exception as error:
        rank_zero_info(f"what this run was planned to take cannot be found: {type(error).__name__}: {error}.")
        return None


def _folder(trainer: Trainer) -> Path | None:
    """Where the report lies; the same on all ranks, which must all ask."""
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        return None
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.dirpath and "://" not in str(callback.dirpath):
            folder = Path(callback.dirpath)
            return folder.parent if folder.name == "checkpoints" else folder
    folder_of_logger = getattr(trainer.logger, "log_dir", None)
    return None if trainer.logger is None or not folder_of_logger else Path(str(trainer.log_dir))


def _new_record(trainer: Trainer, pl_module: LightningModule, folder: Path) -> RunRecord:
    parameters = sum(p.numel() for p in pl_module.parameters() if not isinstance(p, torch.nn.UninitializedParameter))
    packages = ", ".join(f"{name} {version(name)}" for name in ("glt-lightning", "lightning", "torch"))
    ranks, hosts = trainer.world_size, trainer.num_nodes
    strategy, device = type(trainer.strategy).__name__, trainer.strategy.root_device.type
    facts = [
        ("folder", str(folder.absolute())),
        ("began", f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}"),
        ("model", f"{type(pl_module).__name__}, {numbers.counted(parameters, 'parameter')}"),
        ("ranks", f"{ranks} on {hosts} host{'s' if hosts > 1 else ''} ({strategy}, {device})"),
        ("versions", f"{packages}, Python {platform.python_version()}"),
    ]
    if isinstance(dataset := getattr(getattr(trainer, "datamodule", None), "dataset", None), str):
        facts.insert(2, ("data set", dataset))
    if trainer.ckpt_path is not None:
        facts.append(("resumed from", str(trainer.ckpt_path)))
    name = f"{type(pl_module).__name__}: {folder.name}"
    return RunRecord(title=name, world_size=ranks, facts=facts, configuration=configuration(trainer, pl_module))


def _with_best(trainer: Trainer, record: RunRecord) -> RunRecord:
    """The record with what is known only by now."""
    facts = [("duration", numbers.duration(record.seconds)), *record.facts]
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.best_model_path:
            score = callback.best_model_score
            value = "" if score is None else f" ({callback.monitor} {float(score):.4g})"
            facts.append(("best checkpoint", f"{callback.best_model_path}{value}"))
    return RunRecord(**{**vars(record), "facts": facts})


def _outcome(exception: BaseException) -> str:
    if isinstance(exception, KeyboardInterrupt):
        return "interrupted by Ctrl-C"
    if isinstance(exception, SIGTERMException):
        return "ended by SIGTERM"
    first = (str(exception).strip().splitlines() or [""])[0]
    return f"failed: {type(exception).__name__}: {first:.300}"
