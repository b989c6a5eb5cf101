"""Reads files and JSON from untrusted sources."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from pathlib import Path
from typing import Any


def open_regular(path: str | Path) -> io.BufferedReader:
    """Opens a regular file for reading; the caller closes it.

    Raises OSError, also for anything but a regular file: reading a FIFO, a terminal or a device may block for ever.
    """
    # Without O_NONBLOCK, opening a FIFO waits for its writer. Reads of regular files ignore it.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def parse_json(text: bytes) -> Any:
    """The value of a JSON text. Raises ValueError for everything else."""
    try:
        return json.loads(text.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
