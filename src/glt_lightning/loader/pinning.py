"""Page-locking the memory of batches for asynchronous copies to a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import torch

from glt_lightning.base import NativeError
from glt_lightning.workers import PinMemory

_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every context, not only for that of one device
_OUT_OF_MEMORY = 2


def cuda_pin(device: torch.device | None = None) -> PinMemory:
    """What registers memory with the CUDA driver, from any thread. device: whom batches are for; None, or one that is no
    CUDA device: the one that is current now."""
    if device is None or device.type != "cuda" or device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return partial(_register, device)


def _register(device: torch.device, address: int, nbytes: int) -> Callable[[], None]:
    # A thread that never chose a device has cuda:0: batches are mapped by one that reads a socket.
    with torch.cuda.device(device):
        status = int(torch.cuda.cudart().cudaHostRegister(address, nbytes, _PORTABLE))
    if status != 0:
        why = " The host, or this container, has no memory left that can be locked." if status == _OUT_OF_MEMORY else ""
        raise NativeError(
            f"cannot page-lock {nbytes:,} bytes of batch memory (cudaHostRegister returned {status}).{why} Lower "
            "sampling.prefetch, or set sampling.pin_memory: false."
        )
    return partial(_unregister, device, address)


def _unregister(device: torch.device, address: int) -> None:
    """Waits for the device first: a copy that was started may still read this memory, and CUDA does not say that it would
    wait. Memory is unregistered when a slot grows and when a loader's session closes, not in every batch."""
    if sys.is_finalizing():
        return
    with torch.cuda.device(device):
        with suppress(RuntimeError):  # a device that failed copies nothing any more, and has been heard of
            torch.cuda.synchronize(device)
        torch.cuda.cudart().cudaHostUnregister(address)
