"""Checkpoints with the rows of embeddings beside them: ``X.ckpt`` and the folder ``X.ckpt.rows-NONCE``."""

from __future__ import annotations

import glob
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.plugins.io import AsyncCheckpointIO, CheckpointIO

from glt_lightning.base import DataError, OptionError
from glt_lightning.tensors import (
    MARKER,
    DistEmbedding,
    DistGraph,
    RowsToSave,
    is_nonce,
    load_persistent,
    open_saved,
    persistent_rows,
    sparse_optimizers,
    write_rows,
)

_NONCE = re.compile("[0-9a-f]{16}")


class RowCheckpointIO(CheckpointIO):
    """Writes the rows, then has ``inner`` write the checkpoint, which names them; then removes what the one before named. A crash
    at any point leaves a checkpoint with its rows.

    Only rank 0 writes: it reads the tables, of other hosts too, while the others wait for it.
    """

    def __init__(
        self,
        inner: CheckpointIO,
        trainer: Trainer,
        embeddings: Mapping[str, DistEmbedding],
        graph: DistGraph | None = None,
    ) -> None:
        self.inner, self._trainer, self.embeddings, self.graph = inner, trainer, dict(embeddings), graph

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        if "://" in str(path) or storage_options is not None:
            raise OptionError(
                f"{path}: rows of embeddings are saved beside a checkpoint in a folder. Give a path as dirpath."
            )
        target, nonce = Path(os.path.abspath(path)), secrets.token_hex(8)
        folder = _folder(target, nonce)
        target.parent.mkdir(parents=True, exist_ok=True)
        tables = self._tables(with_states="optimizer_states" in checkpoint)
        if self.graph is not None:
            tensors = persistent_rows(self.graph)
            if both := {each.name for each in tables}.intersection(each.name for each in tensors):
                raise OptionError(
                    f"tensor {min(both)!r}: an embedding has this name, too. Give the tensor another one."
                )
            tables += tensors
            checkpoint[MARKER] = {"names": [each.name for each in tensors]}
        graphs = [each.rows.held.graph for each in self.embeddings.values()]
        digest = write_rows(folder, tables, graphs[0] if self.graph is None else self.graph.hash)
        for marker in _markers(checkpoint):
            marker.update(nonce=nonce, index=digest, folder=str(folder))
        try:
            self.inner.save_checkpoint(checkpoint, path)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        _remove(target, but=folder)

    def _tables(self, with_states: bool) -> list[RowsToSave]:
        trained = {
            id(embedding): each.kind
            for each in (sparse_optimizers(self._trainer.optimizers) if with_states else ())
            for embedding in each.embeddings
        }
        return [each.rows.to_save(trained.get(id(each))) for each in self.embeddings.values()]

    def load_checkpoint(self, path: str | Path, *args: Any, **kwargs: Any) -> dict[str, Any]:
        checkpoint = self.inner.load_checkpoint(path, *args, **kwargs)
        module = self._trainer.lightning_module
        lenient = module is not None and not module.strict_loading
        for marker in _markers(checkpoint):
            if "nonce" not in marker:
                marker.pop("folder", None)  # nothing of ours wrote that
            elif not is_nonce(marker["nonce"]):
                raise DataError(
                    f"{path}: damaged: its rows are in a folder named by {marker['nonce']!r:.80}, expected letters and "
                    "digits. Use another checkpoint."
                )
            else:  # where it lies now: checkpoints are moved
                marker.update(folder=str(_folder(Path(os.path.realpath(path)), marker["nonce"])), lenient=lenient)
        if self.graph is not None:
            self._load_tensors(checkpoint.get(MARKER), str(path), lenient)
        return checkpoint

    def _load_tensors(self, found: Any, path: str, lenient: bool) -> None:
        assert self.graph is not None
        if found is not None:
            names = found.get("names") if isinstance(found, Mapping) else None
            if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
                raise DataError(f"{path}: damaged: persistent tensors are named {names!r:.80}. Use another checkpoint.")
            load_persistent(self.graph, open_saved(found), names, strict=not lenient)
        elif not lenient:
            raise DataError(
                f"{path}: it has no persistent tensors. With strict_loading=False they are left as they are."
            )

    def remove_checkpoint(self, path: str | Path) -> None:
        self.inner.remove_checkpoint(path)
        _remove(Path(os.path.abspath(path)))

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
    trainer.strategy.checkpoint_io = RowCheckpointIO(io, trainer, embeddings)


def save_tensors_of(trainer: Trainer, graph: DistGraph) -> None:
    """Has the checkpoints of this Trainer have the persistent tensors of its graph."""
    if not isinstance(trainer.strategy.checkpoint_io, RowCheckpointIO):
        save_rows_of(trainer, {})
    io = trainer.strategy.checkpoint_io
    assert isinstance(io, RowCheckpointIO)
    io.graph = graph


def _folder(checkpoint: Path, nonce: str) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}.rows-{nonce}")


def _remove(checkpoint: Path, but: Path | None = None) -> None:
    """The rows of checkpoints of this name."""
    for each in checkpoint.parent.glob(f"{glob.escape(checkpoint.name)}.rows-*"):
        if each != but and _NONCE.fullmatch(each.name.rpartition("-")[2]):  # a copy of the user's has another name
            shutil.rmtree(each, ignore_errors=True)


def _markers(checkpoint: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Where a checkpoint names rows: in the state of an embedding, and in that of an optimizer."""
    states = checkpoint.get("state_dict", {})
    optimizers = checkpoint.get("optimizer_states", [])
    inner = [each for state in optimizers for each in state.get("sparse", ())]
    for state in (checkpoint, *states.values(), *optimizers, *inner):
        if isinstance(state, dict) and isinstance(state.get(MARKER), dict):
            yield state[MARKER]
