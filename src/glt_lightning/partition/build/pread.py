"""Reading ranges of files, so that what was read does not stay in this process's memory as a map's pages would."""

from __future__ import annotations

import os

import numpy as np


def read_exactly(fd: int, out: np.ndarray, offset: int) -> None:
    """Fills the contiguous array ``out`` with the bytes from ``offset`` on. Raises `EOFError` when they end early."""
    data = memoryview(out.reshape(-1).view(np.uint8))
    while data:
        got = os.preadv(fd, [data], offset)
        if got == 0:
            raise EOFError(f"{len(data)} bytes are missing at its end")
        data, offset = data[got:], offset + got
