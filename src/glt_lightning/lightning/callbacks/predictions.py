"""Predictions on disk, keyed by the user's node ids."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info

import glt_lightning
from glt_lightning.errors import PeerError, WriteError
from glt_lightning.lightning.callbacks.prediction_files import (
    PredictionFile,
    file_name,
    read_predictions,
    write_manifest,
)
from glt_lightning.lightning.callbacks.prediction_rows import Naming, RowGroup
from glt_lightning.lightning.datamodule import GLTDataModule
from glt_lightning.lightning.strategies.collectives import gather_text_of

__all__ = ["PredictionWriter", "read_predictions"]


class PredictionWriter(Callback):
    """Writes what ``predict_step`` returns: a folder with one Parquet file per rank, each node in exactly one of them.

    ``predict_step`` returns a dictionary of tensors with one row per seed, among them ``n_id``. Beside these columns there are
    ``id``, what the user's table calls the node, where the graph comes from tables with ids; and, where ``pred`` holds
    classes that have names, ``class`` (for several labels of a node ``classes``). Rows are written while others are predicted,
    in row groups of at most 65,536. The folder appears when it is complete and replaces an older one; a run that fails leaves
    nothing of it. Read it with `read_predictions`, or with whatever reads Parquet.

    Args:
        path: The folder. ``None``: ``predictions`` in the folder of the Trainer's logs.
        keys: Which entries to write besides ``n_id`` and ``id``. ``None``: all.

    Raises:
        DataError: For results of ``predict_step`` without ``n_id``, or whose rows do not fit it.
        WriteError: If a file cannot be written; all ranks raise then.

    Example:
        >>> trainer = Trainer(callbacks=[PredictionWriter("predicted", keys=["pred"])])
        >>> _ = trainer.predict(model, datamodule, return_predictions=False)
        >>> read_predictions("predicted").keys()
        dict_keys(['n_id', 'pred'])
    """

    def __init__(self, path: str | None = None, keys: list[str] | None = None) -> None:
        self.path, self.keys = path, keys
        self._folder, self._facts = Path(), dict[str, str]()
        self._file: Any = None
        self._naming: Any = None
        self._group = RowGroup(keys)

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close()
        folder = Path(self.path) if self.path is not None else self._default_folder(trainer)
        self._folder = Path(gather_text_of(trainer, str(folder.resolve()))[0])
        self._facts = _facts(trainer)
        self._file = _open(self._folder, self._facts)
        self._naming = Naming(trainer, pl_module)

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._group.add(outputs)
        if self._group.full:
            self._write(trainer.global_rank)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder, file = self._folder, self._file
        part = folder.with_name(f".{folder.name}.part")
        leads_host = trainer.local_rank == 0
        try:
            _on_all_ranks(trainer, lambda: self._write(trainer.global_rank))
            _on_all_ranks(trainer, lambda: _make_empty(part) if leads_host else None)
            _on_all_ranks(trainer, lambda: self._publish(part, trainer.global_rank))
            counts = gather_text_of(trainer, str(file.num_rows))
            files = {file_name(rank): int(count) for rank, count in enumerate(counts)}
            first = trainer.global_rank == 0
            _on_all_ranks(trainer, lambda: _replace(part, folder, files, self._facts) if first else None)
            # On a file system that hosts share, rank 0 has published the files of all of them.
            others = leads_host and not first
            _on_all_ranks(
                trainer, lambda: _replace(part, folder, files, self._facts) if others and part.exists() else None
            )
        finally:
            self._close()
            if leads_host:  # what a rank could not finish; no rank writes any more
                shutil.rmtree(part, ignore_errors=True)
        rank_zero_info(f"predictions: {folder}")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close()

    def _write(self, rank: int) -> None:
        """Writes the rows that were collected."""
        if not (rows := self._group.take()):
            return
        columns, lost = self._naming.add(rows)
        with self._said_of(rank):
            if lost is not None:
                self._file.drop(lost)
            self._file.write(columns)

    def _publish(self, part: Path, rank: int) -> None:
        with self._said_of(rank):
            self._file.publish(part / file_name(rank))

    @contextlib.contextmanager
    def _said_of(self, rank: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise WriteError(
                f"{self._folder}: the predictions of rank {rank} cannot be written ({error.strerror or error}) after "
                f"{self._file.num_rows:,} rows; {shutil.disk_usage(self._folder.parent).free:,} bytes are free there. Free some "
                "space or give PredictionWriter another path, then predict again; earlier predictions in that folder are "
                "untouched."
            ) from error

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._naming, self._group = None, None, RowGroup(self.keys)

    def _default_folder(self, trainer: Trainer) -> Path:
        return Path(trainer.log_dir or trainer.default_root_dir) / "predictions"


def _open(folder: Path, facts: Mapping[str, str]) -> PredictionFile:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return PredictionFile(folder.parent, facts)
    except OSError as error:
        raise _no_folder(folder, error) from error


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
        part.mkdir(parents=True, exist_ok=True)  # another host may share the file system
    except OSError as error:
        raise _no_folder(part, error) from error


def _no_folder(folder: Path, error: OSError) -> WriteError:
    return WriteError(
        f"{folder}: cannot create this folder for predictions ({error.strerror}). Give PredictionWriter another path."
    )


def _replace(part: Path, folder: Path, files: Mapping[str, int], facts: Mapping[str, str]) -> None:
    here = {name: count for name, count in files.items() if (part / name).exists()}  # those of other hosts lie there
    try:
        write_manifest(part, here, facts)
    except OSError as error:
        raise WriteError(
            f"{folder}: cannot write the predictions manifest ({error.strerror}). Free some space, then predict "
            "again; earlier predictions in that folder are untouched."
        ) from error
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.rename(folder, old)
    os.rename(part, folder)
    shutil.rmtree(old, ignore_errors=True)
