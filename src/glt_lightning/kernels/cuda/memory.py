"""Host memory that a CUDA device reads in place, over the bus."""

from __future__ import annotations

import resource
import weakref
from ctypes import addressof, c_void_p

import numpy as np

from glt_lightning.base import DataError, NativeError
from glt_lightning.kernels.cuda.kernels import Kernels

_PAGE_BYTES = resource.getpagesize()


class Registered:
    """Locks host memory and maps it for a device. Close it when the device is done with all work that reads it; one that is
    dropped unlocks its memory, too, before that is unmapped. Either waits for the device.

    memory: uint8 [nbytes], writable, beginning at a page, registered once in this process; referenced until closed.
    Raises `NativeError` where it cannot be locked.
    """

    def __init__(self, kernels: Kernels, memory: np.ndarray) -> None:
        if memory.dtype != np.uint8 or memory.ndim != 1 or not memory.flags.c_contiguous or not memory.flags.writeable:
            raise DataError(
                f"memory: expected writable, contiguous uint8 [nbytes], got {memory.dtype} {list(memory.shape)}"
                f"{'' if memory.flags.writeable else ', read-only'}."
            )
        self._first, self.nbytes = memory.ctypes.data, memory.nbytes
        if self.nbytes and self._first % _PAGE_BYTES:
            raise DataError(
                f"memory: expected an address that begins a page of {_PAGE_BYTES:,} bytes, got {self._first:#x}."
            )
        self._on_device = self._register(kernels) if self.nbytes else 0
        self._unlock = weakref.finalize(self, _unlock, kernels, memory)
        self._unlock.atexit = False

    def _register(self, kernels: Kernels) -> int:
        on_device = c_void_p()
        try:
            kernels.ask("glt_cuda_host_register", self._first, self.nbytes, addressof(on_device))
        except NativeError as error:
            raise NativeError(
                f"{self.nbytes:,} bytes of host memory could not be page-locked for {kernels.device}: {error} The host, and the "
                "memory limit of the container, must have that much free. Free memory, raise the limit, use a smaller graph, or "
                "set sampling.topology and sampling.features to device or cpu."
            ) from None
        return int(on_device.value or 0)

    def address_of(self, array: np.ndarray) -> int:
        """Where the device reads an array (contiguous) that lies in this memory. Valid until closed."""
        return self._address(array, array.nbytes if array.flags.c_contiguous else None)

    def address_of_rows(self, array: np.ndarray) -> int:
        """As `address_of`; between the rows of the array, each contiguous, may lie other bytes (``strides[0]``)."""
        row = array[:1]
        if not row.flags.c_contiguous or (len(array) > 1 and array.strides[0] < row.nbytes):
            return self._address(array, None)
        return self._address(array, (len(array) - 1) * array.strides[0] + row.nbytes if array.nbytes else 0)

    def _address(self, array: np.ndarray, extent: int | None) -> int:
        """extent: bytes from the first to the last of the array; None: its memory layout is not one that the caller may have."""
        if not self._unlock.alive:
            raise NativeError("memory: this registered memory was closed, so the device can no longer read it.")
        offset = array.ctypes.data - self._first if extent else 0
        if extent is None or offset < 0 or offset + extent > self.nbytes:
            raise DataError(
                f"array: expected a contiguous one within the {self.nbytes:,} bytes registered, got {array.dtype} "
                f"{list(array.shape)}, strides {list(array.strides)}, at byte {offset:,}."
            )
        return self._on_device + offset

    def close(self) -> None:
        """Unlocks the memory. Safe to call twice, also after an error."""
        self._unlock()

    def __enter__(self) -> Registered:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _unlock(kernels: Kernels, memory: np.ndarray) -> None:
    if memory.nbytes:
        kernels.ask("glt_cuda_host_unregister", memory.ctypes.data)
