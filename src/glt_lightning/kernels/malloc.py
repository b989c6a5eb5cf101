"""The C library's allocator: whether memory that this process frees stays in it."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable

# By default glibc maps each block above 32 MiB by itself and unmaps it when it is freed, so that every page of every large
# tensor of a training step is a page fault and is zeroed by the kernel: 40 % of the CPU time of a step (docs/benchmarks.md).
_MMAP_THRESHOLD, _MMAP_MAX, _TRIM_THRESHOLD = -3, -4, -1  # malloc.h
_KEEP = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1}
# Setting any of them ends glibc's own adjustment; it reaches these values when a process first frees a block of 32 MiB.
_RETURN = {_MMAP_MAX: 65536, _MMAP_THRESHOLD: 32 << 20, _TRIM_THRESHOLD: 64 << 20}

_lock = threading.Lock()
_keepers = 0  # the allocator belongs to the process, and several of its sessions may be open


def keep_freed_memory() -> Callable[[], None]:
    """Lets the allocator keep what this process frees for what it allocates next, until the returned function is called,
    which also returns all free memory to the system.

    Raises:
        RuntimeError: The allocator cannot, or the user has chosen its settings; the message says why.
    """
    global _keepers
    libc = _glibc()
    with _lock:
        _keepers += 1
        if _keepers == 1:
            _set(libc, _KEEP)

    def end() -> None:
        global _keepers
        with _lock:
            _keepers -= 1
            if not _keepers:
                _set(libc, _RETURN)
                libc.malloc_trim(0)

    return end


def _set(libc: ctypes.CDLL, settings: dict[int, int]) -> None:
    for parameter, value in settings.items():
        libc.mallopt(parameter, value)


def _glibc() -> ctypes.CDLL:
    if chosen := [name for name, value in os.environ.items() if _is_setting(name, value)]:
        raise RuntimeError(f"the environment variable {chosen[0]} has settings of malloc")
    process = ctypes.CDLL(None)
    try:
        libc = ctypes.CDLL("libc.so.6")
        known = hasattr(libc, "gnu_get_libc_version") and hasattr(libc, "mallopt")
    except OSError:
        known = False
    if not known:
        raise RuntimeError("the C library is not glibc")
    if _address(process.malloc) != _address(libc.malloc):
        raise RuntimeError("another allocator than that of glibc is loaded")
    return libc


def _is_setting(name: str, value: str) -> bool:
    return (name.startswith("MALLOC_") and name.endswith("_")) or (
        name == "GLIBC_TUNABLES" and any(f"glibc.malloc.{what}" in value for what in ("mmap_", "trim_threshold"))
    )


def _address(function: object) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
