"""METIS in a child process, which can be ended at any moment and has malloc settings of its own.

In this process METIS could not be interrupted, and it replaces the handler of SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from glt_lightning.base import NativeError, PartitionError
from glt_lightning.kernels.metis import child as metis_child

OUT_OF_MEMORY = -3  # METIS_ERROR_MEMORY of metis.h
NEEDS = "it takes about 135 bytes per edge in each direction. Use partition.algorithm: streaming."

# Environment of glibc's malloc; other C libraries ignore it. METIS allocates and frees arrays of the size of the graph all the
# time. A third of its time went into mapping, clearing and unmapping pages; on one heap of huge pages, that time is saved.
_MALLOC = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 62),
    "MALLOC_TOP_PAD_": str(1 << 26),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def call_metis(library: Path, fd: int, nbytes: int, offsets: Mapping[str, int | None], call: Mapping[str, int]) -> int:
    """Calls METIS in a child process and returns its status. METIS reads and writes arrays in the memory ``fd``, at the offsets
    that `metis.child.part_graph` names.

    The child has ended when this returns or raises, and ends with this process.
    Raises `PartitionError` if the child is killed, `NativeError` if it ends in another way.
    """
    request = {"parent": os.getpid(), "library": str(library), "fd": fd, "bytes": nbytes}
    with _started(fd) as process:
        try:
            answer, complaints = process.communicate(json.dumps(request | {"offsets": offsets, "call": call}))
        except BaseException:
            process.kill()
            process.wait()
            raise
    if process.returncode == 0:
        return int(answer)
    raise _failure(process.returncode, complaints)


def _started(fd: int) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            # -P: files in the child's folder must not shadow modules of the standard library
            [sys.executable, "-S", "-P", metis_child.__file__],
            pass_fds=[fd],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=os.environ | _MALLOC,
            process_group=0,  # Ctrl-C goes to this process, which ends the child
        )
    except OSError as error:
        raise NativeError(
            f"METIS: its process could not be started: {error}. Use partition.algorithm: streaming."
        ) from error


def _failure(code: int, complaints: str) -> Exception:
    if code == -signal.SIGKILL:
        return PartitionError(
            f"METIS: its process was killed by SIGKILL, most likely by the kernel because memory ran out; {NEEDS}"
        )
    how = f"ended with exit code {code}"
    if code < 0:
        with suppress(ValueError):
            how = f"was killed by {signal.Signals(-code).name}"
    reason = complaints.strip().rpartition("\n")[2]
    return NativeError(
        f"METIS: its process {how}{f' ({reason})' if reason else ''}. Use partition.algorithm: streaming."
    )
