"""Metrics by name for each task, from torchmetrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torchmetrics
from torch import Tensor, nn

from glt_lightning.base import OptionError

# Name -> (class of torchmetrics, how classes or labels are averaged; None: the class has no such argument).
_CLASSES: dict[str, tuple[str, str | None]] = {
    "acc": ("Accuracy", "micro"),
    "macro_acc": ("Accuracy", "macro"),
    "f1": ("F1Score", "macro"),
    "micro_f1": ("F1Score", "micro"),
    "auc": ("AUROC", "macro"),
    "ap": ("AveragePrecision", "macro"),
    "precision": ("Precision", "macro"),
    "recall": ("Recall", "macro"),
    "mcc": ("MatthewsCorrCoef", None),
}
_NUMBERS: dict[str, tuple[str, dict[str, Any]]] = {
    "mae": ("MeanAbsoluteError", {}),
    "mse": ("MeanSquaredError", {}),
    "rmse": ("MeanSquaredError", {"squared": False}),
    "r2": ("R2Score", {}),
}
_DEFAULT = {
    "multiclass": ("acc",),
    "binary": ("acc", "auc"),
    "multilabel": ("micro_f1", "auc"),
    "regression": ("mae", "rmse", "r2"),
}
_LOWER_IS_BETTER = ("loss", "mae", "mse", "rmse")


def metric_names(task: str, given: Sequence[str] | None) -> list[str]:
    """Those that are given, else those of the task. Raises `OptionError` for an unknown one."""
    known = _NUMBERS if task == "regression" else _CLASSES
    names = list(_DEFAULT[task]) if given is None else [given] if isinstance(given, str) else list(given)
    if unknown := [name for name in names if name not in known]:
        raise OptionError(f"metrics: expected any of {', '.join(known)} for task {task}; got {unknown[0]!r}.")
    return list(dict.fromkeys(names))


def make_metrics(task: str, out_channels: int, names: Sequence[str]) -> nn.ModuleDict:
    """By name. They take scores between 0 and 1, or numbers, from `update_metric`."""
    return nn.ModuleDict({name: _make(task, out_channels, name) for name in names})


def monitor_of(val_metric: str | None, names: Sequence[str]) -> tuple[str, str]:
    """(name that is logged, ``min`` or ``max``) of the metric that chooses the best checkpoint; None: the first of ``names``."""
    known = [*names, "loss"]
    name = known[0] if val_metric is None else str(val_metric).removeprefix("val_")
    if name not in known:
        raise OptionError(
            f"val_metric: expected one of {', '.join(f'val_{each}' for each in known)}; got {val_metric!r}. Add it to metrics."
        )
    return f"val_{name}", "min" if name in _LOWER_IS_BETTER else "max"


def update_metric(metric: Any, scores: Tensor, targets: Tensor) -> None:
    """Adds rows to a metric; a rank without seeds has no rows.

    torchmetrics cannot add zero rows. A metric that stores all rows (``auc``, ``ap``) gathers them from every rank, and a rank
    with an empty list would contribute a tensor of another shape, at which the other ranks hang or fail.
    """
    if len(scores):
        metric.update(scores, targets)
    elif isinstance(getattr(metric, "preds", None), list):
        metric.preds.append(scores)
        metric.target.append(targets)


def only_checks(module: Any) -> bool:
    """Whether the Trainer checks a few batches before training: these may be of one class, of which torchmetrics warns, so
    metrics are updated and not computed."""
    return bool(getattr(module._trainer, "sanity_checking", False))


def _make(task: str, out_channels: int, name: str) -> nn.Module:
    if name == "r2":
        return _R2()
    kind, options = _NUMBERS[name] if task == "regression" else _classes_options(task, out_channels, name)
    return getattr(torchmetrics, kind)(**options)


class _R2(torchmetrics.R2Score):
    """NaN of fewer than two rows, of which torchmetrics raises: a validation split without labels would end the run."""

    def compute(self) -> Tensor:
        return super().compute() if self.total > 1 else torch.full_like(self.total, torch.nan, dtype=torch.float32)


def _classes_options(task: str, out_channels: int, name: str) -> tuple[str, dict[str, Any]]:
    kind, average = _CLASSES[name]
    options: dict[str, Any] = {"task": task}
    if task == "multiclass":
        options |= {"num_classes": out_channels}
    if task == "multilabel":
        options |= {"num_labels": out_channels, "ignore_index": -1}
    if average is not None and task != "binary":
        options |= {"average": average}
    return kind, options
