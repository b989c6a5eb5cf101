"""Checkpoints with the rows of embeddings beside them: ``X.ckpt`` and the folder ``X.ckpt.rows-NONCE``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.plugins.io import AsyncCheckpointIO, CheckpointIO

from glt_lightning.base import OptionError
from glt_lightning.tensors import CheckpointRows, DistEmbedding, DistGraph


class RowCheckpointIO(CheckpointIO):
    """Has ``inner`` write the checkpoints, and saves the rows beside them (`CheckpointRows`). Only rank 0 writes."""

    def __init__(self, inner: CheckpointIO, trainer: Trainer, rows: CheckpointRows) -> None:
        self.inner, self._trainer, self.rows = inner, trainer, rows

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        if "://" in str(path) or storage_options is not None:
            raise OptionError(
                f"{path}: rows of embeddings are saved beside a checkpoint in a folder. Give a path as dirpath."
            )
        optimizers = self._trainer.optimizers if "optimizer_states" in checkpoint else ()
        target = Path(os.path.abspath(path))
        self.rows.save(checkpoint, target, optimizers, lambda: self.inner.save_checkpoint(checkpoint, path))

    def load_checkpoint(self, path: str | Path, *args: Any, **kwargs: Any) -> dict[str, Any]:
        checkpoint = self.inner.load_checkpoint(path, *args, **kwargs)
        module = self._trainer.lightning_module
        strict = module is None or module.strict_loading
        self.rows.load(checkpoint, Path(os.path.realpath(path)), strict=strict)
        return checkpoint

    def remove_checkpoint(self, path: str | Path) -> None:
        self.inner.remove_checkpoint(path)
        self.rows.remove(Path(os.path.abspath(path)))

    def teardown(self) -> None:
        self.inner.teardown()


def save_rows_of(trainer: Trainer, embeddings: Mapping[str, DistEmbedding]) -> None:
    """Has the checkpoints of this Trainer have the rows of these embeddings."""
    io = trainer.strategy.checkpoint_io
    if isinstance(io, RowCheckpointIO):
        io = io.inner
    if isinstance(io, AsyncCheckpointIO):
        raise OptionError(
            "AsyncCheckpointIO: rows of embeddings change while it writes. Leave it out, or train without DistEmbedding and "
            "persistent tensors."
        )
    trainer.strategy.checkpoint_io = RowCheckpointIO(io, trainer, CheckpointRows(embeddings))


def save_tensors_of(trainer: Trainer, graph: DistGraph) -> None:
    """Has the checkpoints of this Trainer have the persistent tensors of its graph."""
    if not isinstance(trainer.strategy.checkpoint_io, RowCheckpointIO):
        save_rows_of(trainer, {})
    io = trainer.strategy.checkpoint_io
    assert isinstance(io, RowCheckpointIO)
    io.rows.graph = graph
