"""Reads files and JSON from untrusted sources."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

# Without O_NONBLOCK, opening a FIFO waits for its other end. Regular files ignore it.
_AT_ONCE = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


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


def parse_json(text: bytes) -> Any:
    """Parses a JSON text. Raises ValueError for anything else."""
    try:
        return json.loads(text.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
