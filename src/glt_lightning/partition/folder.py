"""Ensures that a folder has one writer at a time and is never half-written: by a lock, a temporary folder beside the target, and
a rename."""

from __future__ import annotations

import errno
import fcntl
import glob
import io
import os
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath

from glt_lightning.base import PartitionError

LOCK_TIMEOUT_S = 3600.0
NOT_OURS = errno.EINVAL  # errno of `open_below` for links and anything but regular files
_LASTING = "run_"  # begins the key in the name of a `lasting_folder`
DISK_IS_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # disk, quota, or file size limit
# Without O_NONBLOCK, opening a FIFO waits for its other end. Regular files ignore it.
_AT_ONCE = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLLOWED = {errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR}  # links, files as folders, FIFOs, folders as files
_POLL_S = 0.05  # a lock that is released is taken within this time; a partition takes seconds to hours


@contextmanager
def exclusive(target: Path, timeout_s: float) -> Iterator[None]:
    """Holds the lock of ``target`` during the ``with`` block.

    Raises `PartitionError` if another process still holds the lock after ``timeout_s``, or the folder is not writable.
    """
    path = _lock_of(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fd = _locked(path, target, timeout_s)
    except OSError as error:
        raise PartitionError(
            f"{target.parent}: this folder is not writable ({error.strerror}). Choose another folder."
        ) from None
    try:
        yield
    finally:
        # Removed while the lock is held: after `close` another process may hold it already. One that waits for the removed
        # file notices it by `_is_same`.
        path.unlink(missing_ok=True)
        os.close(fd)


def _lock_of(target: Path) -> Path:
    return target.parent / f".{target.name}.lock"


def _locked(path: Path, target: Path, timeout_s: float) -> int:
    deadline = time.monotonic() + timeout_s
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same(fd, path):  # the previous owner of the lock may have removed the file that was waited for
                return fd
        except BlockingIOError:
            pass
        os.close(fd)
        if time.monotonic() > deadline:
            raise PartitionError(
                f"{target}: another process was still writing this folder after {timeout_s:.0f} s. "
                "Wait until it has finished, or end it, and start again."
            )
        time.sleep(_POLL_S)


def _is_same(fd: int, path: Path) -> bool:
    try:
        return os.fstat(fd).st_ino == os.stat(path).st_ino
    except FileNotFoundError:
        return False


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yields a temporary folder that is renamed to ``target`` if the block succeeds and removed if it fails.

    Call it with the lock held: temporary folders of killed runs are removed first.
    """
    with folder_beside(target) as temporary:
        yield temporary
        os.rename(temporary, target)


@contextmanager
def folder_beside(target: Path) -> Iterator[Path]:
    """Yields a temporary folder beside ``target``, on the same file system, so that files can be moved from it by a rename. Call
    it with the lock held."""
    with _temporary(target) as temporary:
        temporary.mkdir()
        yield temporary


def lasting_path(target: Path, key: str) -> Path:
    """Returns the path of a temporary folder of ``target`` that outlives its process. key: letters and digits."""
    return target.parent / f".{target.name}.tmp-{_LASTING}{key}"


@contextmanager
def lasting_folder(path: Path) -> Iterator[Path]:
    """Yields the folder of a `lasting_path`, which is removed when the block ends, but stays when the process is killed: the next
    run with the same key gets it as it is, and one with another key removes it. Call it with the lock held."""
    for left in path.parent.glob(f"{glob.escape(path.name.rpartition(_LASTING)[0])}*"):
        if left != path and (_abandoned(left) or left.name.rpartition("-")[2].startswith(_LASTING)):
            _remove(left)
    try:
        path.mkdir(exist_ok=True)
        yield path
    finally:
        _remove(path)


def remove_lasting(target: Path, *, locked: bool = False) -> None:
    """Removes the lasting folders and the lock of a ``target`` that is finished, which a run that is killed after its last rename
    leaves.

    locked: the caller holds the lock. Otherwise a run that still holds it, and removes its folder itself, is left alone.
    """
    left = list(target.parent.glob(f".{glob.escape(target.name)}.tmp-{_LASTING}*"))
    if not locked and (left or _lock_of(target).exists()):
        with suppress(PartitionError), exclusive(target, 0):  # somebody holds the lock, or nobody may write here
            remove_lasting(target, locked=True)
        return
    for each in left:  # `exclusive` removes the lock
        _remove(each)


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Yields the path of a temporary file that replaces ``target`` if the block succeeds and is removed if it fails."""
    with _temporary(target) as temporary:
        yield temporary
        os.replace(temporary, target)


@contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    for left in target.parent.glob(f".{glob.escape(target.name)}.tmp-*"):
        if _abandoned(left):
            _remove(left)
    temporary = target.parent / f".{target.name}.tmp-{os.getpid()}"
    try:
        yield temporary
    finally:
        _remove(temporary)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _abandoned(path: Path) -> bool:
    """Tells whether the process whose id ends a temporary name is gone. This process's own id means a dead process that had
    it."""
    pid = path.name.rpartition("-")[2]
    if not pid.isdigit():
        return False
    if int(pid) == os.getpid():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


ANOTHER_FOLDER = "choose another folder (partition.dir, or --out of compact)"


@contextmanager
def disk_full_speaks(folder: Path, needed: int, advice: str = ANOTHER_FOLDER) -> Iterator[None]:
    """Turns "no space left" into a `PartitionError` that names the folder, the bytes needed and the bytes free."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_IS_FULL:
            raise
        place = folder if folder.exists() else folder.parent
        free = shutil.disk_usage(place).free
        raise PartitionError(
            f"{folder}: cannot write ({error.strerror}): {needed:,} bytes needed, {free:,} free. "
            f"Free some space or {advice}."
        ) from error


def require_space(folder: Path, needed: int, what: str, advice: str = "choose another folder") -> None:
    """Raises `PartitionError` unless the file system of ``folder`` has ``needed`` bytes free. what: subject of the error."""
    free = shutil.disk_usage(next(each for each in (folder, *folder.absolute().parents) if each.exists())).free
    if free < needed:
        raise PartitionError(
            f"{folder}: {what} needs at least {needed:,} bytes of disk, working files included, but {free:,} are free. "
            f"Free some space or {advice}."
        )


# Files in a folder that others may write, too.


def open_below(folder: str | Path, path: str, flags: int = os.O_RDONLY) -> io.FileIO:
    """Opens the regular file ``path`` of a folder that others may write; the caller closes it.

    Neither ``folder`` nor any name below it may be a link.  flags: of `os.open`; with ``O_CREAT`` missing folders are made.
    Raises OSError, with `NOT_OURS` as errno for links and anything but regular files; for writing also for a file that has a
    second name elsewhere (a hard link).
    """
    writes = flags & os.O_ACCMODE != os.O_RDONLY
    *above, name = PurePath(path).parts
    here = -1
    try:
        here = open_folder_below(folder, above, make=bool(flags & os.O_CREAT))
        fd = os.open(name, flags | _AT_ONCE | os.O_NOFOLLOW, 0o666, dir_fd=here)
    except OSError as error:
        raise _refused(error) from None
    finally:
        if here >= 0:
            os.close(here)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or (writes and found.st_nlink != 1):
            raise OSError(NOT_OURS, "it is not a regular file of its own")
        return io.FileIO(fd, "r+b" if writes else "rb")
    except BaseException:
        os.close(fd)
        raise


def open_folder_below(folder: str | Path, names: Sequence[str], *, make: bool) -> int:
    """Opens a folder below ``folder`` without following links, and returns its descriptor. Raises OSError, as `open_below`."""
    try:
        here = os.open(folder, _FOLDER)
        for name in names:
            try:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(name, dir_fd=here)
                below = os.open(name, _FOLDER, dir_fd=here)
            finally:
                os.close(here)
            here = below
    except OSError as error:
        raise _refused(error) from None
    return here


def _refused(error: OSError) -> OSError:
    if error.errno not in _FOLLOWED:
        return error
    return OSError(NOT_OURS, "there is a link, or something else that is no regular file")
