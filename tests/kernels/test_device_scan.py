"""The scan's kernel itself, with a fiber for each thread, in random orders of threads and of blocks."""

import ctypes
import shutil
import subprocess
from ctypes import c_int64, c_uint64, c_void_p
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def warps(tmp_path_factory) -> ctypes.CDLL:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.fail("the emulated kernel needs g++, as the package itself needs a compiler")
    path = tmp_path_factory.mktemp("warps") / "libwarps.so"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-fPIC", "-shared"]
    includes = [f"-I{ROOT / 'cuda'}", f"-I{ROOT / 'cuda' / 'include'}"]
    source = ROOT / "tests" / "native" / "emulate_warps.cpp"
    subprocess.run([compiler, *flags, *includes, str(source), "-o", str(path)], check=True, timeout=120)
    library = ctypes.CDLL(str(path))
    library.emulate_scan.argtypes = [c_uint64, c_int64, c_int64, *[c_void_p] * 4]
    return library


def check_scan(library: ctypes.CDLL, seed: int, bound: int, n: int) -> None:
    values = np.random.default_rng(seed).integers(0, 2**22, n).astype(np.uint32)  # their sum needs more than 32 bits
    before, total, calls = np.full(n, -1), np.zeros(1, dtype=np.int64), np.zeros(3, dtype=np.int64)
    arrays = [array.ctypes.data for array in (values, before, total, calls)]
    assert library.emulate_scan(seed, bound, n, *arrays) == 0
    sums = np.cumsum(values, dtype=np.int64)
    assert before.tolist() == (sums - values).tolist()
    assert total.tolist() == [sums[-1] if n else 0]
    assert calls.tolist() == [n, n, 1]  # of value, place and finish


@pytest.mark.parametrize(
    ("bound", "n"),
    [(0, 0), (1, 1), (5000, 0), (5000, 1), (31, 31), (33, 33), (1024, 1024), (1025, 1025), (9000, 1024), (4096, 4095)],
)
def test_sizes(warps, bound, n):
    check_scan(warps, n, bound, n)


@pytest.mark.parametrize("seed", range(6))
def test_orders_of_blocks(warps, seed):
    check_scan(warps, seed, 4000, 3333)


def test_more_tiles_than_a_warp_sees_at_once(warps):
    check_scan(warps, 3, 37 * 1024, 36 * 1024 + 5)
