"""Page-locking the memory of batches for asynchronous copies to a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from glt_lightning.errors import NativeError


def cuda_pin(address: int, nbytes: int) -> Callable[[], None]:
    """Registers memory with the CUDA driver; returns what unregisters it."""
    runtime = torch.cuda.cudart()
    status = runtime.cudaHostRegister(address, nbytes, 0)
    if int(status) != 0:
        raise NativeError(
            f"cannot page-lock {nbytes:,} bytes of batch memory (cudaHostRegister returned {int(status)}). "
            "Raise the limit of locked memory (ulimit -l) or set sampling.pin_memory: false."
        )
    return lambda: runtime.cudaHostUnregister(address)
