"""Named arrays that all processes of a host map: one copy, in anonymous memory or in a file without a name."""

from __future__ import annotations

import errno
import json
import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.graph.host_memory import require_memory
from glt_lightning.graph.regular_file import parse_json
from glt_lightning.kernels import row_bytes

_MAGIC = b"GLTARRAY"
_PAGE = 4096
_MOST_HEADER = 16 << 20  # bytes: bounds what a damaged length makes this read

Shapes = Mapping[str, tuple[np.dtype, tuple[int, ...]]]


class SharedArrays:
    """Arrays by name, each beginning at a page, and ``meta``: plain values that describe them.

    One process makes them (`create`), fills them and calls `finish`; other processes `open` them by `path`.
    They live as long as a process has them mapped, and can be opened until their maker closes them.

    Attributes:
        arrays: Name -> array; not contiguous where its rows have padding.
        meta: The values given to `create`.
        path: The path at which other processes open them.
        memory: uint8 [nbytes], all of their memory; it begins at a page.
        nbytes: Bytes of memory.
    """

    def __init__(self, fd: int, memory: mmap.mmap, header: Mapping[str, Any], path: str) -> None:
        self._fd, self._map = fd, memory
        self.path, self.meta, self.nbytes = path, header["meta"], len(memory)
        self.memory = whole = np.frombuffer(memory, dtype=np.uint8)
        self.arrays: dict[str, np.ndarray] = {}
        for name, dtype, shape, offset, *stride in header["arrays"]:
            rows = whole[offset : offset + _size(dtype, shape, *stride)]
            if stride:
                rows = rows.reshape(shape[0], *stride)[:, : row_bytes(dtype, shape[1:])]
            self.arrays[name] = rows.view(dtype).reshape(shape)

    @classmethod
    def create(
        cls,
        shapes: Shapes,
        meta: Mapping[str, Any],
        strides: Mapping[str, int] | None = None,
    ) -> SharedArrays:
        """Makes arrays of zeros, writable. All their memory is reserved now: a later write to memory that the host does not have
        would end the process without an error.

        strides: bytes from row to row, for the arrays whose rows have padding.
        Raises MemoryError if the host has too little memory.
        """
        header, size = _header(shapes, meta, strides or {})
        fd = os.memfd_create("glt-arrays", os.MFD_CLOEXEC)
        try:
            _take_memory(fd, size)
            return cls._new(fd, size, header)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def scratch(cls, shapes: Shapes, meta: Mapping[str, Any], folder: Path) -> SharedArrays:
        """Makes arrays of zeros, writable, in a file without a name in ``folder``: they may be larger than memory, and are
        deleted when no process has them mapped. Raises OSError if the disk is full."""
        header, size = _header(shapes, meta, {})
        fd, path = _nameless(folder / "rows")
        try:
            if not path.startswith("/proc/"):
                os.unlink(path)
            os.posix_fallocate(fd, 0, size)
            return cls._new(fd, size, header)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def _new(cls, fd: int, size: int, header: bytes) -> SharedArrays:
        memory = mmap.mmap(fd, size)
        memory[len(_MAGIC) : len(_MAGIC) + 8 + len(header)] = len(header).to_bytes(8, "little") + header
        return cls(fd, memory, json.loads(header), f"/proc/{os.getpid()}/fd/{fd}")

    def finish(self) -> None:
        """Lets other processes open them."""
        # Written last: until then `open` finds no arrays, so no process reads them half filled.
        self._map[: len(_MAGIC)] = _MAGIC

    @classmethod
    def open(cls, path: str | Path, *, writable: bool = False) -> SharedArrays:
        """Maps the finished arrays of another process. Raises `DataError` if ``path`` is anything else.

        writable: map them for writing, too, as tables of the ranks of a host need, and GPU drivers that page-lock only writable
        memory. False: read-only.
        """
        try:
            # O_NONBLOCK: ``path`` may be anything, and opening a FIFO would wait for a writer.
            fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise DataError(f"{path}: cannot be opened ({error.strerror}).") from None
        try:
            size = os.fstat(fd).st_size
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            memory = mmap.mmap(fd, size, access=access) if size >= _PAGE else None
            return cls(fd, *_checked(memory, str(path)), str(path))
        except BaseException:
            os.close(fd)
            raise

    def read_single_pages(self) -> None:
        """Makes the kernel read only the pages that this process accesses, without read-ahead. For arrays in a file."""
        self._map.madvise(mmap.MADV_RANDOM)

    def fileno(self) -> int:
        """Returns the descriptor of their memory, which this object owns."""
        return self._fd

    def close(self) -> None:
        """Closes the arrays: other processes can no longer open them. The memory is freed with its last view."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _nameless(file: Path) -> tuple[int, str]:
    """Makes a new file beside ``file``, without a name, so that the kernel removes it if this process dies; on file systems
    without such files a hidden one. Returns its descriptor and path."""
    try:
        fd = os.open(file.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise DataError(f"{file}: cannot be written ({error.strerror}).") from None
        return tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    return fd, f"/proc/{os.getpid()}/fd/{fd}"


def _size(dtype: Any, shape: Sequence[int], stride: int | None = None) -> int:
    """Returns the bytes of an array."""
    return shape[0] * (row_bytes(dtype, shape[1:]) if stride is None else stride)


def _header(shapes: Shapes, meta: Mapping[str, Any], strides: Mapping[str, int]) -> tuple[bytes, int]:
    """Returns the header, and the total size. The arrays begin at the first page after magic, length and header."""

    def text(offset: int) -> bytes:
        entries = []
        for name, (dtype, shape) in shapes.items():
            stride = [strides[name]] if name in strides else []
            entries.append([name, np.dtype(dtype).str, list(shape), offset, *stride])
            offset += -(-_size(dtype, shape, *stride) // _PAGE) * _PAGE
        return json.dumps({"meta": meta, "arrays": entries, "end": offset}).encode()

    pages = -(
        -(len(_MAGIC) + 8 + len(text(1 << 62))) // _PAGE
    )  # no offset has more digits than this one, so the header fits
    found = text(pages * _PAGE)
    return found, json.loads(found)["end"]


def _take_memory(fd: int, size: int) -> None:
    require_memory(size)
    os.posix_fallocate(fd, 0, size)


def _checked(memory: mmap.mmap | None, path: str) -> tuple[mmap.mmap, Mapping[str, Any]]:
    if memory is None or memory[: len(_MAGIC)] != _MAGIC:
        raise DataError(f"{path}: not a finished file of shared arrays.")
    size = int.from_bytes(memory[len(_MAGIC) : len(_MAGIC) + 8], "little")
    begin = len(_MAGIC) + 8
    try:
        header = parse_json(memory[begin : begin + min(size, _MOST_HEADER)])
        ends = [o + _size(d, s, *stride) for _, d, s, o, *stride in header["arrays"]]
        whole = header["end"] == len(memory) and all(0 < e <= len(memory) for e in ends)
        whole = whole and all(row_bytes(d, s[1:]) <= stride[0] for _, d, s, _, *stride in header["arrays"] if stride)
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise DataError(f"{path}: damaged. Delete the file; it is made again.")
    return memory, header
