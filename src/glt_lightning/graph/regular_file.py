"""Reads files and JSON from untrusted sources, and writes files where others may write, too."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

NOT_OURS = errno.EINVAL  # errno of `open_below` for links and anything but regular files
# Without O_NONBLOCK, opening a FIFO waits for its other end. Regular files ignore it.
_AT_ONCE = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLLOWED = {errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR}  # links, files as folders, FIFOs, folders as files


def open_regular(path: str | Path) -> io.BufferedReader:
    """Opens a regular file for reading; the caller closes it.

    Raises OSError, also for anything but a regular file: reading a FIFO, a terminal or a device may block for ever.
    """
    fd = os.open(path, os.O_RDONLY | _AT_ONCE)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


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


def parse_json(text: bytes) -> Any:
    """Parses a JSON text. Raises ValueError for anything else."""
    try:
        return json.loads(text.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
