"""Hashes of the pieces of an array's file, by which a copy is checked piece by piece while it is made."""

from __future__ import annotations

import hashlib
from typing import Any

CHUNK_BYTES = 64 << 20  # of the data after the header; what a broken copy fetches again


class ChunkHasher:
    """Takes an array's data as a stream. SHA-256, cut to 16 bytes: 1.3 GB/s where BLAKE2b took 0.7 (one core with SHA
    instructions, OpenSSL), beside 3.5 for the CRC-32."""

    def __init__(self) -> None:
        self._done: list[str] = []
        self._hash, self._left = hashlib.sha256(), CHUNK_BYTES

    def update(self, data: memoryview) -> None:
        """data: bytes, one dimension."""
        while data:
            piece = data[: self._left]
            self._hash.update(piece)
            self._left -= len(piece)
            data = data[len(piece) :]
            if not self._left:
                self._finish()

    def digests(self) -> tuple[str, ...]:
        """Of each chunk, 32 hexadecimal digits. To be asked once, at the end of the data."""
        if self._left < CHUNK_BYTES:
            self._finish()
        return tuple(self._done)

    def _finish(self) -> None:
        self._done.append(_text(self._hash))
        self._hash, self._left = hashlib.sha256(), CHUNK_BYTES


def chunk_digest(data: Any) -> str:
    """The digest of one whole chunk."""
    return _text(hashlib.sha256(data))


def num_chunks(nbytes: int) -> int:
    """How many chunks data of ``nbytes`` has."""
    return -(-nbytes // CHUNK_BYTES)


def _text(hashed: Any) -> str:
    return str(hashed.hexdigest()[:32])
