"""Tables on disk: mapped files without a name, whose pages are read ahead of their use."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import OptionError, TensorOptions, WriteError
from glt_lightning.graph import Shapes, SharedArrays

ON_DISK = "on_disk"  # in the description of shared memory: whether it is a file
_PAGE = 4096
AT_ONCE = (
    2048  # rows: their pages, 8 MB in each table, stay in memory until they are used, however little of it there is
)
_IN_MEMORY = ("tmpfs", "ramfs")


def on_scratch(shapes: Shapes, meta: Mapping[str, Any], options: TensorOptions) -> SharedArrays:
    """Makes arrays of zeros in a new file in the scratch folder. Raises `OptionError` for a folder that cannot be used,
    `WriteError` for a full disk."""
    folder = Path(options.scratch or tempfile.gettempdir())
    if not folder.is_dir():
        raise OptionError(f"cluster.tensors.scratch: {folder} is no folder on this host. Make it, or name another one.")
    if lies_in_memory(folder):
        raise OptionError(
            f"cluster.tensors.scratch: {folder} lies in memory ({_file_system(folder)}). Name a folder on a disk for "
            "storage: disk."
        )
    needed = sum(np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64)) for dtype, shape in shapes.values())
    try:
        return SharedArrays.scratch(shapes, meta, folder)
    except OSError as error:
        free = os.statvfs(folder)
        raise WriteError(
            f"{folder}: a tensor of {needed:,} bytes cannot be written ({error.strerror}); {free.f_bavail * free.f_frsize:,} are "
            "free. Free some space, or choose another folder (cluster.tensors.scratch)."
        ) from error


def lies_in_memory(folder: Path) -> bool:
    """Tells whether files in the folder take memory, as those of a tmpfs do."""
    return _file_system(folder) in _IN_MEMORY


def _file_system(folder: Path) -> str:
    """Type of a folder's file system, such as ext4; empty where the kernel does not list it."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == number:
            return rest.split()[0]
    return ""


def pieces(count: int, ask: Callable[[slice], object]) -> Iterator[slice]:
    """Yields slices of ``count`` rows. ``ask`` is called with a slice before the previous one is yielded, so that the disk reads
    the next rows while the caller works on these."""
    ask(slice(0, AT_ONCE))
    for begin in range(0, count, AT_ONCE):
        ask(slice(begin + AT_ONCE, begin + 2 * AT_ONCE))
        yield slice(begin, min(begin + AT_ONCE, count))


class Pages:
    """Read-ahead for the rows of an array in a file.

    asked: number of pages that the kernel was asked to read.
    """

    def __init__(self, memory: SharedArrays, rows: np.ndarray) -> None:
        self._fd = memory.fileno()
        self._begin = rows.ctypes.data - memory.memory.ctypes.data
        self._row_bytes = rows.nbytes // len(rows) if len(rows) else 1
        self.asked = 0
        memory.read_single_pages()

    def ask(self, positions: np.ndarray) -> None:
        """Has the kernel begin to read the pages of rows int64 [n]. A page fault reads one page and waits for it; a disk reads
        many at the same time."""
        if not len(positions):
            return
        first = self._begin + positions * self._row_bytes
        begins, ends = first // _PAGE, (first + self._row_bytes - 1) // _PAGE + 1
        order = np.argsort(begins, kind="stable")
        begins, ends = begins[order], np.maximum.accumulate(ends[order])
        # joins ranges that touch: one call for each run of pages
        starts = np.flatnonzero(np.append(True, begins[1:] > ends[:-1]))
        stops = np.append(starts[1:], len(begins)) - 1
        for begin, end in zip(begins[starts].tolist(), ends[stops].tolist(), strict=True):
            os.posix_fadvise(self._fd, begin * _PAGE, (end - begin) * _PAGE, os.POSIX_FADV_WILLNEED)
            self.asked += end - begin
