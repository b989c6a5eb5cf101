"""Loads the CUDA library and names its functions. Needs neither torch nor a device to be imported."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int32, c_int64
from functools import cache

from glt_lightning.base import NativeError
from glt_lightning.kernels.native import I32, I64, OK, U64, P, Signatures, library_path, load

NAME = "libglt_kernels_cuda.so"
SPARE_FANOUT = 64  # GLT_SPARE_FANOUT

_END = (P, P, P)  # error, detail, stream

_DRIVERS = {11: 450, 12: 525, 13: 580}  # the oldest driver for each CUDA

SIGNATURES: Signatures = {
    "glt_abi_version": [],
    "glt_cuda_device_count": [P, P],
    "glt_cuda_versions": [P, P, P],
    "glt_cuda_capability": [P, P],
    "glt_cuda_host_register": [P, I64, P, P],
    "glt_cuda_host_unregister": [P, P],
    "glt_cuda_count_rows": [P, I32, P, I64, I32, I32, P, P, P, *_END],
    "glt_cuda_pick_rows": [P, I32, P, P, I64, I32, U64, I32, I32, P, P, P, I64, P, P, P, P, *_END],
    "glt_cuda_user_ids": [P, I32, P, I64, I64, P, P, *_END],
    "glt_cuda_relabel_known": [P, I64, I32, P, I64, *_END],
    "glt_cuda_relabel_find": [P, I64, P, P, P, I64, P, P, *_END],
    "glt_cuda_relabel_number": [P, I64, P, P, P, P, I64, P, I64, P, P, *_END],
    "glt_cuda_induce_pieces": [P, I32, P, I64, I64, P, *_END],
    "glt_cuda_induce_find": [P, I32, P, P, P, I64, I64, P, I64, P, P, P, P],
    "glt_cuda_induce_write": [P, I32, P, P, P, I64, I64, P, I64, P, P, P, P, P, P, P],
    "glt_cuda_walk_streams": [P, P, I64, I32, U64, P, P, P],
    "glt_cuda_walk": [P, P, P, P, P, I64, P, P, P, *_END],
    "glt_cuda_khop_room": [P, P, P, P, P, P],
    "glt_cuda_khop": [P, P, P, U64, P, P, I64, P, P, P, P, *_END],
    "glt_cuda_gather": [P, P, P, I32, I64, P, I64, P, *_END],
    "glt_cuda_gather_decode": [P, P, P, I32, I32, I64, P, I64, P, *_END],
    "glt_cuda_rank_find": [P, I64, I64, P, I64, P, P, P],
    "glt_cuda_spread_rows": [P, P, I32, I64, I64, P, I32, P, *_END],
    "glt_cuda_aggregate": [P, I32, P, P, P, *_END],
    "glt_cuda_aggregate_grad": [P, P, P, P, I32, P, P, P, P, P, P, *_END],
    "glt_cuda_aggregate_weights_grad": [P, P, I32, P, P, P, *_END],
}


@cache
def cuda_library() -> ctypes.CDLL:
    """Returns the CUDA library. Raises `NativeError`, with advice, on a machine that cannot run it."""
    path = library_path(NAME)
    if not path.exists():
        raise NativeError(
            f"the CUDA kernels were not built: {path} not found. Install the package again on a machine with nvcc "
            "(`pip install . -C cmake.define.GLT_CUDA=ON`; it fails without nvcc), or sample on the CPU."
        )
    library = load(NAME, SIGNATURES)
    library.glt_cuda_error_text.argtypes, library.glt_cuda_error_text.restype = [c_int32], c_char_p
    count, detail = c_int32(), (c_int64 * 4)()
    if library.glt_cuda_device_count(ctypes.byref(count), detail) != OK or count.value == 0:
        raise NativeError(f"no CUDA device can be used here: {_why(library, detail[0])} Or sample on the CPU.")
    return library


def _why(library: ctypes.CDLL, code: int) -> str:
    """Explains why no device was found, and what to do."""
    built, driver, detail = c_int32(), c_int32(), (c_int64 * 4)()
    library.glt_cuda_versions(ctypes.byref(built), ctypes.byref(driver), detail)
    why = error_text(library, code)
    if driver.value == 0:
        return f"{why}; there is no NVIDIA driver. Install one, or let this container use it."
    if driver.value // 1000 < built.value // 1000:
        needed = _DRIVERS.get(built.value // 1000)
        return (
            f"{why}; the kernels need CUDA {_release(built)}, the driver supports CUDA {_release(driver)}. Update the driver"
            f"{f' to {needed} or newer' if needed else ''}, or install the package again with nvcc of CUDA "
            f"{driver.value // 1000}."
        )
    return (
        f"{why}; the kernels need CUDA {_release(built)}, the driver supports CUDA {_release(driver)}. `nvidia-smi` names its "
        "devices, CUDA_VISIBLE_DEVICES may hide them."
    )


def _release(version: c_int32) -> str:
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def error_text(library: ctypes.CDLL, code: int) -> str:
    """Returns the text of a ``cudaError_t``."""
    return f"{library.glt_cuda_error_text(code).decode()} (CUDA error {code})"
