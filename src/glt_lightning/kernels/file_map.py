"""Memory-maps files without keeping a file descriptor open."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import PartitionError
from glt_lightning.kernels.native import I32, I64, P, Signatures, bind

_LOST = 17  # GLT_LOST of glt/maps.h

_SIGNATURES: Signatures = {
    "glt_maps_add": [P, I64, ctypes.c_char_p],
    "glt_maps_remove": [P],
    "glt_maps_forget": [P],
    "glt_maps_guard": [I32],
    "glt_maps_lost": [ctypes.c_char_p, I64],
}
_library = bind(_SIGNATURES)


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    size, fd, flags = ctypes.c_size_t, ctypes.c_int, ctypes.c_int
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, size, ctypes.c_int, flags, fd, ctypes.c_int64]
    libc.munmap.restype = ctypes.c_int
    libc.munmap.argtypes = [ctypes.c_void_p, size]
    libc.madvise.argtypes = [ctypes.c_void_p, size, ctypes.c_int]
    return libc


class _FileMap:
    """The pages of a file, read-only. They are unmapped when the last array that views them is gone."""

    def __init__(self, fd: int, nbytes: int, path: Path, large_pages: bool) -> None:
        libc, ours = _libc(), _library()
        address = libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address == ctypes.c_void_p(-1).value:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        if large_pages:
            libc.madvise(address, nbytes, mmap.MADV_HUGEPAGE)  # refused by a kernel that has none
        # Bound here: while Python ends, the names of this module may be gone before the last array is.
        self._unmap: Callable[[], object] = lambda: (ours.glt_maps_remove(address), libc.munmap(address, nbytes))
        ours.glt_maps_add(address, nbytes, os.fsencode(path))
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (nbytes,), "data": (address, True)}

    def __del__(self) -> None:
        if (unmap := getattr(self, "_unmap", None)) is not None:
            unmap()


def map_file(fd: int, nbytes: int, path: Path, *, large_pages: bool = False) -> np.ndarray:
    """Maps the first bytes of an open file, at least one, as uint8 [nbytes], read-only. The caller may close ``fd`` at once.

    path: for the error if the file is truncated while it is mapped (`guarded`).  large_pages: what is not in the page cache yet
    is read by pages of 2 MB, if kernel and file system can do that: for a file that fits into memory.

    Python's ``mmap`` (and so ``numpy.memmap``) keeps a duplicate of the descriptor while the map lives: a graph of 256 parts
    exceeded the usual limit of 1,024 open files.

    Raises OSError. ENOMEM stands for too many maps as well as for too little memory (`map_limit`).
    """
    return np.asarray(_FileMap(fd, nbytes, path, large_pages))


def forget_losses(array: np.ndarray) -> None:
    """Ends the watch over an array of `map_file`: pages that its file loses are no error of `guarded` blocks any more. For
    owners that do not read the array again, while others, such as the traceback of an error, may still reference it."""
    if array.nbytes:
        _library().glt_maps_forget(array.ctypes.data)


@contextmanager
def guarded() -> Iterator[None]:
    """Raises `PartitionError`, with the file, if the block reads a map that has lost pages, because its file shrank or its disk
    failed. Such pages are read as zeros, so any other error of the block is a consequence and is replaced.

    Outside of such a block the process prints the file's name and ends. Reads of other threads during the block are covered,
    too.
    """
    ours = _library()
    ours.glt_maps_guard(1)
    lost = False
    try:
        try:
            yield
        finally:
            lost = ours.glt_maps_guard(0) == _LOST
    except Exception:
        if not lost:
            raise
    if lost:
        path = ctypes.create_string_buffer(4096)
        ours.glt_maps_lost(path, len(path))
        raise PartitionError(
            f"{os.fsdecode(path.value)}: damaged: it was truncated, or its disk failed, while in use. Delete the partition "
            "folder and partition again."
        )


def map_limit(error: OSError) -> str:
    """Explains the limit that made opening or mapping a file fail, and what to do; empty if it was no limit."""
    if error.errno == errno.EMFILE:
        return (
            "This process has as many files open as RLIMIT_NOFILE allows (ulimit -n). Raise that limit, for example with "
            "'ulimit -n 4096', before the job starts."
        )
    if error.errno == errno.ENFILE:
        return "The host has as many files open as it allows. Raise fs.file-max (sysctl)."
    if error.errno == errno.ENOMEM:
        return (
            "The host has too little memory, or this process has as many maps as vm.max_map_count allows: each array of "
            "each part takes one. Raise that limit (sysctl), or partition into fewer parts."
        )
    return ""
