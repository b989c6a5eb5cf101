"""Checkpoints on disk: whole under their final name, or not there."""

from __future__ import annotations

import errno
import io
import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO
from lightning.pytorch.strategies import Strategy

from glt_lightning.base import DataError, WriteError

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

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Raises `WriteError` if the file cannot be written; what was under the name before is still there then."""
        if storage_options is not None or "://" in str(path):
            return super().save_checkpoint(checkpoint, path, storage_options)
        # First into memory, as Lightning does: torch answers a full disk with an error about its own position in the file.
        data = io.BytesIO()
        torch.save(checkpoint, data)
        _write(Path(path), data.getbuffer())

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


def _write(path: Path, data: memoryview) -> None:
    free = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
        with _file_that_becomes(path) as file:
            file.write(data)
            file.flush()
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
