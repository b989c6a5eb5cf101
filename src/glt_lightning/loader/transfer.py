"""Asynchronous copies of batches to a GPU out of recycled page-locked memory."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from glt_lightning.loader.collate import Batch


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
