"""The emulated device as the ops see it, and its memory: every tensor that the ops make lies alone in an arena, of which
kernels may touch what was given out and nothing else."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_char_p, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from glt_lightning.kernels import Kernels
from glt_lightning.kernels.cuda.native import SIGNATURES

_ARENA_BYTES = 256 << 20
_GAP = 512  # as torch's allocator for CUDA aligns; what lies between two pieces was given to nobody
_FINDINGS_SHOWN = 5

_SIGNATURES = SIGNATURES | {
    "simt_scan": [c_int64, c_int64, *[c_void_p] * 7],
    "simt_arena": [c_uint64, c_uint64],
    "simt_give": [c_uint64, c_uint64],
    "simt_schedule": [c_uint64, c_int32, c_int32],
    "simt_plant": [c_char_p],
    "simt_kernel": [c_int64],
    "simt_launches": [c_char_p],
    "simt_finding": [c_int64],
}


class PtxKernels(Kernels):
    """The ops' door to the library. The device's memory is torch's of the CPU, moved into the arena."""

    def _launch(self, function: Callable[..., int], *values: int | None) -> int:
        return function(*values, None)

    def _call(self, function: Callable[..., int], *values: int | None) -> int:
        return function(*values)

    def scan(self, bound: int, *arguments: Tensor | int) -> None:
        self.run("simt_scan", bound, *arguments)


class PtxDevice:
    """The library and what it found."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        for name, arguments in _SIGNATURES.items():
            getattr(self._library, name).argtypes = arguments
        for name in ("simt_kernel", "simt_finding", "glt_cuda_error_text"):
            getattr(self._library, name).restype = c_char_p
        for name in ("simt_num_kernels", "simt_launches", "simt_num_findings"):
            getattr(self._library, name).restype = c_int64
        self.kernels = PtxKernels(self._library, torch.device("cpu"))
        names = [self._library.simt_kernel(k).decode() for k in range(self._library.simt_num_kernels())]
        self.kernel_names = [name for name in names if name]  # of those without a fault

    def launches(self) -> dict[str, int]:
        return {name: self._library.simt_launches(name.encode()) for name in self.kernel_names}

    @contextmanager
    def running(self, seed: int, *, fine: bool, races: bool, fault: str = "") -> Iterator[list[str]]:
        """The ops in here run on the device. The list has what it found when the block is left, by an error or not."""
        found: list[str] = []
        memory = mmap.mmap(-1, _ARENA_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        arena = torch.frombuffer(memory, dtype=torch.uint8)
        self._library.simt_arena(arena.data_ptr(), _ARENA_BYTES)
        self._library.simt_schedule(seed, fine, races)
        self._library.simt_plant(fault.encode())
        self._library.simt_forget_findings()
        try:
            with _InArena(arena, self._library.simt_give):
                yield found
        finally:
            count = self._library.simt_num_findings()
            found += [self._library.simt_finding(k).decode() for k in range(min(count, _FINDINGS_SHOWN))]
            self._library.simt_arena(0, 0)


class _InArena(TorchDispatchMode):
    """Moves what torch allocates into the arena. Fresh memory holds anything."""

    def __init__(self, arena: Tensor, give: Callable[[int, int], None]) -> None:
        super().__init__()
        self._arena, self._give, self._end = arena, give, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {t.untyped_storage().data_ptr() for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)}
        is_empty = func.overloadpacket in {torch.ops.aten.empty, torch.ops.aten.empty_strided}

        def moved(out: Tensor) -> Tensor:
            if out.numel() == 0 or out.untyped_storage().data_ptr() in given:  # a view, or what was written in place
                return out
            here = self._allocate(out)
            return here if is_empty else here.copy_(out)

        return tree_map_only(Tensor, moved, func(*args, **(kwargs or {})))

    def _allocate(self, like: Tensor) -> Tensor:
        nbytes = (1 + sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True))) * like.dtype.itemsize
        begin = -(-self._end // _GAP) * _GAP
        self._end = begin + nbytes + 1
        assert self._end <= len(self._arena), f"a case needs more than {_ARENA_BYTES:,} bytes"
        piece = self._arena[begin : begin + nbytes]
        piece.numpy()[:] = np.random.default_rng(begin).integers(0, 256)
        self._give(piece.data_ptr(), nbytes)
        return piece.view(like.dtype).as_strided(like.shape, like.stride())
