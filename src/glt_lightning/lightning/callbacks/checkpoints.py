"""The checkpoint that the command line keeps by default."""

from __future__ import annotations

import errno
import io
import os
import shutil
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from glt_lightning.base import DataError, WriteError

_BEST, _LAST = "best", "last"
_KEPT_EVERY_S = 1.0


class BestCheckpoint(ModelCheckpoint):
    """Keeps ``best.ckpt``, the epoch with the best ``monitor``, and ``last.ckpt``.

    If the module does not log ``monitor``, ``best.ckpt`` is the latest epoch. While epochs of one rank take less than a second,
    ``last.ckpt`` is written, and the disk is waited for, once a second and at the end: this took a tenth of such a run.

    Args:
        monitor: What is compared. ``None``: the module's ``checkpoint_monitor``, a pair such as ``("val_auc", "max")``; for a
            module without one the greatest ``val_acc``.
        mode: ``max`` or ``min``, which of its values is best. ``None``: ``max``, or what the module says.

    Example:
        >>> trainer = Trainer(callbacks=[BestCheckpoint("val_loss", "min")], enable_checkpointing=True, max_epochs=1)
        >>> trainer.fit(model, datamodule)
        >>> trainer.checkpoint_callback.best_model_path.endswith("best.ckpt")
        True
    """

    CHECKPOINT_NAME_LAST = _LAST

    def __init__(self, monitor: str | None = None, mode: str | None = None) -> None:
        self._asks_module = monitor is None and mode is None
        super().__init__(
            filename=_BEST,
            monitor=monitor or "val_acc",
            mode=mode or "max",
            save_top_k=1,
            save_last=True,
            enable_version_counter=False,
        )
        self._fits = False
        self._kept_s = -_KEPT_EVERY_S  # when last.ckpt was written

    @property
    def state_key(self) -> str:
        return type(self).__qualname__

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self._fits = stage == "fit"
        if self._asks_module and (asked := getattr(pl_module, "checkpoint_monitor", None)) is not None:
            self.monitor, self.mode = asked
            # what ModelCheckpoint begins with for a mode, which it is told when it is made
            self.kth_value = torch.tensor(float("inf") if self.mode == "min" else -float("inf"))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self._fits:  # else the run only reads a checkpoint, and the warnings of what is not restored would mislead
            super().load_state_dict(state_dict)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        saves = not self._should_save_on_train_epoch_end(trainer)
        if saves:
            self._check_monitor(trainer)
        super().on_validation_end(trainer, pl_module)
        if saves:
            self._keep_last(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._should_save_on_train_epoch_end(trainer):
            self._check_monitor(trainer)
        super().on_train_epoch_end(trainer, pl_module)
        self._keep_last(trainer)  # also after an epoch without validation (check_val_every_n_epoch)

    def _keep_last(self, trainer: Trainer) -> None:
        """Lightning 2.6 writes last.ckpt only together with a new best one: resumed, a run would begin at its best epoch."""
        if self._is_due(trainer) and not self._should_skip_saving_checkpoint(trainer):
            self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))

    def _save_last_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Any]) -> None:
        if self._is_due(trainer):
            if isinstance(io := trainer.strategy.checkpoint_io, WholeCheckpointIO):
                io.wait()  # first: last.ckpt says which epoch is in best.ckpt
            super()._save_last_checkpoint(trainer, monitor_candidates)
            self._kept_s = time.monotonic()

    def _is_due(self, trainer: Trainer) -> bool:
        # clocks of several ranks differ, and all of them have to save
        return trainer.world_size > 1 or time.monotonic() - self._kept_s >= _KEPT_EVERY_S or _ends(trainer)

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        io = trainer.strategy.checkpoint_io
        with io.without_waiting() if isinstance(io, WholeCheckpointIO) and not self._is_due(trainer) else nullcontext():
            super()._save_checkpoint(trainer, filepath)

    def _check_monitor(self, trainer: Trainer) -> None:
        """Where a best epoch would be saved: the end of an epoch that was not validated says nothing about ``monitor``."""
        if self._should_skip_saving_checkpoint(trainer):
            return
        if self.monitor is not None and self.monitor not in trainer.callback_metrics:
            rank_zero_info(f"{self.monitor!r} is not logged: {_BEST}.ckpt is the latest epoch.")
            self.monitor = None


def _ends(trainer: Trainer) -> bool:
    """Whether no epoch follows this one."""
    epochs, steps = trainer.max_epochs, trainer.max_steps
    if trainer.should_stop or trainer.received_sigterm or (steps != -1 and trainer.global_step >= steps):
        return True
    return epochs not in (None, -1) and trainer.current_epoch + 1 >= epochs


# Checkpoints on disk: whole under their final name, or not there.


_NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)  # of file systems without O_TMPFILE


class WholeCheckpointIO(TorchCheckpointIO):
    """Lightning's own format; a file gets its name when all of it is on disk.

    Lightning writes into TMPDIR and moves the file. Where that is another file system the move is a copy, and a disk that
    fills up leaves a truncated checkpoint under its final name. This class writes in the folder of the checkpoint. URLs
    (``s3://...``) go Lightning's way.

    Raises:
        WriteError: If a checkpoint cannot be written; the earlier file of this name is still there.
        DataError: If a file is truncated, damaged or no checkpoint.

    Example:
        >>> io = WholeCheckpointIO()
        >>> io.save_checkpoint({"epoch": 3}, "whole.ckpt")
        >>> io.load_checkpoint("whole.ckpt")
        {'epoch': 3}
        >>> trainer = Trainer(plugins=[io])
    """

    def __init__(self) -> None:
        self._waits = True
        self._behind: set[Path] = set()  # files that may not be on disk yet

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Raises `WriteError` if the file cannot be written; what was under the name before is still there then."""
        if storage_options is not None or "://" in str(path):
            return super().save_checkpoint(checkpoint, path, storage_options)
        # First into memory, as Lightning does: torch answers a full disk with an error about its own position in the file.
        data = io.BytesIO()
        torch.save(checkpoint, data)
        _write(Path(path), data.getbuffer(), self._waits)
        (self._behind.discard if self._waits else self._behind.add)(Path(path))

    @contextmanager
    def without_waiting(self) -> Iterator[None]:
        """What is saved in the ``with`` block has its name at once, but until `wait` a power failure may lose it."""
        self._waits = False
        try:
            yield
        finally:
            self._waits = True

    def wait(self) -> None:
        """Waits until the files of `without_waiting` are on disk. Raises `WriteError` if one cannot be written."""
        while self._behind:
            path = self._behind.pop()
            try:
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            except FileNotFoundError:  # removed since
                continue
            except OSError as error:
                raise WriteError(f"{path}: this checkpoint cannot be written ({error.strerror}).") from error

    def teardown(self) -> None:
        """Waits, also where an error or SIGTERM ends the run."""
        self.wait()

    def load_checkpoint(self, path: str | Path, *args: Any, **options: Any) -> dict[str, Any]:
        """Raises `DataError` that names a file which torch cannot read."""
        if "://" in str(path) or not os.path.exists(path):  # Lightning names a missing one
            return super().load_checkpoint(path, *args, **options)
        if not os.path.isfile(path):  # a named pipe would be waited for
            raise DataError(f"{path}: this is no file. A checkpoint of a single file is expected here.")
        try:
            found = super().load_checkpoint(path, *args, **options)
        except PermissionError as error:
            raise DataError(f"{path}: this checkpoint cannot be read ({error.strerror}).") from error
        except Exception as error:  # of a file that is cut, any of a dozen
            if zipfile.is_zipfile(path) and "PytorchStreamReader" not in str(error):
                raise  # it is whole; classes are missing, say
            raise _unreadable(path, (str(error).strip().splitlines() or [type(error).__name__])[0]) from error
        if not isinstance(found, dict):
            raise _unreadable(path, f"it holds a {type(found).__name__}")
        return found


def write_whole(strategy: Strategy) -> None:
    """Has a strategy of Lightning's write checkpoints by `WholeCheckpointIO`, unless the user gave it another or it has one of
    its own."""
    if type(strategy).checkpoint_io is not Strategy.checkpoint_io:
        return
    given = strategy._checkpoint_io
    if given is None:
        strategy.checkpoint_io = WholeCheckpointIO()
    elif isinstance(given, _WrappingCheckpointIO):
        given.checkpoint_io = WholeCheckpointIO()  # no effect where it wraps another already


def _unreadable(path: str | Path, why: str) -> DataError:
    size = os.path.getsize(path)
    return DataError(
        f"{path}: this checkpoint cannot be read ({why:.200}): it is truncated, damaged or no checkpoint ({size:,} bytes). Use "
        "another one."
    )


def _write(path: Path, data: memoryview, waits: bool) -> None:
    free = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
        with _file_that_becomes(path) as file:
            file.write(data)
            file.flush()
            if waits:
                os.fsync(file.fileno())
    except OSError as error:
        raise WriteError(
            f"{path}: this checkpoint cannot be written ({error.strerror}): it takes {len(data):,} bytes, and {free:,} were "
            "free. Free some space or choose another folder (default_root_dir, dirpath), then resume from the last "
            "checkpoint; nothing is left of this one."
        ) from error


@contextmanager
def _file_that_becomes(path: Path) -> Iterator[BinaryIO]:
    """A file that gets its name, in place of another, at the end of the ``with`` block; an error leaves nothing."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with _open_unnamed(path.parent) or part.open("xb") as file:
        try:
            yield file
            if not part.exists():
                _give_name(file, part)
            os.replace(part, path)
        except BaseException:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise


def _give_name(file: BinaryIO, path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # With a folder os.link calls linkat, which alone follows the link that stands for an open file.
        os.link(f"/proc/self/fd/{file.fileno()}", path.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _open_unnamed(folder: Path) -> BinaryIO | None:
    """A file without a name, of which ``kill -9`` leaves nothing; None where the file system has no such files."""
    try:
        return os.fdopen(os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o666), "wb")
    except OSError as error:
        if error.errno in _NO_UNNAMED_FILES:
            return None
        raise
