"""Arrays of a partition folder: ``.npy`` files that are written as a stream and read through memory maps."""

from __future__ import annotations

import errno
import io
import math
import os
import shutil
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np

from glt_lightning.base import PartitionError
from glt_lightning.graph.chunk_hashes import ChunkHasher, chunk_ranges, join_crcs
from glt_lightning.graph.manifest import ArrayEntry
from glt_lightning.graph.regular_file import open_below, open_regular
from glt_lightning.kernels import map_file, map_limit

# The data of every file begins at a page: a map of it is aligned for any dtype, for direct I/O and for page-locking.
DATA_OFFSET = 4096
# Arrays up to this size are verified whenever they are opened: their cost is a few milliseconds, and they hold the row
# pointers of small graphs and the splits. Verifying larger ones would read the whole graph at each start.
VERIFY_BYTES = 16 << 20

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # disk, quota, or file size limit
_CHUNK = 8 << 20  # bytes read or written at once
_HASHED_AT_ONCE = 1 << 18  # bytes that stay in a core's cache between their two hashes


def open_array(folder: str | Path, path: str, entry: ArrayEntry) -> np.ndarray:
    """Maps ``folder/path`` read-only after checking it against its manifest entry.

    Raises `PartitionError` that names the file when it is missing, truncated, has another dtype or shape, or (up to
    `VERIFY_BYTES`) does not match its checksum.
    """
    file = Path(folder) / path
    with _opened(file) as stream:
        offset = _check_header(file, stream, entry)
        if math.prod(entry.shape) == 0:  # an empty range cannot be mapped
            array: np.ndarray = np.empty(entry.shape, entry.dtype)
        else:
            array = map_file(stream.fileno(), entry.bytes, file)[offset:].view(entry.dtype).reshape(entry.shape)
        if entry.bytes <= VERIFY_BYTES:
            _check_sum(file, stream, offset, entry)
    return array


def verify_array(folder: str | Path, path: str, entry: ArrayEntry) -> None:
    """Reads all of ``folder/path`` and raises `PartitionError` unless it matches its manifest entry."""
    file = Path(folder) / path
    with _opened(file) as stream:
        _check_sum(file, stream, _check_header(file, stream, entry), entry)


def check_header(folder: str | Path, path: str, entry: ArrayEntry, *, links: bool = True) -> None:
    """Raises `PartitionError` unless ``folder/path`` has the size and the header of its manifest entry. links: follow links."""
    file = Path(folder) / path
    with _opened(file) if links else _speaks(file, lambda: io.BufferedReader(open_below(folder, path))) as stream:
        _check_header(file, stream, entry)


def hash_array(folder: str | Path, path: str, entry: ArrayEntry) -> tuple[str, ...]:
    """Computes the digests of the chunks of ``folder/path``. Raises `PartitionError` unless it matches its manifest entry."""
    file, hasher = Path(folder) / path, ChunkHasher()
    with _opened(file) as stream:
        _check_sum(file, stream, _check_header(file, stream, entry), entry, hasher)
    return hasher.digests()


def _opened(file: Path) -> AbstractContextManager[io.BufferedReader]:
    return _speaks(file, lambda: open_regular(file))


@contextmanager
def _speaks(file: Path, opens: Callable[[], io.BufferedReader]) -> Iterator[io.BufferedReader]:
    """Opens a file for a block, and turns an OSError of either into a `PartitionError` with the file's name."""
    try:
        with opens() as stream:
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
one_npy_header_at_a_time = threading.Lock()


def read_npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Reads (shape, Fortran order, dtype) of the array that begins at the position of ``stream``. Threads may do so at once.

    Raises ValueError if there is none.
    """
    version = np.lib.format.read_magic(stream)
    with one_npy_header_at_a_time:
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(stream)
        if version == (2, 0):
            return np.lib.format.read_array_header_2_0(stream)
    raise ValueError(f"npy version {version}; versions 1.0 and 2.0 can be read")


def _check_sum(
    file: Path, stream: io.BufferedReader, offset: int, entry: ArrayEntry, hasher: ChunkHasher | None = None
) -> None:
    crc = 0
    stream.seek(offset)
    while chunk := stream.read(_CHUNK):
        crc = zlib.crc32(chunk, crc)
        if hasher is not None:
            hasher.update(memoryview(chunk))
    if crc != entry.crc32:
        raise _damaged(file, f"checksum {crc:08x}, the manifest says {entry.crc32:08x}")


def _damaged(file: Path, reason: str) -> PartitionError:
    return PartitionError(f"{file}: damaged: {reason}. Delete the partition folder and partition again.")


@contextmanager
def disk_full_speaks(
    folder: Path, needed: int, advice: str = "choose another folder (partition.dir)"
) -> Iterator[None]:
    """Turns "no space left" into a `PartitionError` that names the folder, the bytes needed and the bytes free."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        place = folder if folder.exists() else folder.parent
        free = shutil.disk_usage(place).free
        raise PartitionError(
            f"{folder}: cannot write ({error.strerror}): {needed:,} bytes needed, {free:,} free. "
            f"Free some space or {advice}."
        ) from error


class ArrayWriter:
    """Streams rows into a ``.npy`` file: header first, data from `DATA_OFFSET`, CRC-32 and hashes of chunks on the way.

    hashed: the entry gets hashes of chunks. Files that are not copied elsewhere need none.
    The number of rows is known when the writer is closed; then the header is written again.

    >>> with ArrayWriter(folder, "part0/nodes/0/x.npy", np.float32, (100,)) as writer:   # doctest: +SKIP
    ...     writer.write(rows)
    >>> writer.entry                                                                     # doctest: +SKIP
    """

    def __init__(
        self,
        folder: str | Path,
        path: str,
        dtype: np.dtype | type,
        row_shape: tuple[int, ...] = (),
        *,
        hashed: bool = True,
    ) -> None:
        self.path = path
        self.entry: ArrayEntry | None = None
        self._file = Path(folder) / path
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._row_shape = row_shape
        self._rows = 0
        self._crc = 0
        self._hasher = ChunkHasher() if hashed else None
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with disk_full_speaks(self._file.parent, DATA_OFFSET):
            self._stream = open(self._file, "wb", buffering=0)  # noqa: SIM115 - closed by close()
            self._write_bytes(memoryview(self._header()))

    def write(self, rows: np.ndarray) -> None:
        """Appends rows [n, *row_shape], converted to the writer's dtype."""
        if rows.shape[1:] != self._row_shape:
            raise ValueError(f"{self.path}: rows of shape {rows.shape[1:]}, expected {self._row_shape}")
        data = memoryview(np.ascontiguousarray(rows, self._dtype).reshape(-1).view(np.uint8))
        for begin in range(0, len(data), _CHUNK):  # a piece is still in cache when it is written
            piece = data[begin : begin + _CHUNK]
            self._crc = zlib.crc32(piece, self._crc)
            if self._hasher is not None:
                self._hasher.update(piece)
            with disk_full_speaks(self._file.parent, len(data) - begin):
                self._write_bytes(piece)
        self._rows += len(rows)

    def close(self) -> ArrayEntry:
        """Completes the header and returns the manifest entry. Safe to call twice."""
        if self.entry is None:
            shape = (self._rows, *self._row_shape)
            size = DATA_OFFSET + self._dtype.itemsize * math.prod(shape)
            with self._stream, disk_full_speaks(self._file.parent, DATA_OFFSET):
                self._stream.seek(0)
                self._write_bytes(memoryview(self._header()))
            chunks = None if self._hasher is None else self._hasher.digests()
            self.entry = ArrayEntry(self._dtype.str, shape, size, self._crc, chunks)
        return self.entry

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._stream.close()

    def _write_bytes(self, data: memoryview) -> None:
        while data:
            data = data[self._stream.write(data) :]

    def _header(self) -> bytes:
        return _header(self._dtype, (self._rows, *self._row_shape))


def _header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    fields = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    start = np.lib.format.magic(1, 0) + (DATA_OFFSET - 10).to_bytes(2, "little")
    return (start + repr(fields).encode()).ljust(DATA_OFFSET - 1) + b"\n"


# Arrays that several processes write, each some ranges of rows.


class ArrayPieces:
    """Writes ranges of rows of a ``.npy`` file, in any order. Other processes may write other ranges at the same time, and a
    range may be written again; `seal_array` completes the file. Use it in a ``with`` block."""

    def __init__(self, folder: str | Path, path: str, dtype: np.dtype | type, row_shape: tuple[int, ...] = ()) -> None:
        self.path, self._file = path, Path(folder) / path
        self._dtype, self._row_shape = np.dtype(dtype).newbyteorder("<"), row_shape
        self._width = self._dtype.itemsize * math.prod(row_shape)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with disk_full_speaks(self._file.parent, DATA_OFFSET):
            self.fd = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, first: int, rows: np.ndarray) -> None:
        """Writes rows [n, *row_shape], converted to the dtype of the array, as rows ``first`` and following."""
        if rows.shape[1:] != self._row_shape:
            raise ValueError(f"{self.path}: rows of shape {rows.shape[1:]}, expected {self._row_shape}")
        data = memoryview(np.ascontiguousarray(rows, self._dtype).reshape(-1).view(np.uint8))
        write_at(self.fd, data, DATA_OFFSET + first * self._width, self._file.parent)

    def close(self) -> None:
        os.close(self.fd)

    def __enter__(self) -> ArrayPieces:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def write_at(fd: int, data: memoryview, offset: int, folder: Path) -> None:
    """Writes all of ``data`` at an offset of a file in ``folder``. Raises `PartitionError` if the disk is full."""
    with disk_full_speaks(folder, len(data)):
        while data:
            written = os.pwrite(fd, data, offset)
            data, offset = data[written:], offset + written


def read_rows(folder: str | Path, path: str, dtype: np.dtype, shape: tuple[int, ...], first: int) -> np.ndarray:
    """Reads rows that `ArrayPieces` wrote, before the array is complete. shape: of what is read.  first: the first row."""
    size = math.prod(shape)
    at = DATA_OFFSET + first * (dtype.itemsize * math.prod(shape[1:]))
    return np.fromfile(Path(folder) / path, dtype.newbyteorder("<"), size, offset=at).reshape(shape)


def hash_chunk(folder: str | Path, path: str, begin: int, nbytes: int) -> tuple[int, str]:
    """Returns the CRC-32 and the digest of the bytes [begin, begin + nbytes) of an array's data, at most a chunk.

    Raises `PartitionError` if the file ends before.
    """
    crc, hasher, file = 0, ChunkHasher(), Path(folder) / path
    buffer = memoryview(bytearray(min(nbytes, _HASHED_AT_ONCE)))
    with open(file, "rb", buffering=0) as stream:
        stream.seek(DATA_OFFSET + begin)
        while nbytes:
            got = stream.readinto(buffer[: min(nbytes, len(buffer))])
            if not got:
                raise PartitionError(f"{file}: it became shorter while it was written. Partition again.")
            crc = zlib.crc32(buffer[:got], crc)
            hasher.update(buffer[:got])
            nbytes -= got
    return crc, hasher.digests()[0]


def seal_array(folder: str | Path, path: str, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Gives the file of an array whose rows `ArrayPieces` wrote its header and its length. Rows not written are zero."""
    file, dtype = Path(folder) / path, np.dtype(dtype).newbyteorder("<")
    with ArrayPieces(folder, path, dtype, shape[1:]) as pieces:
        os.ftruncate(pieces.fd, DATA_OFFSET + dtype.itemsize * math.prod(shape))
        write_at(pieces.fd, memoryview(_header(dtype, shape)), 0, file.parent)


def hashed_entry(dtype: np.dtype, shape: tuple[int, ...], hashes: Sequence[tuple[int, str]]) -> ArrayEntry:
    """Makes the entry of a sealed array. hashes: `hash_chunk` of each of its chunks, in order."""
    dtype = np.dtype(dtype).newbyteorder("<")
    size = dtype.itemsize * math.prod(shape)
    sizes = [end - begin for begin, end in chunk_ranges(size)]
    crc = join_crcs((crc, nbytes) for (crc, _), nbytes in zip(hashes, sizes, strict=True))
    return ArrayEntry(dtype.str, shape, DATA_OFFSET + size, crc, tuple(digest for _, digest in hashes))
