"""Host memory that a device reads in place."""

import mmap
import weakref

import numpy as np
import pytest

from glt_lightning.base import DataError, NativeError
from glt_lightning.kernels import Registered

PAGE = mmap.PAGESIZE


def pages(count: int) -> np.ndarray:
    return np.frombuffer(mmap.mmap(-1, count * PAGE), dtype=np.uint8)


def test_arrays_inside_have_addresses(kernels):
    memory = pages(2)
    with Registered(kernels, memory) as registered:
        inside = memory[24:80].view(np.float64)
        assert registered.nbytes == 2 * PAGE
        assert registered.address_of(inside) - registered.address_of(memory) == 24
        assert registered.address_of(memory) == memory.ctypes.data  # what is emulated has the same addresses
        assert registered.address_of(inside[:0]) == registered.address_of(memory)
        for outside in (np.zeros(3), memory[::2]):
            with pytest.raises(DataError, match=f"expected a contiguous one within the {2 * PAGE:,} bytes"):
                registered.address_of(outside)


def test_rows_inside_may_lie_apart(kernels):
    memory = pages(2)
    apart = memory.reshape(-1, 128)[:, :100].view(np.float32)
    with Registered(kernels, memory) as registered:
        for rows in (apart, apart[3:], apart[:1], apart[:0], apart.reshape(-1, 5, 5), memory):
            first = rows.ctypes.data if rows.size else memory.ctypes.data
            assert registered.address_of_rows(rows) == first
        beyond = np.lib.stride_tricks.as_strided(apart, (len(apart) + 1, 25), apart.strides)
        for other in (apart[:, ::2], apart[::-1], apart.T, beyond, np.zeros((3, 4))):
            with pytest.raises(DataError, match="array: expected"):
                registered.address_of_rows(other)
        with pytest.raises(DataError, match="expected a contiguous one"):
            registered.address_of(apart)


def test_closing_unlocks_once(kernels):
    memory = pages(1)
    registered = Registered(kernels, memory)
    with pytest.raises(NativeError, match="CUDA error 712"):  # it is locked
        Registered(kernels, memory)
    registered.close()
    registered.close()
    with pytest.raises(NativeError, match="was closed"):
        registered.address_of(memory)
    Registered(kernels, memory).close()


def test_no_memory_is_fine(kernels):
    with Registered(kernels, np.empty(0, np.uint8)) as registered:
        assert registered.address_of(np.empty(0)) == 0


def test_memory_that_cannot_be_locked(kernels):
    kernels.lockable(PAGE)
    with pytest.raises(
        NativeError, match=rf"{2 * PAGE:,} bytes of host memory could not be page-locked for cpu: "
    ) as said:
        Registered(kernels, pages(2))
    assert "memory limit of the container" in str(said.value)
    assert "sampling.topology" in str(said.value)
    Registered(kernels, pages(1)).close()


@pytest.mark.parametrize(
    "memory",
    [
        np.zeros(PAGE, np.int8),
        np.zeros((2, PAGE), np.uint8),
        pages(1)[::2],
        np.frombuffer(bytes(PAGE), dtype=np.uint8),
        pages(2)[1:],
    ],
)
def test_memory_of_another_kind_is_refused(kernels, memory):
    with pytest.raises(DataError, match="memory: expected"):
        Registered(kernels, memory)


def test_one_that_is_dropped_unlocks_its_memory(kernels):
    memory = pages(1)
    Registered(kernels, memory).address_of(memory)
    Registered(kernels, memory).close()


def test_a_device_that_failed_keeps_no_memory(kernels, monkeypatch):
    memory = pages(1)
    registered, kept = Registered(kernels, memory), weakref.ref(memory)
    ask = kernels.ask

    def fail(name, *arguments):
        ask(name, *arguments)
        raise NativeError("CUDA error 719")

    monkeypatch.setattr(kernels, "ask", fail)
    del memory
    with pytest.raises(NativeError, match="719"):
        registered.close()
    registered.close()
    assert kept() is None
