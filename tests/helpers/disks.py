"""A disk that is full soon."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

SIZE = 32 << 10


@contextlib.contextmanager
def full_soon(folder: Path, size: int = SIZE) -> Iterator[None]:
    """In the ``with`` block ``folder`` takes ``size`` bytes and no more. Where this user may not mount file systems, no file of
    this process may grow beyond that."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", os.fspath(folder)]
    if os.getuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0:
        try:
            yield
        finally:
            subprocess.run(["umount", os.fspath(folder)], check=True)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
