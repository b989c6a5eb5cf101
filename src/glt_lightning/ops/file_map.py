"""Files that are mapped without a descriptor staying open."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    size, fd, flags = ctypes.c_size_t, ctypes.c_int, ctypes.c_int
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, size, ctypes.c_int, flags, fd, ctypes.c_int64]
    libc.munmap.restype = ctypes.c_int
    libc.munmap.argtypes = [ctypes.c_void_p, size]
    return libc


class _FileMap:
    """The pages of a file, read-only. They are unmapped when the last array that views them is gone."""

    def __init__(self, fd: int, nbytes: int) -> None:
        libc = _libc()
        address = libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address == ctypes.c_void_p(-1).value:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        # Bound here: while Python ends, the names of this module may be gone before the last array is.
        self._unmap: Callable[[], object] = lambda: libc.munmap(address, nbytes)
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (nbytes,), "data": (address, True)}

    def __del__(self) -> None:
        if (unmap := getattr(self, "_unmap", None)) is not None:
            unmap()


def map_file(fd: int, nbytes: int) -> np.ndarray:
    """uint8 [nbytes], read-only: the first bytes of an open file, at least one. The caller may close ``fd`` at once.

    Python's own ``mmap`` (and so ``numpy.memmap``) keeps a duplicate of the descriptor while the map lives: a graph of 256
    parts ran into the usual limit of 1,024 open files.

    Raises OSError. ENOMEM stands for too many maps as well as for too little memory (`map_limit`).
    """
    return np.asarray(_FileMap(fd, nbytes))


def map_limit(error: OSError) -> str:
    """Which limit made opening or mapping a file fail, and what to do; empty where it was none."""
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
