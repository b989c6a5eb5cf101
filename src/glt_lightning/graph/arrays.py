"""Arrays of a partition folder: ``.npy`` files that are read through memory maps."""

from __future__ import annotations

import io
import math
import os
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from glt_lightning.base import PartitionError
from glt_lightning.graph.manifest import ArrayEntry
from glt_lightning.graph.regular_file import open_regular
from glt_lightning.kernels import map_file, map_limit

# Arrays up to this size are verified whenever they are opened: their cost is a few milliseconds, and they hold the row
# pointers of small graphs and the splits. Verifying larger ones would read the whole graph at each start.
VERIFY_BYTES = 16 << 20

_CHUNK = (
    256 << 10
)  # bytes read at once: they stay in a processor's cache, and reading takes half the time of larger pieces


def open_array(folder: str | Path, path: str, entry: ArrayEntry, *, large_pages: bool = False) -> np.ndarray:
    """Maps ``folder/path`` read-only after checking it against its manifest entry. large_pages: as for `map_file`.

    Raises `PartitionError` that names the file when it is missing, truncated, has another dtype or shape, or (up to
    `VERIFY_BYTES`) does not match its checksum.
    """
    file = Path(folder) / path
    with _opened(file) as stream:
        offset = _check_header(file, stream, entry)
        if math.prod(entry.shape) == 0:  # an empty range cannot be mapped
            array: np.ndarray = np.empty(entry.shape, entry.dtype)
        else:
            mapped = map_file(stream.fileno(), entry.bytes, file, large_pages=large_pages)
            array = mapped[offset:].view(entry.dtype).reshape(entry.shape)
        if entry.bytes <= VERIFY_BYTES:
            _check_sum(file, stream, offset, entry)
    return array


def verify_array(
    folder: str | Path, path: str, entry: ArrayEntry, take: Callable[[memoryview], object] | None = None
) -> None:
    """Reads all of ``folder/path`` and raises `PartitionError` unless it matches its manifest entry. take: called with the data,
    piece by piece."""
    file = Path(folder) / path
    with _opened(file) as stream:
        _check_sum(file, stream, _check_header(file, stream, entry), entry, take)


def check_header(
    folder: str | Path, path: str, entry: ArrayEntry, opens: Callable[[Path], io.BufferedReader] = open_regular
) -> None:
    """Raises `PartitionError` unless ``folder/path`` has the size and the header of its manifest entry."""
    file = Path(folder) / path
    with _opened(file, opens) as stream:
        _check_header(file, stream, entry)


@contextmanager
def _opened(file: Path, opens: Callable[[Path], io.BufferedReader] = open_regular) -> Iterator[io.BufferedReader]:
    """Opens a file for a block, and turns an OSError of either into a `PartitionError` with the file's name."""
    try:
        with opens(file) as stream:
            yield stream
    except FileNotFoundError:
        raise PartitionError(f"{file}: not found. Copy this part here or partition again.") from None
    except OSError as error:
        raise PartitionError(f"{file}: cannot be read ({error.strerror}). {map_limit(error)}".rstrip()) from None


def _check_header(file: Path, stream: io.BufferedReader, entry: ArrayEntry) -> int:
    """Checks size and header of a file. Returns the offset of its data in bytes."""
    size = os.fstat(stream.fileno()).st_size
    if size != entry.bytes:
        raise _damaged(file, f"it has {size} bytes, the manifest says {entry.bytes}")
    try:
        shape, fortran, dtype = read_npy_header(stream)
    except (ValueError, RecursionError, MemoryError) as error:  # the last two for a header that is nested too deep
        raise _damaged(file, f"it has no readable .npy header ({error})") from None
    offset = stream.tell()
    if dtype.str != entry.dtype or shape != entry.shape:
        raise _damaged(file, f"it is {dtype.str} {list(shape)}, the manifest says {entry.dtype} {list(entry.shape)}")
    if fortran and len(shape) > 1:
        raise _damaged(file, "its rows are not contiguous (Fortran order)")
    if size - offset != dtype.itemsize * math.prod(shape):
        raise _damaged(file, f"its {size - offset} bytes of data do not make up {dtype.str} {list(shape)}")
    return offset


# numpy reads headers with ast.literal_eval, which in CPython 3.11 fails now and then when several threads do that
# ("SystemError: AST constructor recursion depth mismatch").
_one_header_at_a_time = threading.Lock()


def read_npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Reads (shape, Fortran order, dtype) of the array that begins at the position of ``stream``. Threads may do so at once.

    Raises ValueError if there is none.
    """
    version = np.lib.format.read_magic(stream)
    with _one_header_at_a_time:
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(stream)
        if version == (2, 0):
            return np.lib.format.read_array_header_2_0(stream)
    raise ValueError(f"npy version {version}; versions 1.0 and 2.0 can be read")


def _check_sum(
    file: Path,
    stream: io.BufferedReader,
    offset: int,
    entry: ArrayEntry,
    take: Callable[[memoryview], object] | None = None,
) -> None:
    crc, buffer = 0, memoryview(bytearray(min(_CHUNK, entry.bytes)))
    stream.seek(offset)
    while got := stream.readinto(buffer):
        crc = zlib.crc32(buffer[:got], crc)
        if take is not None:
            take(buffer[:got])
    if crc != entry.crc32:
        raise _damaged(file, f"checksum {crc:08x}, the manifest says {entry.crc32:08x}")


def _damaged(file: Path, reason: str) -> PartitionError:
    return PartitionError(f"{file}: damaged: {reason}. Delete the partition folder and partition again.")
