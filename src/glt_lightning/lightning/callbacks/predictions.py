"""Predictions on disk, keyed by the user's node ids."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from glt_lightning.errors import DataError, PeerError, WriteError
from glt_lightning.lightning.strategies.collectives import gather_text_of

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
        folder = Path(gather_text_of(trainer, str(folder.resolve()))[0])
        part = folder.with_name(f".{folder.name}.part")
        rows = {name: np.concatenate(chunks) for name, chunks in self._rows.items()}
        self._rows = {}
        leads_host = trainer.local_rank == 0
        try:
            _on_all_ranks(trainer, lambda: _make_empty(part) if leads_host else None)
            _on_all_ranks(trainer, lambda: _save(part, folder, trainer.global_rank, rows))
            _on_all_ranks(trainer, lambda: _replace(part, folder) if leads_host else None)
        finally:
            if leads_host:  # what a rank could not finish; no rank writes any more
                shutil.rmtree(part, ignore_errors=True)
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


def _on_all_ranks(trainer: Trainer, act: Callable[[], None]) -> None:
    """If ``act`` raises on one rank, all ranks raise, after all of them are done with it. A collective call."""
    error: Exception | None = None
    try:
        act()
    except Exception as raised:
        error = raised
    failures = gather_text_of(trainer, "" if error is None else f"{error}"[:1000] or type(error).__name__)
    if error is not None:
        raise error
    for rank, failure in enumerate(failures):
        if failure:
            raise PeerError(f"rank {rank}: {failure}")


def _make_empty(part: Path) -> None:
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
    except OSError as error:
        raise WriteError(
            f"{part}: this folder for predictions cannot be made ({error.strerror}). Give PredictionWriter another path."
        ) from error


def _save(part: Path, folder: Path, rank: int, rows: Mapping[str, np.ndarray]) -> None:
    free = shutil.disk_usage(part).free
    try:
        np.savez(part / f"rank{rank}.npz", allow_pickle=False, **rows)
    except OSError as error:
        needed = sum(array.nbytes for array in rows.values())
        raise WriteError(
            f"{folder}: the predictions of rank {rank} cannot be written ({error.strerror}): they take {needed:,} bytes, "
            f"and {free:,} were free. Free some space or give PredictionWriter another path, then predict again; earlier "
            "predictions in that folder are untouched."
        ) from error


def _replace(part: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.rename(folder, old)
    os.rename(part, folder)
    shutil.rmtree(old, ignore_errors=True)
