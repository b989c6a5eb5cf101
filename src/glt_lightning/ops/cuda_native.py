"""Loads the CUDA library and names its functions. Needs neither torch nor a device to be imported."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int32, c_int64, c_uint64, c_void_p
from functools import cache

from glt_lightning.errors import NativeError
from glt_lightning.ops.native import OK, library_path, load

NAME = "libglt_kernels_cuda.so"
SPARE_FANOUT = 64  # GLT_SPARE_FANOUT

_P, _N, _I, _K = c_void_p, c_int64, c_int32, c_uint64
_END = (_P, _P, _P)  # error, detail, stream

SIGNATURES: dict[str, list[type]] = {
    "glt_abi_version": [],
    "glt_cuda_device_count": [_P, _P],
    "glt_cuda_host_register": [_P, _N, _P, _P],
    "glt_cuda_host_unregister": [_P, _P],
    "glt_cuda_count_rows": [_P, _I, _P, _N, _I, _I, _P, *_END],
    "glt_cuda_pick_rows": [_P, _I, _P, _P, _N, _I, _K, _I, _I, _P, _N, _P, _P, _P, _P, *_END],
    "glt_cuda_user_ids": [_P, _I, _P, _N, _N, _P, _P, *_END],
    "glt_cuda_relabel_known": [_P, _N, _I, _P, _N, *_END],
    "glt_cuda_relabel_find": [_P, _N, _P, _P, _P, _N, _P, _P, *_END],
    "glt_cuda_relabel_number": [_P, _N, _P, _P, _P, _P, _N, _P, _N, _P, _P, *_END],
    "glt_cuda_khop_room": [_P, _P, _P, _P, _P, _P],
    "glt_cuda_khop": [_P, _P, _P, _K, _P, _N, _P, _P, _P, _P, *_END],
    "glt_cuda_gather": [_P, _P, _I, _N, _P, _N, _P, *_END],
    "glt_cuda_gather_decode": [_P, _P, _I, _I, _N, _P, _N, _P, *_END],
    "glt_cuda_rank_find": [_P, _N, _N, _P, _N, _P, _P, _P],
    "glt_cuda_spread_rows": [_P, _P, _I, _N, _N, _P, _I, _P, *_END],
}


@cache
def cuda_library() -> ctypes.CDLL:
    """The CUDA library, on a machine that can run it. Raises `NativeError` with what to do."""
    path = library_path(NAME)
    if not path.exists():
        raise NativeError(
            f"the CUDA kernels were not built: there is no {path}. Install the package where nvcc is found "
            "(`pip install . -C cmake.define.GLT_CUDA=ON` fails without it), or sample on the CPU."
        )
    library = load(NAME, SIGNATURES)
    library.glt_cuda_error_text.argtypes, library.glt_cuda_error_text.restype = [c_int32], c_char_p
    count, detail = c_int32(), (c_int64 * 4)()
    if library.glt_cuda_device_count(ctypes.byref(count), detail) != OK or count.value == 0:
        raise NativeError(
            f"no CUDA device can be used here: {error_text(library, detail[0])}. The driver is missing, or older than the CUDA "
            "toolkit that built the kernels; `nvidia-smi` names its version. Update it, or sample on the CPU."
        )
    return library


def error_text(library: ctypes.CDLL, code: int) -> str:
    """A ``cudaError_t`` in words."""
    return f"{library.glt_cuda_error_text(code).decode()} (CUDA error {code})"
