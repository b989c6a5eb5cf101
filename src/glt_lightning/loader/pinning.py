"""Copies of batches to a GPU: asynchronous, out of recycled page-locked memory."""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch

from glt_lightning.base import NativeError
from glt_lightning.loader.collate import Batch
from glt_lightning.workers import PinMemory


class CopiesInFlight:
    """Keeps batches alive until the copies from their memory are done.

    A batch's memory is used again as soon as the batch is gone, and an asynchronous copy reads it later than the call
    that started it. So each batch is held together with an event of the stream that copies it.
    """

    def __init__(self) -> None:
        self._held: deque[tuple[torch.cuda.Event, Any]] = deque()

    def copy(self, batch: Batch, device: torch.device) -> Batch:
        """Starts copying ``batch`` to the CUDA ``device`` on its current stream; returns the copy. A batch that the device
        made itself comes back as it is."""
        self.release()
        if _is_on(batch, device):
            return batch
        with self.held(batch, device):
            return copy.copy(batch).to(device, non_blocking=True)

    @contextmanager
    def held(self, batch: Any, device: torch.device) -> Iterator[None]:
        """Keeps the memory of a batch that is copied to ``device`` in here, on its current stream."""
        if device.type == "cpu":
            yield
            return
        self.release()
        kept = copy.copy(batch)  # PyG moves in place
        yield
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        self._held.append((event, kept))

    def release(self) -> None:
        """Forgets the batches whose copies are done. Never waits."""
        while self._held and self._held[0][0].query():
            self._held.popleft()

    def clear(self) -> None:
        """Forgets all batches; whoever lets go of their memory waits for the device first."""
        self._held.clear()


def _is_on(batch: Batch, device: torch.device) -> bool:
    tensors = (value for store in batch.stores for value in store.values() if isinstance(value, torch.Tensor))
    return all(tensor.device == device for tensor in tensors)


# Page-locking the memory of batches for asynchronous copies to a GPU.


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
