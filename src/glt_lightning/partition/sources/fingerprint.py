"""Names and fingerprints of data sets."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

# Files up to this size are known by their content wherever they lie; larger ones by size and time of change.
HASHED_BYTES = 64 << 20


def folder_name(text: str) -> str:
    """``text`` made fit for a folder's name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("._-") or "graph"


def file_fingerprint(*paths: Path, times: bool = True) -> str:
    """Fingerprint of files, in the order given; the folder they lie in does not matter.

    times: whether the time of change counts for large files.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        stat = path.stat()
        digest.update(f"{path.name}:{stat.st_size}:".encode())
        if stat.st_size <= HASHED_BYTES:
            digest.update(path.read_bytes())
        elif times:
            digest.update(str(stat.st_mtime_ns).encode())
    return digest.hexdigest()


def array_fingerprint(arrays: Iterable[tuple[str, np.ndarray]]) -> str:
    """Fingerprint of named arrays in memory."""
    digest = hashlib.blake2b(digest_size=16)
    for name, array in arrays:
        digest.update(f"{name}:{array.dtype.str}:{array.shape}:".encode())
        digest.update(memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))
    return digest.hexdigest()
