"""One writer at a time, and no half-written folder: a lock, a temporary folder beside the target, a rename."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glt_lightning.errors import PartitionError

_POLL_S = 0.05


@contextmanager
def exclusive(target: Path, timeout_s: float) -> Iterator[None]:
    """Holds the lock of ``target`` in the block; raises `PartitionError` when another process keeps it too long."""
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.parent / f".{target.name}.lock"
    fd = _locked(path, target, timeout_s)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def _locked(path: Path, target: Path, timeout_s: float) -> int:
    deadline = time.monotonic() + timeout_s
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same(fd, path):  # its last holder may have removed the file that we waited for
                return fd
        except BlockingIOError:
            pass
        os.close(fd)
        if time.monotonic() > deadline:
            raise PartitionError(
                f"{target}: another process is still writing it after {timeout_s:.0f} s. Wait for it or end it, then start again."
            )
        time.sleep(_POLL_S)


def _is_same(fd: int, path: Path) -> bool:
    try:
        return os.fstat(fd).st_ino == os.stat(path).st_ino
    except FileNotFoundError:
        return False


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``target`` when the block ends well and vanishes when it does not.

    Call it with the lock held: folders that killed runs left are removed first.
    """
    _remove_abandoned(target)
    temporary = target.parent / f".{target.name}.tmp-{os.getpid()}"
    temporary.mkdir()
    try:
        yield temporary
        os.rename(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _remove_abandoned(target: Path) -> None:
    for left in target.parent.glob(f".{target.name}.tmp-*"):
        pid = left.name.rpartition("-")[2]
        if pid.isdigit() and (int(pid) == os.getpid() or not _alive(int(pid))):
            shutil.rmtree(left, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
