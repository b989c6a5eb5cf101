"""Memory that a process frees stays in it, until it is returned to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SIZE = 64 << 20
_PROGRAM = f"""
import ctypes, sys
from glt_lightning.kernels import native as malloc

libc = ctypes.CDLL("libc.so.6")
libc.malloc.restype = ctypes.c_void_p

def kept():
    "Megabytes that remain in the process when a block is freed."
    def resident():
        return int(open("/proc/self/statm").read().split()[1]) * 4096
    before = resident()
    block = ctypes.c_void_p(libc.malloc({_SIZE}))
    ctypes.memset(block, 1, {_SIZE})
    libc.free(block)
    return round((resident() - before) / 1e6)

try:
    {{}}
except RuntimeError as error:
    print(error)
"""


def _run(body: str, **env: str) -> list[str]:
    code = _PROGRAM.format(body.replace("\n", "\n    "))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60)
    assert run.returncode == 0, run.stderr
    return run.stdout.split("\n")[:-1]


def test_freed_memory_is_kept_until_the_last_one_ends_it() -> None:
    body = (
        "print(kept())\nend_first, end_second = malloc.keep_freed_memory(), malloc.keep_freed_memory()\n"
        "print(kept())\nend_first()\nprint(kept())\nend_second()\nprint(kept())\nmalloc.keep_freed_memory()\nprint(kept())"
    )
    before, inside, twice, after, again = map(int, _run(body))
    assert min(inside, again) > 60
    assert max(before, twice, after) < 5  # the second block inside takes the place of the first
    body = "end_first, end_second = malloc.keep_freed_memory(), malloc.keep_freed_memory()\nend_first()\nprint(kept())"
    assert int(_run(body)[0]) > 60


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"MALLOC_MMAP_MAX_": "7"}, "the environment variable MALLOC_MMAP_MAX_ has settings of malloc"),
        ({"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1"}, "the environment variable GLIBC_TUNABLES has settings"),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, ""),
    ],
)
def test_settings_of_the_user_stay(env: dict[str, str], said: str) -> None:
    out = _run("malloc.keep_freed_memory()", **env)
    assert out[0].startswith(said) if said else not out


@pytest.mark.parametrize(
    ("libc", "said"),
    [
        ("object()", "the C library is not glibc"),
        ("type('L', (), dict(gnu_get_libc_version=0, mallopt=0, malloc=ctypes.CDLL(None).free))", "another allocator"),
    ],
)
def test_other_allocators_are_left_alone(libc: str, said: str) -> None:
    body = f"real, other = ctypes.CDLL, {libc}\nctypes.CDLL = lambda name: other if name else real(name)\n"
    assert _run(body + "malloc.keep_freed_memory()")[0].startswith(said)
