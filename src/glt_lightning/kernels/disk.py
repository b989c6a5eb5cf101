"""Rows of arrays in files, which a gather reads directly from disk, bypassing the page cache."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glt_lightning.base import PartitionError
from glt_lightning.kernels.file_map import map_limit
from glt_lightning.kernels.native import I32, I64, P, Signatures, bind, call, check

# Reads in flight of one process. Measured: random pages per second of an NVMe disk by reads in flight: 1: 10,000, 4: 33,000,
# 16: 57,000, 32: 63,000, 64: 68,000.
READS_AT_ONCE = 32

# On the same disk a read of 8 KiB costs 1.3 of 4 KiB, one of 16 KiB 1.8. Batches that want every seventh page gain most from
# gaps of 8 to 12 KiB, those that want every fiftieth from none.
GAP_BYTES = 8 << 10
_MOST_BYTES = 128 << 10
_CHUNK = 8 << 20  # of a file that is read in sequence
_IO = 16  # GLT_IO of glt/disk.h

_SIGNATURES: Signatures = {
    "glt_disk_find": [P, P, I64, I64, P, P, P, P],
    "glt_disk_read": [P, P, I64, I32, P, P, P],
    "glt_disk_try": [I32],
}
_library = bind(_SIGNATURES)


class _DiskStruct(ctypes.Structure):
    """``glt_disk`` of ``glt/disk.h``."""

    _fields_ = [
        ("num_shards", c_int32),
        ("reserved", c_int32),
        ("row_bytes", c_int64),
        ("bounds", c_void_p),
        ("fds", c_void_p),
        ("offsets", c_void_p),
        ("direct", c_void_p),
        ("gap_bytes", c_int64),
        ("most_bytes", c_int64),
    ]


class DiskFile:
    """A file that is open for reading while this object lives.

    Attributes:
        direct: Reads bypass the page cache. If the file system cannot do that, reads go through the page cache, and the pages
            are dropped from it.
    """

    PAGE = 4096  # direct reads begin and end at one, in the file and in memory

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.fd, self.direct = _open(path)
        except OSError as error:
            remedy = map_limit(error) or "Copy this part here again."
            raise PartitionError(
                f"{path}: this file of the partition cannot be opened ({error.strerror}). {remedy}"
            ) from None
        weakref.finalize(self, os.close, self.fd)

    def read(self, first: int, out: np.ndarray, done: Callable[[int], object]) -> None:
        """Reads the bytes from ``first`` on into ``out``, without a second copy of them in the page cache. done: called with the
        bytes of each piece.

        Raises `PartitionError` for a file that ends too early.
        """
        pages, rows, filled = memoryview(mmap.mmap(-1, _CHUNK)), memoryview(out.reshape(-1).view(np.uint8)), 0
        while filled < len(rows):
            within = (first + filled) % self.PAGE
            got = os.preadv(self.fd, [pages], first + filled - within)
            count = min(got - within, len(rows) - filled)
            if count <= 0:
                raise PartitionError(f"{self.path}: damaged: it was truncated while in use. Partition again.")
            rows[filled : filled + count] = pages[within : within + count]
            if not self.direct:
                os.posix_fadvise(self.fd, first + filled - within, got, os.POSIX_FADV_DONTNEED)
            filled += count
            done(count)


def _open(path: Path) -> tuple[int, bool]:
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        fd = os.open(path, flags | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    else:
        failed = _library().glt_disk_try(fd)
        if not failed:
            return fd, True
        os.close(fd)
        if failed != errno.EINVAL:
            raise OSError(failed, os.strerror(failed))
    fd = os.open(path, flags)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    return fd, False


class ReadSlots:
    """The limit of reads that a process has in flight. Each gather takes the free slots, and waits while there are none."""

    def __init__(self, count: int = READS_AT_ONCE) -> None:
        self._free, self._changed = count, threading.Condition()

    @contextmanager
    def taken(self, most: int) -> Iterator[int]:
        """Takes up to ``most`` slots, at least one, for a block. Yields their number."""
        with self._changed:
            self._changed.wait_for(lambda: self._free > 0)
            count = min(most, self._free)
            self._free -= count
        try:
            yield count
        finally:
            with self._changed:
                self._free += count
                self._changed.notify_all()


@dataclass(frozen=True)
class DiskRead:
    """Counters of the disk reads of one gather.

    rows, row_bytes: number of rows read, each once, and bytes of each.  places: number of rows of the gather that these are,
    repeated ones included.  page_bytes: bytes of the pages read.  seconds: time of the reads, including waits for slots.
    """

    rows: int
    row_bytes: int
    page_bytes: int
    seconds: float
    places: int = 0


class DiskRows:
    """An array in shards of which some lie in files. Any number of threads may read it.

    bounds: int64 [P + 1], id of each shard's first row.  files: per shard, the file and the offset of the shard's first row;
    None if its rows are elsewhere.  gap_bytes: pages no farther apart are read at once; -1: each by itself.
    """

    def __init__(
        self,
        bounds: np.ndarray,
        files: Sequence[tuple[DiskFile, int] | None],
        row_bytes: int,
        slots: ReadSlots,
        gap_bytes: int = GAP_BYTES,
    ) -> None:
        self._files, self._slots, self.row_bytes = list(files), slots, row_bytes
        self._bounds = np.ascontiguousarray(bounds, dtype=np.int64)
        self._fds = np.array([-1 if f is None else f[0].fd for f in files], dtype=np.int32)
        self._offsets = np.array([0 if f is None else f[1] for f in files], dtype=np.int64)
        self._direct = np.array([f is not None and f[0].direct for f in files], dtype=np.int32)
        self._struct = _DiskStruct(
            len(self._files),
            0,
            row_bytes,
            self._bounds.ctypes.data,
            self._fds.ctypes.data,
            self._offsets.ctypes.data,
            self._direct.ctypes.data,
            gap_bytes,
            _MOST_BYTES,
        )

    def find(self, ids: np.ndarray, end: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Finds the ids, int64 [n], whose rows lie in files.

        Returns places int64 [n] (``end`` plus the position in wanted; the id itself if its row lies in no file), wanted int64
        [m], ascending, each once, and the number of the ids that these are. Raises `DataError` for an id from ``end`` on.
        """
        places, wanted = np.empty_like(ids), np.empty_like(ids)
        counts = np.zeros(2, dtype=np.int64)
        status, detail = call(
            _library().glt_disk_find, ctypes.byref(self._struct), ids, len(ids), end, places, wanted, counts
        )
        check(status, detail, "gather")
        return places, wanted[: counts[0]], int(counts[1])

    def read(self, wanted: np.ndarray) -> tuple[np.ndarray, DiskRead]:
        """Reads the rows ``wanted`` of `find`: uint8 [m * row_bytes].

        Raises `PartitionError`, naming the file, for one that cannot be read or ends too early.
        """
        begin = time.perf_counter()
        rows = np.empty(len(wanted) * self.row_bytes, dtype=np.uint8)
        nbytes = np.zeros(1, dtype=np.int64)
        with self._slots.taken(len(wanted)) as threads:
            status, detail = call(
                _library().glt_disk_read, ctypes.byref(self._struct), wanted, len(wanted), threads, rows, nbytes
            )
        if status == _IO:
            raise self._failure(*detail.tolist())
        check(status, detail, "disk")
        return rows, DiskRead(len(wanted), self.row_bytes, int(nbytes[0]), time.perf_counter() - begin)

    def _failure(self, shard: int, number: int, offset: int, _: int) -> PartitionError:
        file = self._files[shard]
        assert file is not None
        if number:
            return PartitionError(
                f"{file[0].path}: read failed at byte {offset:,} ({os.strerror(number)}). Check the disk (dmesg), and copy this "
                "part here again."
            )
        return PartitionError(
            f"{file[0].path}: damaged: it was truncated to {os.fstat(file[0].fd).st_size:,} bytes while in use. Delete the "
            "partition folder and partition again."
        )
