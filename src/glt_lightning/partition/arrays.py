"""Arrays of a partition folder while it is written: ``.npy`` files that are written as a stream or in pieces, and the hashes of
their chunks, by which a copy is checked piece by piece while it is made."""

from __future__ import annotations

import hashlib
import math
import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import PartitionError
from glt_lightning.graph import CHUNK_BYTES, ArrayEntry, verify_array
from glt_lightning.partition.folder import ANOTHER_FOLDER, disk_full_speaks

# The data of every file begins at a page: a map of it is aligned for any dtype, for direct I/O and for page-locking.
DATA_OFFSET = 4096
_WRITTEN_AT_ONCE = 8 << 20  # bytes
# Linux caches what is written at once by pages of up to this size, each at a multiple of its size. A large page takes one entry
# of the processor's page table, not 512: random rows of 400 bytes of a mapped file take 0.7 of the time (ext4, Linux 6.18).
_LARGE_PAGE = 2 << 20
_HASHED_AT_ONCE = 1 << 18  # bytes that stay in a core's cache between their two hashes


class ArrayWriter:
    """Streams rows into a ``.npy`` file: data from `DATA_OFFSET`, CRC-32 and hashes of chunks on the way, the header at the end.

    hashed: the entry gets these. Files that no manifest lists need none.

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
        self._pieces = ArrayPieces(folder, path, dtype, row_shape)
        os.ftruncate(self._pieces.fd, 0)
        self._rows = self._crc = 0
        self._hasher = ChunkHasher() if hashed else None

    def write(self, rows: np.ndarray) -> None:
        """Appends rows [n, *row_shape], converted to the writer's dtype."""
        pieces = self._pieces
        data, at = pieces.bytes_of(rows), pieces.place(self._rows)
        for begin in range(0, len(data), _WRITTEN_AT_ONCE):  # a piece is still in cache when it is written
            piece = data[begin : begin + _WRITTEN_AT_ONCE]
            if self._hasher is not None:
                self._crc = zlib.crc32(piece, self._crc)
                self._hasher.update(piece)
            pieces.put(piece, at + begin)
        self._rows += len(rows)

    def close(self) -> ArrayEntry:
        """Completes the file and returns the manifest entry. Safe to call twice."""
        if self.entry is None:
            chunks = None if self._hasher is None else self._hasher.digests()
            with self._pieces as pieces:
                self.entry = pieces.seal(self._rows, self._crc, chunks)
        return self.entry

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.close()
        else:
            self._pieces.close()


# Arrays that several processes write, each some ranges of rows.


class ArrayPieces:
    """Writes ranges of rows of a ``.npy`` file, in any order, ranges that follow each other by whole large pages. Other processes
    may write other ranges at the same time, and a range may be written again; `seal_array` completes the file. Use it in a
    ``with`` block."""

    def __init__(self, folder: str | Path, path: str, dtype: np.dtype | type, row_shape: tuple[int, ...] = ()) -> None:
        self.path, self.file = path, Path(folder) / path
        self._dtype, self._row_shape = np.dtype(dtype).newbyteorder("<"), row_shape
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with disk_full_speaks(self.file.parent, DATA_OFFSET):
            self.fd = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._held, self._at = bytearray(), 0  # to be written there, when the large page is full

    def write(self, first: int, rows: np.ndarray) -> None:
        """Writes rows [n, *row_shape], converted to the dtype of the array, as rows ``first`` and following."""
        self.put(self.bytes_of(rows), self.place(first))

    def put(self, data: memoryview, offset: int) -> None:
        """Writes bytes at an offset of the file."""
        if offset != self._at + len(self._held):
            self._flush()
            self._at = offset
        if self._held:
            rest = -offset % _LARGE_PAGE
            self._held += data[:rest]
            if len(data) < rest:
                return
            self._flush()
            data = data[rest:]
        whole = max(0, len(data) - (self._at + len(data)) % _LARGE_PAGE)
        write_at(self.fd, data[:whole], self._at, self.file.parent)
        self._at += whole
        self._held += data[whole:]

    def _flush(self) -> None:
        data, self._held = self._held, bytearray()
        write_at(self.fd, memoryview(data), self._at, self.file.parent)
        self._at += len(data)

    def place(self, row: int) -> int:
        """Returns where a row begins in the file."""
        return DATA_OFFSET + row * self._dtype.itemsize * math.prod(self._row_shape)

    def bytes_of(self, rows: np.ndarray) -> memoryview:
        """Returns rows as they are written."""
        if rows.shape[1:] != self._row_shape:
            raise ValueError(f"{self.path}: rows of shape {rows.shape[1:]}, expected {self._row_shape}")
        return memoryview(np.ascontiguousarray(rows, self._dtype).reshape(-1).view(np.uint8))

    def seal(self, count: int, crc: int = 0, chunks: tuple[str, ...] | None = None) -> ArrayEntry:
        """Gives the file the header and the length of ``count`` rows, and returns its entry. Rows not written are zero."""
        self._flush()
        size, shape = self.place(count), (count, *self._row_shape)
        os.ftruncate(self.fd, size)
        fields = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
        start = np.lib.format.magic(1, 0) + (DATA_OFFSET - 10).to_bytes(2, "little")
        header = (start + repr(fields).encode()).ljust(DATA_OFFSET - 1) + b"\n"
        write_at(self.fd, memoryview(header), 0, self.file.parent)
        return ArrayEntry(self._dtype.str, shape, size, crc, chunks)

    def close(self) -> None:
        """Closes the file, complete or not. Safe to call twice."""
        try:
            self._flush()
        finally:
            if self.fd >= 0:
                os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> ArrayPieces:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def write_at(fd: int, data: memoryview, offset: int, folder: Path, advice: str = ANOTHER_FOLDER) -> None:
    """Writes all of ``data`` at an offset of a file in ``folder``. Raises `PartitionError`, with the advice, if the disk is
    full."""
    with disk_full_speaks(folder, len(data), advice):
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
    crc, hasher, file = 0, hashlib.sha256(), Path(folder) / path
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
    return crc, _text(hasher)


def seal_array(folder: str | Path, path: str, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Gives the file of an array whose rows `ArrayPieces` wrote its header and its length. Rows not written are zero."""
    with ArrayPieces(folder, path, dtype, shape[1:]) as pieces:
        pieces.seal(shape[0])


def hashed_entry(dtype: np.dtype, shape: tuple[int, ...], hashes: Sequence[tuple[int, str]]) -> ArrayEntry:
    """Makes the entry of a sealed array. hashes: `hash_chunk` of each of its chunks, in order."""
    dtype = np.dtype(dtype).newbyteorder("<")
    size = dtype.itemsize * math.prod(shape)
    sizes = [end - begin for begin, end in chunk_ranges(size)]
    crc = join_crcs((crc, nbytes) for (crc, _), nbytes in zip(hashes, sizes, strict=True))
    return ArrayEntry(dtype.str, shape, DATA_OFFSET + size, crc, tuple(digest for _, digest in hashes))


# Hashes of the chunks of an array, `CHUNK_BYTES` each.


def hash_array(folder: str | Path, path: str, entry: ArrayEntry) -> tuple[str, ...]:
    """Computes the digests of the chunks of ``folder/path``. Raises `PartitionError` unless it matches its manifest entry."""
    hasher = ChunkHasher()
    verify_array(folder, path, entry, hasher.update)
    return hasher.digests()


class ChunkHasher:
    """Hashes the chunks of an array's data as a stream, by SHA-256 cut to 16 bytes: 1.3 GB/s on one core with SHA instructions
    (OpenSSL), while BLAKE2b takes 0.7 and the CRC-32 3.5."""

    def __init__(self) -> None:
        self._done: list[str] = []
        self._hash, self._left = hashlib.sha256(), CHUNK_BYTES

    def update(self, data: memoryview) -> None:
        """Takes the next bytes of the data. data: bytes, of one dimension."""
        while data:
            piece = data[: self._left]
            self._hash.update(piece)
            self._left -= len(piece)
            data = data[len(piece) :]
            if not self._left:
                self._finish()

    def digests(self) -> tuple[str, ...]:
        """Returns the digest of each chunk, 32 hexadecimal digits. To be called once, at the end of the data."""
        if self._left < CHUNK_BYTES:
            self._finish()
        return tuple(self._done)

    def _finish(self) -> None:
        self._done.append(_text(self._hash))
        self._hash, self._left = hashlib.sha256(), CHUNK_BYTES


def chunk_digest(data: Any) -> str:
    """Computes the digest of one whole chunk."""
    return _text(hashlib.sha256(data))


def chunk_ranges(nbytes: int) -> list[tuple[int, int]]:
    """Returns the range of the bytes of each chunk."""
    return [(begin, min(begin + CHUNK_BYTES, nbytes)) for begin in range(0, nbytes, CHUNK_BYTES)]


def _text(hashed: Any) -> str:
    return str(hashed.hexdigest()[:32])


# The CRC-32 of bytes whose pieces were summed apart: a product of polynomials over GF(2) modulo that of the CRC, with the
# coefficient of x^0 in the highest bit.
_CRC_POLYNOMIAL, _ONE, _X = 0xEDB88320, 1 << 31, 1 << 30


def join_crcs(pieces: Iterable[tuple[int, int]]) -> int:
    """Returns the CRC-32 of consecutive pieces. pieces: the CRC-32 of each and its number of bytes.

    Example:
        >>> import zlib
        >>> join_crcs([(zlib.crc32(b"par"), 3), (zlib.crc32(b"tition"), 6)]) == zlib.crc32(b"partition")
        True
    """
    joined, power, size = 0, _ONE, -1
    for crc, nbytes in pieces:
        if nbytes != size:  # all but the last are of one size
            power, size = _power(8 * nbytes), nbytes
        joined = _product(power, joined) ^ crc
    return joined


def _power(exponent: int) -> int:
    """Returns x^exponent."""
    result, square = _ONE, _X
    while exponent:
        if exponent & 1:
            result = _product(result, square)
        square = _product(square, square)
        exponent >>= 1
    return result


def _product(a: int, b: int) -> int:
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_CRC_POLYNOMIAL if b & 1 else 0)
    return product
