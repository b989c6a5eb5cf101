"""Arrays in files that are read by ranges. Unlike pages of a memory map, what was read does not stay in this process's memory."""

from __future__ import annotations

import math
import os
import pickle
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from glt_lightning.base import DataError, Progress, counted
from glt_lightning.graph import open_regular, read_npy_header
from glt_lightning.kernels import row_bytes
from glt_lightning.partition.folder import disk_full_speaks, exclusive, whole_folder
from glt_lightning.partition.sources.base import RangedEdges


class NpyFile:
    """Rows of an ``.npy`` file: slices are read, index arrays go through a map of the file.

    at, nbytes: range of the array in the file, header included; None: it ends with the file.
    transposed: the file holds the rows of the transpose (Fortran order); ``shape`` is that of the transpose.
    """

    def __init__(self, path: Path, at: int = 0, nbytes: int | None = None) -> None:
        self.path, self.range = path, (at, nbytes)
        try:
            with open_regular(path) as stream:
                stream.seek(at)
                shape, fortran, self.dtype = read_npy_header(stream)
                self._offset = stream.tell()
                end = os.fstat(stream.fileno()).st_size if nbytes is None else at + nbytes
                size = end - self._offset
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: expected an .npy file ({error}).") from None
        self.transposed = fortran and len(shape) > 1
        self.shape = shape[::-1] if self.transposed else shape
        if self.dtype.hasobject or not shape:
            raise DataError(f"{path}: expected an array of plain numbers, got {self.dtype} {list(shape)}.")
        if size != self.dtype.itemsize * math.prod(shape):
            raise DataError(
                f"{path}: the file has {size:,} bytes of data, too few for {self.dtype} {list(shape)}. It may be truncated: "
                "write or copy it again."
            )
        self._row_bytes = row_bytes(self.dtype, self.shape[1:])

    def by_rows(self) -> NpyFile:
        """Returns the file itself. Raises `DataError` if it holds columns (Fortran order)."""
        if self.transposed:
            raise DataError(f"{self.path}: the array is in Fortran order. Save it again, after np.ascontiguousarray.")
        return self

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice | np.ndarray, /) -> np.ndarray:
        if not isinstance(index, slice):
            rows: np.ndarray = self.mapped()[index]
            return rows
        begin, end, step = index.indices(len(self))
        out = np.empty((max(0, end - begin), *self.shape[1:]), self.dtype)
        with self._open() as stream:
            self._read(stream, out, begin * self._row_bytes)
        return out[::step]

    def mapped(self) -> np.ndarray:
        """A read-only map of the file."""
        if not math.prod(self.shape):
            return np.empty(self.shape, self.dtype)
        return np.memmap(self.path, self.dtype, "r", self._offset, self.shape)

    def blocks(self, size: int, begin: int, end: int, row: int | None = None) -> Iterator[np.ndarray]:
        """The rows [begin, end), or those elements of row ``row``, ``size`` at a time. A block is valid until the next."""
        shape, width, at = self.shape[1:], self._row_bytes, 0
        if row is not None:
            shape, width, at = (), self.dtype.itemsize, row * self._row_bytes
        out = np.empty((min(size, end - begin), *shape), self.dtype)
        with self._open() as stream:
            for first in range(begin, end, size):
                block = out[: min(size, end - first)]
                self._read(stream, block, at + first * width)
                yield block

    def _open(self) -> BinaryIO:
        return open(self.path, "rb", buffering=0)

    def _read(self, stream: BinaryIO, out: np.ndarray, at: int) -> None:
        try:
            read_exactly(stream.fileno(), out, self._offset + at)
        except EOFError as error:
            raise DataError(
                f"{self.path}: {error}. It changed while it was read: let no other process write to it."
            ) from None


def read_exactly(fd: int, out: np.ndarray, offset: int) -> None:
    """Fills the contiguous array ``out`` with the bytes from ``offset`` on. Raises `EOFError` if the file ends earlier.

    Unlike pages of a memory map, what was read does not count as this process's memory.
    """
    data = memoryview(out.reshape(-1).view(np.uint8))
    while data:
        got = os.preadv(fd, [data], offset)
        if got == 0:
            raise EOFError(f"the file is truncated: {counted(len(data), 'byte')} missing at its end")
        data, offset = data[got:], offset + got


class FileEdges(RangedEdges):
    """Edges in the order of the columns of ``edge_index``; in Fortran order the file holds pairs."""

    def __init__(self, edge_index: NpyFile, name: str | None = None) -> None:
        self.file, self.files = edge_index, (edge_index,)
        shape = edge_index.shape[::-1] if edge_index.transposed else edge_index.shape
        if len(shape) != 2 or shape[0] != 2 or edge_index.dtype.kind not in "iu":
            raise DataError(
                f"{name or edge_index.path}: expected integers [2, E] (sources, destinations), "
                f"got {edge_index.dtype} {list(shape)}."
            )
        self.num_edges = shape[1]

    def part(self, size: int, begin: int, end: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        file = self.file
        ends: Iterable[tuple[np.ndarray, np.ndarray]]
        if file.transposed:
            ends = ((pairs[:, 0], pairs[:, 1]) for pairs in file.blocks(size, begin, end))
        else:
            ends = zip(file.blocks(size, begin, end, row=0), file.blocks(size, begin, end, row=1), strict=True)
        for src, dst in ends:
            yield np.ascontiguousarray(src, np.int64), np.ascontiguousarray(dst, np.int64)


class EndFiles(RangedEdges):
    """Edges whose sources and destinations are in one file each, in the same order."""

    def __init__(self, source: NpyFile, destination: NpyFile) -> None:
        self.files, self.num_edges = (source, destination), len(source)

    def part(self, size: int, begin: int, end: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        blocks = [file.blocks(size, begin, end) for file in self.files]
        for src, dst in zip(*blocks, strict=True):
            yield np.ascontiguousarray(src, np.int64), np.ascontiguousarray(dst, np.int64)


class CscEdges(RangedEdges):
    """Edges in the order of ``indices``: by destination."""

    def __init__(self, indptr: NpyFile, indices: NpyFile) -> None:
        self.indptr, self.indices, self.num_edges = indptr, indices, len(indices)
        self.files = (indptr, indices)
        for file in self.files:
            if len(file.shape) != 1 or file.dtype.kind not in "iu":
                raise DataError(
                    f"{file.path}: expected integers in one dimension, got {file.dtype} {list(file.shape)}."
                )

    def part(self, size: int, begin: int, end: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Row pointers are looked up in a map, and read where they are needed. Parts that are all edges together read, and check,
        all of them."""
        indptr = self.indptr.mapped()
        self._require(len(indptr) > 0)
        row = 0 if begin == 0 else max(0, int(np.searchsorted(indptr, begin, side="right")) - 1)
        if not self.num_edges:
            self._pointers(row, len(indptr) - 1, 0, 0)
        for sources in self.indices.blocks(size, begin, end):
            to = begin + len(sources)
            after = int(np.searchsorted(indptr, to, side="right"))
            last = max(after - 1, int(np.searchsorted(indptr, to, side="left")))
            last = len(indptr) - 1 if to == self.num_edges else last
            pointers = self._pointers(row, last, begin, to)
            edges = np.diff(np.clip(pointers, begin, to))
            yield np.ascontiguousarray(sources, np.int64), np.repeat(np.arange(row, last, dtype=np.int64), edges)
            row, begin = max(row, after - 1), to

    def _pointers(self, row: int, last: int, begin: int, to: int) -> np.ndarray:
        """Reads row pointers from ``row`` to ``last``, between which the edges [begin, to) are, and checks them."""
        self._require(row <= last < len(self.indptr))
        found = self.indptr[row : last + 1]
        self._require(row > 0 or found[0] == 0)
        self._require(last + 1 < len(self.indptr) or found[-1] == self.num_edges)
        self._require(found[0] <= begin and found[-1] >= to and not (found[1:] < found[:-1]).any())
        return found

    def _require(self, good: bool | np.bool_) -> None:
        if not good:
            raise DataError(
                f"{self.indptr.path}: expected row pointers that rise from 0 to {self.num_edges}, "
                "the length of indices.npy."
            )


# What torch has saved, tensors and graphs of PyG, read without trusting pickles.


UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    AssertionError,
    LookupError,
    MemoryError,
    OverflowError,
    TypeError,
    AttributeError,
    struct.error,
    zlib.error,
    pickle.UnpicklingError,
)

_DTYPES = (np.bool_, np.int8, np.int16, np.int32, np.int64, np.float32, np.float64)


def load_saved(path: Path, expected: str, load: Callable[[BinaryIO], Any] | None = None) -> Any:
    """Loads tensors, arrays and containers of them from a file of torch. Raises `DataError` for a file of another kind.

    load: reads a file of another form, and may raise what it likes.
    """
    try:
        with open_regular(path) as stream:
            return (load or _load_known)(stream)
    except UNREADABLE as error:
        raise DataError(f"{path}: expected {expected} ({_reason(error)}).") from None


def _load_known(stream: BinaryIO) -> Any:
    import torch

    with known_classes():
        return torch.load(stream, map_location="cpu", weights_only=True)


def _reason(error: BaseException) -> str:
    if refused := re.search(r"Unsupported \w+: GLOBAL (\S+)", str(error)):
        return f"it holds {refused[1]}, which is not read, as a file may run anything that way; leave it out"
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()][:2])


@contextmanager
def known_classes() -> Iterator[None]:
    """Lets torch read exactly the classes that graphs of PyG and OGB's files hold (torch >= 2.6 refuses them by default)."""
    import torch
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

    rebuild = np.empty(0).__reduce__()[0]
    # its module in files that were written before NumPy 2, and since
    named = [(rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    arrays = [np.ndarray, np.dtype, *named]
    graphs = [Data, HeteroData, DataEdgeAttr, DataTensorAttr, BaseStorage, EdgeStorage, GlobalStorage, NodeStorage]
    needed = [*graphs, *arrays, *(type(np.dtype(d)) for d in _DTYPES)]
    # On leaving, torch forgets all that it was given, whether it knew it before or not.
    known = torch.serialization.get_safe_globals()
    with torch.serialization.safe_globals([each for each in needed if each not in known]):
        yield


# Downloads an archive with deadlines and without prompts; the target folder appears complete or not at all.


_STALL_S = 60.0  # longest time without a byte from the server before the download fails

# Wait for another process that downloads: ogbn-papers100M has about 57 GB, which is 2.6 MB/s for six hours.
_LOCK_S = 6 * 3600.0

_CHUNK = 1 << 20


def fetch_zip(url: str, inner: str, target: Path, hint: str) -> None:
    """Downloads ``url`` and puts its folder ``inner`` at ``target``, unless ``target`` is there already."""
    with exclusive(target, _LOCK_S):
        if target.exists():  # another process downloaded it during the wait
            return
        try:
            with whole_folder(target) as temporary:
                archive = temporary / "archive.zip"
                _fetch(url, archive)
                with zipfile.ZipFile(archive) as members, disk_full_speaks(temporary, _unpacked_bytes(members)):
                    members.extractall(temporary)
                archive.unlink()
                for entry in (temporary / inner).iterdir():
                    shutil.move(entry, temporary / entry.name)
                (temporary / inner).rmdir()
        except (OSError, zipfile.BadZipFile) as error:  # URLError and timeouts are OSErrors
            raise DataError(f"dataset: cannot download {url} ({error}). {hint}") from None


def _fetch(url: str, path: Path) -> None:
    import urllib.request  # takes a tenth of the start of a process that partitions

    with urllib.request.urlopen(url, timeout=_STALL_S) as reply, open(path, "wb") as out:
        size = int(reply.headers.get("Content-Length") or 0)
        with Progress(None).phase("downloading", size, "B") as done, disk_full_speaks(path.parent, size):
            while chunk := reply.read(_CHUNK):
                out.write(chunk)
                done(len(chunk))
        if size and path.stat().st_size != size:
            raise OSError(f"the connection was closed after {path.stat().st_size:,} of {size:,} bytes")


def _unpacked_bytes(members: zipfile.ZipFile) -> int:
    return sum(info.file_size for info in members.infolist())
