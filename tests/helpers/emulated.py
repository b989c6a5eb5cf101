"""The device library compiled for the host, and `Kernels` that run it: the whole path of a GPU, on a machine without one."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import shutil
import subprocess
from ctypes import c_int32, c_int64, c_uint32, c_uint64, c_void_p
from pathlib import Path

import pytest
import torch

from glt_lightning.kernels import Kernels
from glt_lightning.kernels.cuda.native import SIGNATURES

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


def _build(folder: Path) -> Path:
    """The library of these sources in ``folder``, built unless it is there: that takes 17 s of CPU time. Several processes may
    call it."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.fail("the emulated kernels need a C++ compiler, as the package itself does")
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"]
    flags += ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]  # what a device cannot do ends the tests
    flags += [f"-I{ROOT / 'cuda'}", f"-I{ROOT / 'cuda' / 'include'}"]
    source = ROOT / "tests" / "native" / "emulate.cpp"
    made_of = hashlib.sha256(repr(flags).encode())
    made_of.update(subprocess.run([compiler, "--version"], check=True, capture_output=True).stdout)
    for each in (source, *sorted(path for path in (ROOT / "cuda").rglob("*") if path.is_file())):
        made_of.update(each.read_bytes())
    path = folder / f"{made_of.hexdigest()[:16]}.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            for old in folder.glob("*.so"):
                old.unlink()
            built = path.with_suffix(".new")
            subprocess.run([compiler, *flags, str(source), "-o", str(built)], check=True, timeout=240)
            built.rename(path)
    return path


@pytest.fixture(scope="session")
def emulated(request, tmp_path_factory) -> ctypes.CDLL:
    cache = getattr(request.config, "cache", None)  # none with -p no:cacheprovider
    folder = tmp_path_factory.mktemp("emulated") if cache is None else cache.mkdir("emulated")
    library = ctypes.CDLL(str(_build(folder)))
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
