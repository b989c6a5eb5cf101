"""Page-locking of batch memory, against a stand-in for torch's CUDA runtime."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
import torch

from glt_lightning.base import NativeError
from glt_lightning.loader.pinning import cuda_pin


class Runtime:
    """CUDA as `pinning` uses it. said: what was asked, with the device that was current in the thread."""

    def __init__(self) -> None:
        self.said: list[tuple] = []
        self.status = 0
        self._current = threading.local()

    @property
    def device(self) -> int:
        return getattr(self._current, "index", 0)

    @contextmanager
    def on(self, device: torch.device):
        before, self._current.index = self.device, device.index
        yield
        self._current.index = before

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        self.said.append(("register", self.device, address, nbytes, flags))
        return self.status

    def cudaHostUnregister(self, address: int) -> int:
        self.said.append(("unregister", self.device, address))
        return 0

    def synchronize(self, device: torch.device) -> None:
        self.said.append(("synchronize", device.index))
        if self.status:
            raise RuntimeError("CUDA error: an illegal memory access")


@pytest.fixture
def runtime(monkeypatch) -> Runtime:
    runtime = Runtime()
    for name, stand_in in {
        "cudart": lambda: runtime,
        "device": runtime.on,
        "current_device": lambda: runtime.device,
        "synchronize": runtime.synchronize,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return runtime


def test_a_thread_registers_for_the_device_of_the_batches(runtime):
    pin, undo = cuda_pin(torch.device("cuda", 3)), []
    thread = threading.Thread(target=lambda: undo.append(pin(4096, 100)))  # its own device is 0
    thread.start()
    thread.join()
    undo[0]()
    portable = 1
    assert runtime.said == [
        ("register", 3, 4096, 100, portable),
        ("synchronize", 3),  # copies from it may still run
        ("unregister", 3, 4096),
    ]


@pytest.mark.parametrize("device", [None, torch.device("cpu"), torch.device("cuda")])
def test_without_a_device_it_is_the_current_one_of_who_asks(runtime, device):
    with runtime.on(torch.device("cuda", 2)):
        pin = cuda_pin(device)
    pin(4096, 100)
    assert runtime.said[0][:2] == ("register", 2)


def test_a_device_that_failed_does_not_keep_memory_locked(runtime):
    undo = cuda_pin(torch.device("cuda", 1))(4096, 100)
    runtime.status = 700
    undo()
    assert runtime.said[-1] == ("unregister", 1, 4096)


@pytest.mark.parametrize(("status", "words"), [(2, "no memory left that can be locked"), (712, "returned 712")])
def test_what_cannot_be_locked_is_told(runtime, status, words):
    runtime.status = status
    with pytest.raises(NativeError, match=words) as error:
        cuda_pin(torch.device("cuda", 0))(4096, 1_000)
    assert "sampling.pin_memory: false" in str(error.value)
    assert "ulimit" not in str(error.value)
