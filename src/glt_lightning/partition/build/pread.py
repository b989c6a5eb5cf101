"""Reads ranges of files by ``pread``: unlike pages of a memory map, what was read does not count as this process's memory."""

from __future__ import annotations

import os

import numpy as np

from glt_lightning.base import counted


def read_exactly(fd: int, out: np.ndarray, offset: int) -> None:
    """Fills the contiguous array ``out`` with the bytes from ``offset`` on. Raises `EOFError` if the file ends earlier."""
    data = memoryview(out.reshape(-1).view(np.uint8))
    while data:
        got = os.preadv(fd, [data], offset)
        if got == 0:
            raise EOFError(f"the file is truncated: {counted(len(data), 'byte')} missing at its end")
        data, offset = data[got:], offset + got
