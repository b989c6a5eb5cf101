"""Streams of threads, and the handover of their tensors to other streams."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from ctypes import addressof, c_int32

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DataError, NativeError
from glt_lightning.kernels.cuda.native import cuda_library, error_text
from glt_lightning.kernels.native import CUDA, check


class SideStream:
    """A stream of ``device`` for one thread. On the CPU, which works in order, it does nothing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def current(self) -> AbstractContextManager[object]:
        """Makes this the thread's current stream for a block, and ``device`` its current device for good: torch would return to
        device 0, the default of a new thread, and take some hundred MB of memory there."""
        if self._stream is None:
            return nullcontext()
        torch.cuda.set_device(self._device)
        return torch.cuda.stream(self._stream)

    def mark(self) -> Mark:
        """Returns the current point in the stream's work."""
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
        """Lets the current stream use tensors that the other stream made before this point: it waits for the point, and their
        memory is not reused until it has finished its work on them."""
        if self._event is None:
            return
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._event)
        for tensor in tensors:
            tensor.record_stream(stream)


def wait_for(device: torch.device) -> None:
    """Waits until a device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# The native ops on a CUDA device: tensors for memory, the current stream for work, the same results as on the CPU.


_COPY_BYTES = 1 << 26  # host memory at a time when a mapped array goes to the device


class Kernels:
    """The functions of the CUDA library, on one device."""

    def __init__(self, library: ctypes.CDLL, device: torch.device) -> None:
        self._library, self.device = library, device

    @classmethod
    def open(cls, device: torch.device | str) -> Kernels:
        """Loads the library for a device. Raises `NativeError` if the library was not built, there is no driver, or the device is
        no CUDA device."""
        device = torch.device(device)
        if device.type != "cuda":
            raise NativeError(
                f"device: expected a CUDA device, got {str(device)!r}. The ops of the CPU are in glt_lightning.kernels."
            )
        library = cuda_library()
        if not torch.cuda.is_available():
            raise NativeError(
                "this torch cannot use CUDA (torch.cuda.is_available() is False). Install a CUDA build of torch."
            )
        index, count = torch.cuda.current_device() if device.index is None else device.index, torch.cuda.device_count()
        if index >= count:
            raise NativeError(
                f"device: there is no {str(device)!r}; CUDA devices here: {count}, from cuda:0 on. CUDA_VISIBLE_DEVICES may "
                "hide others."
            )
        kernels = cls(library, torch.device("cuda", index))
        kernels.require_built_for_device()
        return kernels

    def require_built_for_device(self) -> None:
        """Raises `NativeError` if the library has no kernels for a device of this kind."""
        capability = c_int32()
        try:
            self.ask("glt_cuda_capability", addressof(capability))
        except NativeError as error:
            major, minor = divmod(capability.value, 10)
            raise NativeError(
                f"{self.device} has compute capability {major}.{minor}, and the CUDA kernels cannot run there: {error} They "
                "need 8.0 or newer, and are built for the devices that GLT_CUDA_ARCHITECTURES says (`pip install . -C "
                f"cmake.define.GLT_CUDA_ARCHITECTURES={capability.value}`). Or sample on the CPU."
            ) from None

    def run(self, name: str, *arguments: Tensor | int | None) -> None:
        """Queues one call. Tensors are passed by their addresses; detail and stream are added."""
        self._checked(name, self._launch, arguments)

    def ask(self, name: str, *arguments: int | None) -> None:
        """Makes a call that queues nothing. Addresses are the host's; detail is added."""
        self._checked(name, self._call, arguments)

    def _checked(self, name: str, how: Callable[..., int], arguments: Sequence[Tensor | int | None]) -> None:
        detail = np.zeros(4, dtype=np.int64)
        values = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
        status = how(getattr(self._library, name), *values, detail.ctypes.data)
        if status == CUDA:
            raise NativeError(f"{name}: {error_text(self._library, int(detail[0]))}.")
        check(status, detail, name)

    def _launch(self, function: Callable[..., int], *values: int | None) -> int:
        with torch.cuda.device(self.device):
            return function(*values, torch.cuda.current_stream().cuda_stream)

    def _call(self, function: Callable[..., int], *values: int | None) -> int:
        with torch.cuda.device(self.device):
            return function(*values)

    def empty(self, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def zeros(self, n: int) -> Tensor:
        return torch.zeros(n, dtype=torch.int64, device=self.device)

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Allocates page-locked host memory for copies to and from the device. torch reuses it only when they are finished."""
        return torch.empty(shape, dtype=dtype, pin_memory=self.device.type == "cuda")

    def put(self, array: np.ndarray) -> Tensor:
        """Copies a small array to the device, on the current stream. Does not wait."""
        pinned = self.pinned(*array.shape, dtype=getattr(torch, array.dtype.name))
        pinned.numpy()[...] = array
        return pinned.to(self.device, non_blocking=True)

    def new_error(self) -> Tensor:
        """Makes an error record, int64 [5], into which kernels write a status and its detail."""
        return self.zeros(5)

    def raise_error(self, error: Tensor, what: str) -> None:
        """Raises the error that kernels wrote into ``error``, if any. Waits for them unless it is on the host."""
        raise_if(error.tolist(), what)

    def fetch(self, values: Tensor) -> np.ndarray:
        """Copies values to the host's memory. Waits for the device."""
        return HostCopy(values, self).wait().copy()

    @staticmethod
    def read(*tensors: Tensor) -> list[int]:
        """Returns the values of int64 tensors of one device. Waits for the device, as `HostCopy` does, and nothing else."""
        return torch.cat([t.reshape(-1) for t in tensors]).tolist()

    def copy(self, array: np.ndarray) -> Tensor:
        """Copies an array, such as a mapped file, to the device, through a bounded piece of host memory."""
        array = array.view(np.int64) if array.dtype == np.uint64 else array
        out = torch.empty(array.shape, dtype=getattr(torch, array.dtype.name), device=self.device)
        step = max(1, _COPY_BYTES // max(1, array[:1].nbytes))
        for begin in range(0, len(array), step):
            out[begin : begin + step].copy_(torch.from_numpy(array[begin : begin + step].copy()))
        return out

    def require_ids(self, ids: Tensor, name: str) -> Tensor:
        if ids.dtype != torch.int64 or ids.dim() != 1 or ids.device != self.device:
            raise DataError(
                f"{name}: expected int64 [n] on {self.device}, got {str(ids.dtype).removeprefix('torch.')} "
                f"{list(ids.shape)} on {ids.device}."
            )
        return ids.contiguous()


def kernels_of(where: Kernels | torch.device | str) -> Kernels:
    return where if isinstance(where, Kernels) else Kernels.open(where)


def raise_if(error: list[int], what: str) -> None:
    check(error[0], np.array(error[1:]), what)


class HostCopy:
    """A copy of a tensor to the host, queued on the current stream behind its earlier work."""

    def __init__(self, values: Tensor, kernels: Kernels) -> None:
        self._host = kernels.pinned(len(values), dtype=values.dtype)
        self._host.copy_(values, non_blocking=True)
        self._done = None
        if values.is_cuda:
            self._done = torch.cuda.Event(blocking=True)  # to wait for it takes no core
            self._done.record(torch.cuda.current_stream(values.device))

    def wait(self) -> np.ndarray:
        if self._done is not None:
            self._done.synchronize()
        return self._host.numpy()
