"""Predictions on disk, keyed by the user's node ids."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info

import glt_lightning
from glt_lightning.errors import DataError, PeerError, WriteError
from glt_lightning.lightning.callbacks.prediction_files import (
    KEY,
    Column,
    file_name,
    read_predictions,
    write_manifest,
    write_rows,
)
from glt_lightning.lightning.datamodule import GLTDataModule
from glt_lightning.lightning.strategies.collectives import gather_text_of

__all__ = ["PredictionWriter", "read_predictions"]

_PRED = "pred"


class PredictionWriter(Callback):
    """Writes what ``predict_step`` returns: a folder with one Parquet file per rank, each node in exactly one of them.

    ``predict_step`` returns a dictionary of tensors with one row per seed, among them ``n_id``. Beside these columns there are
    ``id``, what the user's table calls the node, where the graph comes from tables with ids; and, where ``pred`` holds
    classes that have names, ``class`` (for several labels of a node ``classes``). The folder appears when it is complete and
    replaces an older one. Read it with `read_predictions`, or with whatever reads Parquet.

    Args:
        path: The folder. ``None``: ``predictions`` in the folder of the Trainer's logs.
        keys: Which entries to write besides ``n_id`` and ``id``. ``None``: all.
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
            rows = rows.float() if rows.dtype == torch.bfloat16 else rows  # numpy has no bfloat16
            self._rows.setdefault(name, []).append(rows.detach().cpu().numpy().copy())

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = Path(self.path) if self.path is not None else self._default_folder(trainer)
        folder = Path(gather_text_of(trainer, str(folder.resolve()))[0])
        part = folder.with_name(f".{folder.name}.part")
        rows = {name: np.concatenate(chunks) for name, chunks in self._rows.items()}
        self._rows = {}
        leads_host = trainer.local_rank == 0
        facts = _facts(trainer)
        try:
            _on_all_ranks(trainer, lambda: _make_empty(part) if leads_host else None)
            _on_all_ranks(
                trainer, lambda: _save(part, folder, trainer.global_rank, _named(rows, trainer, pl_module), facts)
            )
            counts = gather_text_of(trainer, str(len(rows.get(KEY, ()))))
            files = {file_name(rank): int(count) for rank, count in enumerate(counts)}
            _on_all_ranks(trainer, lambda: _replace(part, folder, files, facts) if leads_host else None)
        finally:
            if leads_host:  # what a rank could not finish; no rank writes any more
                shutil.rmtree(part, ignore_errors=True)
        rank_zero_info(f"predictions: {folder}")

    def _default_folder(self, trainer: Trainer) -> Path:
        return Path(trainer.log_dir or trainer.default_root_dir) / "predictions"


def _checked(outputs: Any, keys: list[str] | None) -> dict[str, torch.Tensor]:
    if not isinstance(outputs, Mapping) or KEY not in outputs:
        raise DataError(
            f"PredictionWriter: predict_step must return a dictionary of tensors with {KEY!r} among them, got "
            f"{sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__}."
        )
    if missing := set(keys or ()) - set(outputs):
        raise DataError(f"PredictionWriter: keys: predict_step returns no {sorted(missing)}, but {sorted(outputs)}.")
    chosen = {name: rows for name, rows in outputs.items() if keys is None or name in (KEY, *keys)}
    count = len(outputs[KEY])
    for name, rows in chosen.items():
        if not isinstance(rows, torch.Tensor) or rows.dim() == 0 or len(rows) != count:
            raise DataError(
                f"PredictionWriter: {name!r}: expected a tensor with one row for each of the {count} nodes."
            )
    return chosen


def _named(rows: dict[str, np.ndarray], trainer: Trainer, module: LightningModule) -> dict[str, Column]:
    """The columns to write: with the user's ids and the names of classes, where they are known."""
    data = getattr(trainer, "datamodule", None)
    if not rows or not isinstance(data, GLTDataModule):
        return dict(rows)
    found: dict[str, Column] = {KEY: rows[KEY]}
    if (ids := data.user_ids(rows[KEY])) is not None:
        found["id"] = ids
    for name, values in rows.items():
        found[name] = values
        names = getattr(module, "class_names", None) or data.class_names
        if name == _PRED and names:
            found |= _class_columns(values, [str(each) for each in names])
    return found


def _class_columns(pred: np.ndarray, names: list[str]) -> dict[str, Column]:
    """The names of predicted classes; nothing where the predictions are no classes."""
    if pred.ndim == 1 and pred.dtype.kind in "iub" and (not len(pred) or (pred.min() >= 0 and pred.max() < len(names))):
        return {"class": np.array(names, dtype=object)[pred.astype(np.int64)]}
    if pred.dtype == np.bool_ and pred.shape[1:] == (len(names),):
        return {"classes": [[names[c] for c in np.flatnonzero(row)] for row in pred]}
    return {}


def _facts(trainer: Trainer) -> dict[str, str]:
    """What the predictions come from."""
    facts = {"package_version": glt_lightning.__version__}
    data = getattr(trainer, "datamodule", None)
    if isinstance(data, GLTDataModule) and (graph := data.graph_hash) is not None:
        facts["graph"] = graph
    if trainer.ckpt_path is not None:
        facts["checkpoint"] = str(trainer.ckpt_path)
        if os.path.isfile(trainer.ckpt_path):
            with open(trainer.ckpt_path, "rb") as stream:
                facts["checkpoint_hash"] = hashlib.file_digest(stream, _digest).hexdigest()
    return facts


def _digest() -> Any:
    return hashlib.blake2b(digest_size=16)


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


def _save(part: Path, folder: Path, rank: int, rows: Mapping[str, Column], facts: Mapping[str, str]) -> None:
    free = shutil.disk_usage(part).free
    try:
        write_rows(part / file_name(rank), rows, facts)
    except OSError as error:
        needed = sum(column.nbytes for column in rows.values() if isinstance(column, np.ndarray))
        raise WriteError(
            f"{folder}: the predictions of rank {rank} cannot be written ({error.strerror}): they take {needed:,} bytes, "
            f"and {free:,} were free. Free some space or give PredictionWriter another path, then predict again; earlier "
            "predictions in that folder are untouched."
        ) from error


def _replace(part: Path, folder: Path, files: Mapping[str, int], facts: Mapping[str, str]) -> None:
    here = {name: count for name, count in files.items() if (part / name).exists()}  # those of other hosts lie there
    try:
        write_manifest(part, here, facts)
    except OSError as error:
        raise WriteError(
            f"{folder}: the list of its files cannot be written ({error.strerror}). Free some space, then predict again; earlier "
            "predictions in that folder are untouched."
        ) from error
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.rename(folder, old)
    os.rename(part, folder)
    shutil.rmtree(old, ignore_errors=True)
