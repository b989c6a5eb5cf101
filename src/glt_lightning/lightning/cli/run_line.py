"""The last line of a command: where its outputs are, and what they are."""

from __future__ import annotations

import os
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

_FILES = ("metrics.csv", "predictions", "report.html", "config.yaml")
_MOST_METRICS = 4


def run_line(trainer: Trainer, subcommand: str, checkpoint: str | None = None) -> str:
    """``run: lightning_logs/version_3: best val_acc 0.8218; checkpoints/best.ckpt, metrics.csv, config.yaml``. On rank 0.

    checkpoint: that the command read, if it did.
    """
    folder = run_folder(trainer)
    files = [name for name in _FILES if (folder / name).exists()]
    if subcommand == "fit":
        results, best = _best(trainer, folder)
        files = best + files
    else:
        results = [f"{name} {value:.4f}" for name, value in trainer.callback_metrics.items()][:_MOST_METRICS]
    outputs = "; ".join(", ".join(part) for part in (results, files) if part)
    source = "" if checkpoint is None else f"; from {_shown(Path(checkpoint))}"
    return f"run: {_shown(folder)}: {outputs or 'no files'}{source}"


def run_folder(trainer: Trainer) -> Path:
    """As ``trainer.log_dir``, without its collective call."""
    logger = trainer.logger
    folder = None if logger is None else getattr(logger, "log_dir", None) or logger.save_dir
    return Path(folder or trainer.default_root_dir)


def _best(trainer: Trainer, folder: Path) -> tuple[list[str], list[str]]:
    """(the best metric, the checkpoint that has it)."""
    checkpoint = trainer.checkpoint_callback
    if not isinstance(checkpoint, ModelCheckpoint) or not checkpoint.best_model_path:
        return [], []
    score, path = checkpoint.best_model_score, Path(checkpoint.best_model_path)
    inside = path.absolute().is_relative_to(folder.absolute())
    shown = str(path.absolute().relative_to(folder.absolute())) if inside else _shown(path)
    return ([] if score is None else [f"best {checkpoint.monitor} {score:.4f}"]), [shown]


def _shown(path: Path) -> str:
    """Relative to the current folder where it is below that."""
    path = path.absolute()
    return str(path.relative_to(os.getcwd())) if path.is_relative_to(os.getcwd()) and path != Path.cwd() else str(path)
