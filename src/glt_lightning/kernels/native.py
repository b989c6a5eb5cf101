"""Loads the native library and declares the functions that several ops use; others are declared beside their op (`bind`).

ctypes checks no signature: tests/kernels/test_abi.py compares all of them, and the structs, with the headers.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_int32, c_int64, c_uint64, c_void_p
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from glt_lightning.base import DataError, NativeError, PartitionError

ABI_VERSION = 32
OK, GROW, BAD_ID, BAD_ROW, BAD_ARG, CUDA, NO_MEMORY, NO_THREAD, THROWN = range(9)


# Arguments as the headers have them: a pointer, int32_t, int64_t, uint64_t.
P, I32, I64, U64 = c_void_p, c_int32, c_int64, c_uint64
Signatures = dict[str, list[Any]]
_STATUS = c_int32

_SIGNATURES: Signatures = {
    "glt_abi_version": [],
    "glt_khop": [P, P, P, I32, P, U64, I32, I32, P, P, P, P],
    "glt_count_rows": [P, I32, P, I64, I32, I32, P, P, P, P],
    "glt_pick_rows": [P, I32, P, I64, I32, U64, I32, I32, I32, P, P, P, I64, I64, P, P, P],
    "glt_relabel": [P, I64, P, I64, I32, I32, P, P, I64, P, P],
    "glt_gather": [P, P, I32, I64, P, I64, P, I32, P],
    "glt_route": [P, I64, P, P, I32, I32, P, P, I32, P, P, P, P, P],
    "glt_table_fill": [P, I64, I64, P, P, I32, P],
    "glt_merge": [P, P, P, P],
    "glt_widen": [P, I64, P],
}


class NativeMemoryError(NativeError, MemoryError):
    """The native library could not get the memory that a call needs. Nothing is lost but the call."""


class GraphStruct(ctypes.Structure):
    """``glt_graph`` of ``glt/api.h``."""

    _fields_ = [
        ("num_types", c_int32),
        ("num_edge_types", c_int32),
        ("num_parts", c_int32),
        ("id_bytes", c_int32),
        ("shift", c_int32),
        ("reserved", c_int32),
        ("bounds", c_void_p),
        ("hint", c_void_p),
        ("src_type", c_void_p),
        ("dst_type", c_void_p),
        ("key", c_void_p),
        ("indptr", c_void_p),
        ("indices", c_void_p),
        ("user_ids", c_void_p),
        ("edge_base", c_void_p),
        ("num_edges", c_void_p),
        ("sums", c_void_p),
        ("times", c_void_p),
        ("type_key", c_void_p),
        ("all_ids", c_void_p),
        ("num_ids", c_void_p),
        ("more_ids", c_void_p),
        ("replaced", c_void_p),
        ("source_shift", c_void_p),
    ]


class ReplacedStruct(ctypes.Structure):
    """``glt_replaced`` of ``glt/api.h``."""

    _fields_ = [
        ("num_rows", c_int64),
        ("gids", c_void_p),
        ("offset", c_void_p),
        ("hint", c_void_p),
        ("shift", c_int32),
        ("num_parts", c_int32),
        ("moved", c_int64),
        ("below", c_void_p),
        ("blocks", c_void_p),
        ("first", c_int64),
        ("num_ids", c_int64),
    ]


class WorkspaceStruct(ctypes.Structure):
    """``glt_workspace`` of ``glt/api.h``."""

    _fields_ = [
        ("table_cap", c_int64),
        ("table", c_void_p),
        ("table_base", c_void_p),
        ("scratch_cap", c_int64),
        ("scratch", c_void_p),
        ("node_cap", c_void_p),
        ("gid", c_void_p),
        ("uid", c_void_p),
        ("tree", c_void_p),
        ("edge_cap", c_void_p),
        ("src", c_void_p),
        ("dst", c_void_p),
        ("edge_row", c_void_p),
        ("edge_id_bytes", c_int32),
        ("reserved", c_int32),
        ("edge_ids", c_void_p),
        ("e_id", c_void_p),
        ("nodes_per_hop", c_void_p),
        ("edges_per_hop", c_void_p),
    ]


class PicksStruct(ctypes.Structure):
    """``glt_picks`` of ``glt/api.h``."""

    _fields_ = [
        ("bytes", c_int32),
        ("reserved", c_int32),
        ("num_rows", c_int64),
        ("num_entries", c_int64),
        ("counts", c_void_p),
        ("neighbors", c_void_p),
        ("edge_rows", c_void_p),
    ]


class MergeStruct(ctypes.Structure):
    """``glt_merge_call`` of ``glt/api.h``."""

    _fields_ = [
        ("num_owners", c_int32),
        ("reserved", c_int32),
        ("picks", c_void_p),
        ("owner", c_void_p),
        ("num_rows", c_int64),
        ("first_lid", c_int64),
        ("first_gid", c_int64),
        ("num_gids", c_int64),
        ("num_ids", c_int64),
        ("table_cap", c_int64),
        ("table", c_void_p),
        ("node_cap", c_int64),
        ("edge_cap", c_int64),
        ("gids", c_void_p),
        ("src", c_void_p),
        ("dst", c_void_p),
        ("edge_rows", c_void_p),
    ]


def library_path(name: str) -> Path:
    """Returns the path of a native library: in the folder ``GLT_KERNELS_DIR`` if set, else inside the installed package."""
    folder = os.environ.get("GLT_KERNELS_DIR")
    return Path(folder) / name if folder else Path(str(files("glt_lightning") / "lib" / name))


def load(name: str, signatures: Signatures) -> ctypes.CDLL:
    """Loads one native library and declares its functions. Raises `NativeError` with what to do."""
    path = library_path(name)
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(
            f"cannot load the native library {path}: {error}. Install the package again (`pip install .` builds it; "
            "it needs a C++17 compiler)."
        ) from None
    _declare(lib, name, signatures, {})
    if lib.glt_abi_version() != ABI_VERSION:
        raise NativeError(
            f"{path} has ABI version {lib.glt_abi_version()}, this package needs {ABI_VERSION}. "
            "Install the package again so that both come from one build."
        )
    return lib


@cache
def library() -> ctypes.CDLL:
    """Returns the CPU library."""
    return load("libglt_kernels.so", _SIGNATURES)


def bind(signatures: Signatures, results: Mapping[str, Any] = MappingProxyType({})) -> Callable[[], Any]:
    """Returns a function that returns the CPU library with further functions declared; its first call loads the library.

    results: return types of functions that do not return a status. The first call raises `NativeError` for an older build.
    """

    @cache
    def bound() -> ctypes.CDLL:
        lib = library()
        _declare(lib, "libglt_kernels.so", signatures, results)
        return lib

    return bound


def _declare(lib: ctypes.CDLL, name: str, signatures: Signatures, results: Mapping[str, Any]) -> None:
    for function_name, arguments in signatures.items():
        if not hasattr(lib, function_name):
            raise NativeError(
                f"{library_path(name)}: this library has no function {function_name}, so it is from another build. Install the "
                "package again."
            )
        function = getattr(lib, function_name)
        function.argtypes, function.restype = arguments, results.get(function_name, _STATUS)


def pointer(array: np.ndarray | None) -> int | None:
    """Returns the address of an array's data, None for None."""
    return None if array is None else array.ctypes.data


def pointers(arrays: Sequence[np.ndarray | None]) -> np.ndarray:
    """Returns uint64 [n]: the arrays' addresses, 0 for None, to pass as a table of pointers."""
    return np.array([0 if a is None else a.ctypes.data for a in arrays], dtype=np.uint64)


def address_of(memory: mmap.mmap) -> int:
    """Returns the address of a memory map."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def lend(memory: mmap.mmap) -> ctypes.Array[ctypes.c_ubyte]:
    """Returns a new object that exports a map as a buffer. Arrays over it keep it alive, and it can be weakly referenced, so a
    finalizer runs when the last array is gone."""
    # The whole map: each other length is another ctypes class, which takes 50 us to make.
    return (ctypes.c_ubyte * len(memory)).from_buffer(memory)


class _Memory:
    """Memory at an address, with a reference to the object that keeps it alive."""

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self.owner = owner
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (nbytes,), "data": (address, False)}


def view_of(address: int, nbytes: int, owner: object) -> np.ndarray:
    """Views memory that ``owner`` keeps alive as uint8 [nbytes], writable. The array and all views of it keep ``owner``."""
    return np.asarray(_Memory(address, nbytes, owner))


def call(function: Callable[..., int], *args: Any) -> tuple[int, np.ndarray]:
    """Calls a native function with arrays by their addresses and, behind the other arguments, a new detail.

    Returns the status and the detail (int64 [4]), for `check`.
    """
    detail = np.zeros(4, dtype=np.int64)
    return function(*(a.ctypes.data if isinstance(a, np.ndarray) else a for a in args), detail.ctypes.data), detail


def check(status: int, detail: np.ndarray, what: str) -> None:
    """Turns a status other than OK (and GROW, which callers handle) into an exception."""
    if status == OK:
        return
    d = detail.tolist()
    if status == BAD_ID:
        raise DataError(
            f"{what}: id {d[1]} at position {d[0]} is not in the graph, or its part is not mapped by this process."
        )
    if status == BAD_ROW:
        fault = (
            f"names neighbour {d[2]}, which is no node"
            if d[1] < 0
            else f"node {d[1]} points to {d[2]}:{d[3]}, outside its array"
        )
        raise PartitionError(
            f"{what}: the partition is damaged: edge type {d[0]} {fault}. Delete the partition folder and partition again."
        )
    if status == NO_MEMORY:
        raise NativeMemoryError(
            f"{what}: out of memory. Use smaller batches or fan-outs (data.batch_size, data.num_neighbors), or free memory."
        )
    if status == NO_THREAD:
        raise NativeError(
            f"{what}: a thread could not be started: {os.strerror(d[0])}. Lower sampling.num_threads, or raise the limit of "
            "processes and threads (ulimit -u)."
        )
    raise NativeError(f"{what}: native call failed with status {status}, detail {d}.")


# The C library's allocator: whether memory that this process frees stays in it.


# By default glibc maps each block above 32 MiB by itself and unmaps it when it is freed, so that every page of every large
# tensor of a training step is a page fault and is zeroed by the kernel: 40 % of the CPU time of a step (docs/benchmarks.md).
_MMAP_THRESHOLD, _MMAP_MAX, _TRIM_THRESHOLD = -3, -4, -1  # malloc.h
_KEEP = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1}


# Setting any of them ends glibc's own adjustment; it reaches these values when a process first frees a block of 32 MiB.
_RETURN = {_MMAP_MAX: 65536, _MMAP_THRESHOLD: 32 << 20, _TRIM_THRESHOLD: 64 << 20}
_lock = threading.Lock()
_keepers = 0  # the allocator belongs to the process, and several of its sessions may be open


def keep_freed_memory() -> Callable[[], None]:
    """Lets the allocator keep memory that this process frees for its next allocations, until the returned function is called,
    which also returns all free memory to the system.

    Raises:
        RuntimeError: If the allocator cannot do that, or the user has chosen its settings; the message has the reason.
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
