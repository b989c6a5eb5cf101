"""The device library compiled for the host, and `Kernels` that run it: the whole path of a GPU, on a machine without one."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import subprocess
from ctypes import c_int32, c_int64, c_uint32, c_uint64, c_void_p
from pathlib import Path

import pytest
import torch

from glt_lightning.ops.cuda.kernels import Kernels
from glt_lightning.ops.cuda.native import SIGNATURES

ROOT = Path(__file__).parents[2]


class EmulatedKernels(Kernels):
    def _launch(self, function, *values):
        return function(*values, None)

    def _call(self, function, *values):
        return function(*values)

    def schedule(self, seed: int, threads: int = 1, nested: int = 0) -> None:
        self._library.emulate_schedule(seed, threads, nested)

    def device_has(self, capability: int, built: bool) -> None:
        """The compute capability of the device, and whether there are kernels for it."""
        self._library.emulate_device(capability, built)

    def lockable(self, nbytes: int) -> None:
        """How much host memory can be registered from now on."""
        self._library.emulate_lockable(nbytes)


@pytest.fixture(scope="session")
def emulated(tmp_path_factory) -> ctypes.CDLL:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.fail("the emulated kernels need a C++ compiler, as the package itself does")
    path = tmp_path_factory.getbasetemp() / "libemulated.so"
    if (
        "PYTEST_XDIST_WORKER" in os.environ
    ):  # the parent folder is that of the whole run: one build for all its processes
        path = path.parent.parent / path.name
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"]
    flags += ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]  # what a device cannot do ends the tests
    source = ROOT / "tests" / "native" / "emulate.cpp"
    includes = [f"-I{ROOT / 'cuda'}", f"-I{ROOT / 'cuda' / 'include'}"]
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            built = path.with_suffix(".new")
            subprocess.run([compiler, *flags, *includes, str(source), "-o", str(built)], check=True, timeout=240)
            built.rename(path)
    library = ctypes.CDLL(str(path))
    extra = {
        "emulate_schedule": [c_uint64, c_int32, c_int32],
        "emulate_device": [c_int32, c_int32],
        "emulate_lockable": [c_int64],
        "emulate_enter": [c_void_p, c_int64, c_void_p, c_int64, c_void_p],
        "emulate_lanes": [c_uint64, c_uint32, c_uint32, c_void_p],
        "emulate_picks": [c_uint64, c_uint32, c_uint32, c_int32, c_void_p, c_void_p],
    }
    for name, arguments in (SIGNATURES | extra).items():
        getattr(library, name).argtypes = arguments
    library.glt_cuda_error_text.restype = ctypes.c_char_p
    return library


@pytest.fixture
def kernels(emulated) -> EmulatedKernels:
    kernels = EmulatedKernels(emulated, torch.device("cpu"))
    kernels.schedule(0)
    kernels.device_has(90, built=True)
    kernels.lockable(2**62)
    return kernels
