"""The ids of nodes in tables, and the rows that they stand for. More than fit in memory are joined on disk, by their hash."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glt_lightning.kernels import mix64
from glt_lightning.partition.arrays import ArrayPieces, ArrayWriter
from glt_lightning.partition.sources.files import NpyFile
from glt_lightning.partition.sources.tables.files import TablePiece
from glt_lightning.partition.tasks.exchange import (
    Runs,
    RunWriter,
    cut,
    finished_runs,
    load_runs,
    read_buckets,
    unfinished,
)

_MOST = str(2**63 - 1)


# Numbers of 19 digits that fit in an int64: the first i digits are those of the greatest, the next is less.
_WIDE = [f"{_MOST[:i]}[{int(i == 0)}-{int(_MOST[i]) - 1}][0-9]{{{18 - i}}}" for i in range(19) if _MOST[i] != "0"]


# How an int64 is written.
_NUMBER = rf"^(0|-?([1-9][0-9]{{0,17}}|{'|'.join(_WIDE)}|{_MOST}))$"

BUCKET = 1 << 19  # ids that are looked up in memory: a hash table of text takes about 200 bytes for each
_GROUP = 1 << 20  # ids that are looked up at once, and rows that are written at once
EDGES_AT_ONCE = 1 << 20  # whose joined ends are brought back into order at once
JOINED = np.dtype([("edge", np.int64), ("row", np.int64)])
IDS = ("ids.npy", "ids_offsets.npy", "ids_bytes.npy")


def ids_of(piece: TablePiece, column: str) -> pa.Array:
    """Reads ids as int64 or text. Raises `DataError` for null and for other types."""
    array = piece.column(column)
    if array.null_count:
        row = int(pc.index(pc.is_null(array), True).as_py())
        raise piece.error(column, row, "the id is missing. Fill it in or remove the row.")
    if pa.types.is_integer(array.type):
        return pc.cast(array, pa.int64())
    if not pa.types.is_large_string(array.type):
        raise piece.error(column, 0, f"ids are {array.type}; expected integers or text. Convert the column.")
    return array


def as_numbers(ids: pa.Array) -> pa.Array:
    """Converts ids to int64, null for one that is no number."""
    if not pa.types.is_large_string(ids.type):
        return ids
    is_number = pc.match_substring_regex(ids, _NUMBER)
    return pc.cast(pc.if_else(is_number, ids, pa.scalar(None, pa.large_string())), pa.int64())


class RowIds:
    """The ids of nodes without an id column: a node's id is its row."""

    def __init__(self, count: int) -> None:
        self.count = count

    def find(self, ids: pa.Array) -> np.ndarray:
        """Returns int64, the row of each id; -1 if there is none."""
        rows = as_numbers(ids).fill_null(-1).to_numpy()
        return np.where((rows >= 0) & (rows < self.count), rows, -1)


class KeyIds:
    """The ids of nodes in an id column, in memory.

    pyarrow makes a hash table of all ids for each lookup: 1.4 s for 5 M text ids of 17 characters, and 1.8 s to look as many
    up.
    """

    def __init__(self, ids: pa.Array) -> None:
        self.ids = ids
        self.count, self.is_text = len(ids), bool(pa.types.is_large_string(ids.type))

    @cached_property
    def first(self) -> int | None:
        """The first id, if each id is one more than the id before; else None."""
        return None if self.is_text else consecutive(self.ids.to_numpy())

    def compared(self, ids: pa.Array) -> pa.Array:
        """Converts ids to the type of these; null for what is no number, if these are. Numbers written as text are numbers."""
        if not self.is_text:
            return as_numbers(ids)
        return ids if pa.types.is_large_string(ids.type) else pc.cast(ids, pa.large_string())

    def find(self, ids: pa.Array) -> np.ndarray:
        """Returns int64, the row of each id; -1 if there is none."""
        ids = self.compared(ids)
        if self.first is not None:
            valid = pc.is_valid(ids).to_numpy(zero_copy_only=False)
            rows = ids.fill_null(0).to_numpy()
            inside = valid & (rows >= self.first) & (rows < self.first + self.count)
            return np.where(inside, rows - self.first, -1)
        return self._look_up(ids)

    def _look_up(self, ids: pa.Array) -> np.ndarray:
        return positions(ids, self.ids)


class SortedIds(KeyIds):
    """The ids of nodes with their order, for look-ups of a few."""

    def __init__(self, ids: pa.Array) -> None:
        super().__init__(ids)
        self._order = pc.sort_indices(ids).to_numpy()
        self._sorted = None if self.is_text else ids.to_numpy()[self._order]

    def _look_up(self, ids: pa.Array) -> np.ndarray:
        if not self.count:
            return np.full(len(ids), -1)
        if self._sorted is None:
            return np.array([self._row_of(each) for each in ids.to_pylist()], np.int64)
        wanted, known = ids.fill_null(0).to_numpy(), ids.is_valid().to_numpy(zero_copy_only=False)
        at = np.minimum(np.searchsorted(self._sorted, wanted), self.count - 1)
        return np.where(known & (self._sorted[at] == wanted), self._order[at].astype(np.int64), -1)

    def _row_of(self, text: str | None) -> int:
        if text is None:
            return -1
        at = bisect.bisect_left(self._order, text, key=lambda row: self.ids[row].as_py())
        found = at < self.count and self.ids[self._order[at]].as_py() == text
        return int(self._order[at]) if found else -1


class StoredIds(KeyIds):
    """The ids of a table of nodes, in the files of its folder: ``ids.npy`` [N], or for text the bytes of all ids (UTF-8) and the
    end of each.

    first: as of `KeyIds`.  buckets: the ids by their hash; None if they are few, or consecutive numbers.
    """

    def __init__(self, folder: Path, first: int | None, buckets: DealtIds | None) -> None:
        self._folder, self.is_text = folder, (folder / "ids_bytes.npy").exists()
        self.count = len(NpyFile(folder / IDS[self.is_text])) - self.is_text
        self.first, self.buckets = first, buckets

    @cached_property
    def ids(self) -> pa.Array:
        return load_ids(self._folder)

    def _look_up(self, ids: pa.Array) -> np.ndarray:
        if self.buckets is None:
            return super()._look_up(ids)
        found, bucket = np.full(len(ids), -1, np.int64), bucket_of(ids, self.is_text, self.buckets.count)
        for each in np.unique(bucket).tolist():
            at = np.flatnonzero(bucket == each)
            known, rows = self.buckets.read(each)
            found[at] = np.append(rows, -1)[positions(ids.take(pa.array(at)), known)]
        return found

    def first_again(self, low: int, high: int) -> tuple[int, int, Any] | None:
        """Returns the first id of some buckets that occurs twice: (its row, the row where it was before, the id)."""
        again: list[tuple[int, int, Any]] = []
        for bucket in range(low, high):
            ids, rows = (self.ids, np.arange(self.count)) if self.buckets is None else self.buckets.read(bucket)
            first = positions(ids, ids)
            if (twice := first != np.arange(len(ids))).any():
                at = int(twice.argmax())
                again.append((int(rows[at]), int(rows[first[at]]), ids[at].as_py()))
        return min(again, default=None)


NodeIds = RowIds | KeyIds


def has_ids(folder: Path) -> bool:
    """Tells whether the nodes of a folder of converted nodes have ids other than their rows."""
    return any((folder / name).exists() for name in IDS)


def load_ids(folder: Path, rows: np.ndarray | None = None) -> pa.Array:
    """Loads the ids in a folder of converted nodes: those of some rows, int64 [n]; None: all of them."""
    index = slice(None) if rows is None else rows
    if (folder / IDS[0]).exists():
        return pa.array(NpyFile(folder / IDS[0])[index])
    files = [NpyFile(folder / name) for name in IDS[1:]]
    if rows is None:
        return text_array(*(file[index] for file in files))
    return text_array(*(file.mapped() for file in files)).take(pa.array(rows))


def named(ids: pa.Array) -> np.ndarray:
    """Converts ids to an array: int64, or objects that are text."""
    if pa.types.is_large_string(ids.type):
        return np.array(ids.to_pylist(), object)
    return np.asarray(ids.to_numpy(zero_copy_only=False, writable=True))


def rows_of(piece: TablePiece, column: str, ids: NodeIds, what: str) -> np.ndarray:
    """Finds the rows of the nodes that a column names, int64 [n]. Raises `DataError` for an id that is none. what: a node."""
    given = ids_of(piece, column)
    found = ids.find(given)
    if (bad := found < 0).any():
        row = int(bad.argmax())
        raise piece.error(column, row, f"{given[row].as_py()!r} is no id of {what}. Remove the row.")
    return found


class IdPiece(ExitStack):
    """Writes the ids of some rows of a table of nodes while they are read, and finds out how they are to be stored. Use it in a
    ``with`` block.

    column: of the ids, of the type ``kind``.  from_text: they are of a text file, which has no other form of a number.
    """

    def __init__(self, folder: Path, column: str, kind: pa.DataType, from_text: bool) -> None:
        super().__init__()
        self._column, self._is_text = column, bool(pa.types.is_large_string(kind))
        self._numbers, self._nbytes = from_text, 0
        self._runs: list[tuple[int, int] | None] = []  # first and last of consecutive numbers
        self._folder, self._half = folder, unfinished(folder)
        self.push(self._finish)
        dtypes = dict(zip(IDS[1:], (np.int64, np.uint8), strict=True)) if self._is_text else {IDS[0]: np.int64}
        self._writers = [
            self.enter_context(ArrayWriter(self._half, name, dtype, hashed=False)) for name, dtype in dtypes.items()
        ]

    def write(self, piece: TablePiece) -> None:
        ids = numbers = ids_of(piece, self._column)
        if self._is_text:
            offsets, data = text_buffers(ids)
            self._writers[0].write(offsets[1:] + self._nbytes)
            self._writers[1].write(data)
            self._nbytes += len(data)
            self._numbers = self._numbers and pc.all(pc.match_substring_regex(ids, _NUMBER), min_count=0).as_py()
            if not self._numbers:
                return
            numbers = pc.cast(ids, pa.int64())
        else:
            self._writers[0].write(ids.to_numpy())
        if len(numbers):
            first = consecutive(numbers.to_numpy())
            self._runs.append(None if first is None else (first, first + len(ids)))

    def facts(self) -> dict[str, Any]:
        """Returns the facts that `joined_facts` takes."""
        return {"numbers": not self._is_text or self._numbers, "nbytes": self._nbytes, "run": _joined_runs(self._runs)}

    def _finish(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._folder.mkdir(exist_ok=True)
            for writer in self._writers:
                os.replace(self._half / writer.path, self._folder / writer.path)


def joined_facts(pieces: Sequence[Mapping[str, Any]]) -> tuple[bool, int | None]:
    """Returns whether the ids of all pieces are text, and the first one, if each is a number and one more than that before."""
    is_text = not all(piece["numbers"] for piece in pieces)
    run = None if is_text else _joined_runs([piece["run"] for piece in pieces if piece["run"] != []])
    return is_text, run[0] if run else None


def _joined_runs(runs: Sequence[Sequence[int] | None]) -> list[int] | None:
    """Joins consecutive numbers, (first, last + 1) each; [] if there are none."""
    if not runs:
        return []
    known = [run for run in runs if run is not None]
    follow = len(known) == len(runs) and all(a[1] == b[0] for a, b in pairwise(known))
    return [known[0][0], known[-1][1]] if follow else None


def consecutive(numbers: np.ndarray) -> int | None:
    """Returns the first number, if each is one more than the one before; else None."""
    if not len(numbers) or int(numbers[-1]) - int(numbers[0]) != len(numbers) - 1 or (np.diff(numbers) != 1).any():
        return None
    return int(numbers[0])


def store_ids(piece: Path, folder: Path, first: int, base: int, is_text: bool) -> Iterator[tuple[int, pa.Array]]:
    """Copies the ids that `IdPiece` wrote to their place among all ids. Yields the row of the first and them, some at a time.

    piece: its folder.  first: row of the first one.  base: number of bytes before it, of text.
    """
    known = base
    with ExitStack() as stack:
        names = IDS[1:] if is_text else IDS[:1]
        into = [
            stack.enter_context(ArrayPieces(folder, name, dtype))
            for name, dtype in zip(names, (np.int64, np.uint8), strict=False)
        ]
        for ids in _written_ids(piece):
            if is_text:
                offsets, data = text_buffers(ids)
                into[0].write(first + 1, offsets[1:] + known)
                into[1].write(known, data)
                known += len(data)
            else:
                ids = pc.cast(ids, pa.int64())
                into[0].write(first, ids.to_numpy())
            yield first, ids
            first += len(ids)


def _written_ids(folder: Path) -> Iterator[pa.Array]:
    """Yields the ids that `IdPiece` wrote, some at a time."""
    files, at = [NpyFile(folder / name) for name in IDS if (folder / name).exists()], 0
    for begin, end in cut(len(files[0]), _GROUP):
        given = files[0][begin:end]
        if len(files) == 1:
            yield pa.array(given)
        elif len(given):
            offsets = np.concatenate([[at], given])
            yield text_array(offsets - at, files[1][at : int(given[-1])])
            at = int(given[-1])


def bucket_of(ids: pa.Array, is_text: bool, count: int) -> np.ndarray:
    """Returns uint32 [n], the bucket of each id by its hash; that of 0 for null."""
    hashes = _hash_texts(ids) if is_text else mix64(ids.fill_null(0).to_numpy().view(np.uint64))
    return (hashes % np.uint64(count)).astype(np.uint32)


def _widths(is_text: bool) -> dict[str, int]:
    return {"rows": 8} | ({"lengths": 8, "bytes": 1} if is_text else {"values": 8})


class IdDealer(ExitStack):
    """Deals ids with the rows they are of out over buckets by their hash, into files of a folder; the work of one task. Use it in
    a ``with`` block. `DealtIds` reads them."""

    def __init__(self, folder: Path, buckets: int, is_text: bool) -> None:
        super().__init__()
        folder.mkdir(parents=True, exist_ok=True)
        self._count, self._is_text = buckets, is_text
        self._writers = {
            name: self.enter_context(finished_runs(folder / name, width, buckets))
            for name, width in _widths(is_text).items()
        }

    def add(self, ids: pa.Array, first: int) -> None:
        """Deals out ids. first: row of the first one; the others follow."""
        bucket = bucket_of(ids, self._is_text, self._count)
        order = np.argsort(bucket, kind="stable")
        sizes = np.bincount(bucket, minlength=self._count)
        self._writers["rows"].add(order + first, sizes)
        ids = ids.take(pa.array(order))
        if not self._is_text:
            self._writers["values"].add(ids.fill_null(0).to_numpy(), sizes)
            return
        offsets, data = text_buffers(ids)
        ends = np.concatenate([[0], np.cumsum(sizes)])
        self._writers["lengths"].add(np.diff(offsets), sizes)
        self._writers["bytes"].add(data, np.diff(offsets[ends]))


class DealtIds:
    """Ids with the rows they are of, dealt out over buckets by their hash.

    folders: of the tasks that dealt them out, in the order of the rows.
    """

    def __init__(self, folders: Sequence[Path], buckets: int, is_text: bool) -> None:
        self.count, self._is_text, self._widths = buckets, is_text, _widths(is_text)
        self._runs = [[load_runs(folder / name) for name in self._widths] for folder in folders]

    def read(self, bucket: int) -> tuple[pa.Array, np.ndarray]:
        """Returns the ids of a bucket and their rows, int64 [n], ascending."""
        return self._read(bucket, self._runs)

    def _read(self, bucket: int, runs: Sequence[Sequence[Runs]]) -> tuple[pa.Array, np.ndarray]:
        rows, *data = (
            read_buckets([each[at] for each in runs], bucket, bucket + 1, width)[0]
            for at, width in enumerate(self._widths.values())
        )
        if not self._is_text:
            return pa.array(data[0].view(np.int64)), rows.view(np.int64)
        offsets = np.concatenate([[0], np.cumsum(data[0].view(np.int64))])
        return text_array(offsets, data[1]), rows.view(np.int64)

    def groups(self, bucket: int) -> Iterator[tuple[pa.Array, np.ndarray]]:
        """Yields the ids of a bucket and their rows, about `_GROUP` at a time: an edge's end may be the same a billion times."""
        held: list[list[Runs]] = []
        size = 0
        for of_task in self._runs:
            table = of_task[0].table
            for run, ids in enumerate((table[:, bucket + 1] - table[:, bucket]).tolist()):
                if size and size + ids > _GROUP:
                    yield self._read(bucket, held)
                    held, size = [], 0
                held.append([Runs(each.path, each.table[run : run + 1]) for each in of_task])
                size += ids
        if size:
            yield self._read(bucket, held)


def join_bucket(nodes: DealtIds, ends: DealtIds, bucket: int, found: RunWriter) -> tuple[int, pa.Array] | None:
    """Finds the rows of the ends of edges in one bucket, and deals them out over ranges of `EDGES_AT_ONCE` edges.

    Returns the first end that is no node's id, if any: the edge and its id [1].
    """
    unknown: tuple[int, pa.Array] | None = None
    known, rows = nodes.read(bucket)
    for ids, edges in ends.groups(bucket):
        at = positions(ids, known)
        if (bad := at < 0).any():
            first = int(np.where(bad, edges, np.iinfo(np.int64).max).argmin())
            if unknown is None or edges[first] < unknown[0]:
                unknown = int(edges[first]), ids.slice(first, 1)
        elif unknown is None:
            records = np.empty(len(ids), JOINED)
            records["edge"], records["row"] = edges, rows[at]
            found.deal(records, edges // EDGES_AT_ONCE)
    return unknown


def positions(ids: pa.Array, known: pa.Array) -> np.ndarray:
    """Returns int64 [n]: where each id is in ``known`` first; -1 for null and for one that is not there."""
    return pc.index_in(ids, value_set=known, skip_nulls=True).fill_null(-1).to_numpy().astype(np.int64)


def text_buffers(ids: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns (int64 [n + 1], from 0, the end of each text; uint8, the bytes of all)."""
    if not len(ids):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    _, offsets, data = ids.buffers()
    ends = np.frombuffer(offsets, np.int64)[ids.offset : ids.offset + len(ids) + 1]
    return ends - ends[0], np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]


def text_array(offsets: np.ndarray, data: np.ndarray) -> pa.Array:
    """Makes the texts of `text_buffers` again, over the same memory."""
    return pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, [None, *map(pa.py_buffer, (offsets, data))])


def _hash_texts(ids: pa.Array) -> np.ndarray:
    """Returns uint64 [n], a hash of each text: eight bytes after the other of all texts at once."""
    offsets, data = text_buffers(ids)
    padded = np.concatenate([data, np.zeros(8, np.uint8)])
    words = np.ndarray(len(padded) - 7, "<u8", padded, strides=(1,))
    begin, length = offsets[:-1], np.diff(offsets)
    found, left = mix64(length.view(np.uint64)), np.arange(len(length))
    for at in range(0, int(length.max(initial=0)), 8):
        left = left[length[left] > at]
        spare = np.maximum(8 - (length[left] - at), 0).astype(np.uint64) * np.uint64(8)  # bits of the text behind
        word = words[begin[left] + at] << spare
        found[left] = mix64(found[left] ^ word)
    return found
