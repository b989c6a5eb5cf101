"""A stream of a thread's own, and how what it makes comes to another stream."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


class SideStream:
    """A stream of ``device`` for one thread. On the CPU, which works in order, it is no stream at all."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def current(self) -> AbstractContextManager[object]:
        """Makes it the thread's current stream for a while, and ``device`` its current device for good: torch would go back
        to device 0, where a thread begins, and take some hundred MB of that one's memory."""
        if self._stream is None:
            return nullcontext()
        torch.cuda.set_device(self._device)
        return torch.cuda.stream(self._stream)

    def mark(self) -> Mark:
        """Where its work stands now."""
        event = None
        if self._stream is not None:
            event = torch.cuda.Event()
            event.record(self._stream)
        return Mark(self._device, event)


class Mark:
    """A point in the work of a stream."""

    def __init__(self, device: torch.device, event: torch.cuda.Event | None) -> None:
        self._device, self._event = device, event

    def hand_over(self, tensors: Iterable[Tensor]) -> None:
        """The current stream goes on behind this point, and may use the tensors, which the other stream made before it:
        their memory is not given out again until it has come past their last use."""
        if self._event is None:
            return
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._event)
        for tensor in tensors:
            tensor.record_stream(stream)


def wait_for(device: torch.device) -> None:
    """Waits until a device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
