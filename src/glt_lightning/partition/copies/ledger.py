"""What of a copy is there already, so that a copy that was ended goes on where it was."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from glt_lightning.data.chunk_hashes import CHUNK_BYTES
from glt_lightning.data.manifest import ArrayEntry
from glt_lightning.data.regular_file import NOT_OURS, open_below
from glt_lightning.errors import PartitionError

LEDGER = "pulled.chunks"


@contextmanager
def not_ours_speaks(file: Path) -> Iterator[None]:
    """Turns the error of `open_below` for what somebody else has put there into a `PartitionError`."""
    try:
        yield
    except OSError as error:
        if error.errno != NOT_OURS:
            raise
        raise PartitionError(
            f"{file}: {error.strerror}, and a copy writes nowhere else. Delete it, and start again."
        ) from None


@contextmanager
def opened_below(folder: Path, path: str, flags: int) -> Iterator[io.FileIO]:
    """As `open_below`. Raises `PartitionError` for what somebody else has put there."""
    with not_ours_speaks(folder / path):
        stream = open_below(folder, path, flags)
    with stream:
        yield stream


@dataclass(frozen=True)
class Chunk:
    """A piece of a file. number: its place in the ledger.  begin, length: in the file, in bytes; the first piece has the header,
    too, of ``skip`` bytes, which the digest does not cover."""

    path: str
    number: int
    begin: int
    length: int
    skip: int
    digest: str | None  # None: of a file without data


def chunks_of(arrays: Mapping[str, ArrayEntry]) -> dict[str, list[Chunk]]:
    """The pieces of all files, numbered in the order of their paths, whatever is asked for."""
    made: dict[str, list[Chunk]] = {}
    number = 0
    for path, entry in sorted(arrays.items()):
        assert entry.chunks is not None
        pieces = []
        for i, digest in enumerate(entry.chunks or (None,)):
            begin = 0 if i == 0 else entry.offset + i * CHUNK_BYTES
            end = min(entry.bytes, entry.offset + (i + 1) * CHUNK_BYTES)
            pieces.append(Chunk(path, number, begin, end - begin, 0 if i else entry.offset, digest))
            number += 1
        made[path] = pieces
    return made


class Ledger:
    """A file with the hash of the manifest and a byte for each piece: 1 once the piece is on disk and its digest was right.

    Raises:
        PartitionError: For a ledger of another manifest.
    """

    def __init__(self, folder: Path, manifest_hash: str, chunks: int) -> None:
        head = manifest_hash.encode()
        with opened_below(folder, LEDGER, os.O_RDWR | os.O_CREAT) as file:
            self._file = os.dup(file.fileno())
        there = os.pread(self._file, len(head) + chunks + 1, 0)
        if len(there) < len(head) + chunks and head.startswith(there[: len(head)]):  # it was cut while it was made
            there = head + bytes(chunks)
            os.pwrite(self._file, there, 0)
        if len(there) != len(head) + chunks or not there.startswith(head):
            os.close(self._file)
            raise PartitionError(
                f"{folder}: it was begun from another partition than the one to be copied now. Delete it, and start again."
            )
        self._begin, self._done = len(head), bytearray(there[len(head) :])

    def has(self, chunk: Chunk) -> bool:
        return self._done[chunk.number] == 1

    def add(self, chunk: Chunk) -> None:
        """To be called once the piece is on disk: a piece is fetched again rather than believed."""
        self._set(chunk, 1)

    def remove(self, chunk: Chunk) -> None:
        """The piece is not good."""
        self._set(chunk, 0)

    def _set(self, chunk: Chunk, value: int) -> None:
        os.pwrite(self._file, bytes([value]), self._begin + chunk.number)
        os.fdatasync(self._file)
        self._done[chunk.number] = value

    def close(self) -> None:
        os.close(self._file)
