"""Predictions on disk, keyed by the user's node ids."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from glt_lightning.errors import DataError

_KEY = "n_id"


class PredictionWriter(Callback):
    """Writes what ``predict_step`` returns: a folder with one ``.npz`` file per rank, each node in exactly one of them.

    ``predict_step`` returns a dictionary of tensors with one row per seed, among them ``n_id``. The folder appears when it
    is complete and replaces an older one. Read it with `read_predictions`.

    Args:
        path: The folder. ``None``: ``predictions`` in the folder of the Trainer's logs.
        keys: Which entries to write besides ``n_id``. ``None``: all.
    """

    def __init__(self, path: str | None = None, keys: list[str] | None = None) -> None:
        self.path, self.keys = path, keys
        self._rows: dict[str, list[np.ndarray]] = {}

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._rows = {}

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        for name, rows in _checked(outputs, self.keys).items():
            self._rows.setdefault(name, []).append(rows.detach().cpu().numpy().copy())

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = Path(self.path) if self.path is not None else self._default_folder(trainer)
        folder = Path(trainer.strategy.broadcast(str(folder.resolve())))
        part = folder.with_name(f".{folder.name}.part")
        host_leader = trainer.local_rank == 0
        if host_leader:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        trainer.strategy.barrier("predictions: folder")
        rows = {name: np.concatenate(chunks) for name, chunks in self._rows.items()}
        self._rows = {}
        np.savez(part / f"rank{trainer.global_rank}.npz", allow_pickle=False, **rows)
        trainer.strategy.barrier("predictions: files")
        if host_leader:
            _replace(part, folder)
        trainer.strategy.barrier("predictions: done")
        rank_zero_info(f"predictions: {folder}")

    def _default_folder(self, trainer: Trainer) -> Path:
        return Path(trainer.log_dir or trainer.default_root_dir) / "predictions"


def read_predictions(path: str | Path) -> dict[str, np.ndarray]:
    """What `PredictionWriter` wrote: arrays with one row per node, in the order of ``n_id``."""
    files = sorted(Path(path).glob("rank*.npz"))
    if not files:
        raise DataError(f"{path}: no predictions are there (rank*.npz).")
    parts = [dict(np.load(file, allow_pickle=False)) for file in files]
    parts = [part for part in parts if part]
    merged = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
    order = np.argsort(merged[_KEY], kind="stable") if merged else None
    return {name: rows[order] for name, rows in merged.items()}


def _checked(outputs: Any, keys: list[str] | None) -> dict[str, torch.Tensor]:
    if not isinstance(outputs, Mapping) or _KEY not in outputs:
        raise DataError(
            f"PredictionWriter: predict_step must return a dictionary of tensors with {_KEY!r} among them, got "
            f"{sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__}."
        )
    if missing := set(keys or ()) - set(outputs):
        raise DataError(f"PredictionWriter: keys: predict_step returns no {sorted(missing)}, but {sorted(outputs)}.")
    chosen = {name: rows for name, rows in outputs.items() if keys is None or name in (_KEY, *keys)}
    count = len(outputs[_KEY])
    for name, rows in chosen.items():
        if not isinstance(rows, torch.Tensor) or rows.dim() == 0 or len(rows) != count:
            raise DataError(
                f"PredictionWriter: {name!r}: expected a tensor with one row for each of the {count} nodes."
            )
    return chosen


def _replace(part: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.rename(folder, old)
    os.rename(part, folder)
    shutil.rmtree(old, ignore_errors=True)
