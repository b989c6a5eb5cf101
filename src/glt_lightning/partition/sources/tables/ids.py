"""The ids of nodes in tables, and the rows that they stand for. More than fit in memory are joined on disk, by their hash."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glt_lightning.base import DataError
from glt_lightning.kernels import mix64
from glt_lightning.partition.arrays import ArrayWriter
from glt_lightning.partition.sources.files import NpyFile
from glt_lightning.partition.sources.tables.files import TableFiles, TablePiece
from glt_lightning.partition.tasks.exchange import Runs, RunWriter, cut, read_buckets

_MOST = str(2**63 - 1)


# Numbers of 19 digits that fit in an int64: the first i digits are those of the greatest, the next is less.
_WIDE = [f"{_MOST[:i]}[{int(i == 0)}-{int(_MOST[i]) - 1}][0-9]{{{18 - i}}}" for i in range(19) if _MOST[i] != "0"]


# How an int64 is written.
_NUMBER = rf"^(0|-?([1-9][0-9]{{0,17}}|{'|'.join(_WIDE)}|{_MOST}))$"

_BUCKET = 1 << 19  # ids that are looked up in memory: a hash table of text takes about 200 bytes for each
_GROUP = 1 << 20  # ids that are looked up at once, and rows that are written at once
_IDS = ("ids.npy", "ids_offsets.npy", "ids_bytes.npy")


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


def id_types(table: TableFiles, columns: Iterable[str]) -> dict[str, pa.DataType]:
    """Returns the types by which ids are read. Ids in a text file stay text until all are known: 007 is another id than 7."""
    return dict.fromkeys(columns, pa.large_string()) if table.is_text else table.types(columns)


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

    def chunks(self) -> Iterator[pa.Array]:
        yield self.ids

    @cached_property
    def first(self) -> int | None:
        """The first id, if each id is one more than the id before; else None."""
        if self.is_text:
            return None
        begin, following = None, None
        for ids in self.chunks():
            numbers = ids.to_numpy()
            if not len(numbers):
                continue
            least, most = int(numbers[0]), int(numbers[-1])
            begin = least if begin is None else begin
            if following not in (None, least) or most - least != len(numbers) - 1 or (np.diff(numbers) != 1).any():
                return None
            following = most + 1
        return begin

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
        return _positions(ids, self.ids)


class StoredIds(KeyIds):
    """The ids of a table of nodes, in the files of its folder: ``ids.npy`` [N], or for text the bytes of all ids (UTF-8) and the
    end of each.

    Attributes:
        buckets: The ids by their hash, after `deal`; None if they are few, or consecutive numbers.
    """

    def __init__(self, folder: Path) -> None:
        self.is_text = (folder / "ids_bytes.npy").exists()
        self._files = [NpyFile(folder / name) for name in (_IDS[1:] if self.is_text else _IDS[:1])]
        self.count = len(self._files[0]) - self.is_text
        self.buckets: DealtIds | None = None

    def deal(self, work: Path) -> None:
        """Deals them out by their hash if they are many. work: folder of the buckets, which is made."""
        if self.count <= _BUCKET or self.first is not None:
            return
        with closing(DealtIds(work, -(-self.count // _BUCKET), self.is_text)) as self.buckets:
            at = 0
            for ids in self.chunks():
                self.buckets.add(ids, at)
                at += len(ids)

    @cached_property
    def ids(self) -> pa.Array:
        """All of them, in memory."""
        return self._read(0, self.count)

    def _read(self, begin: int, end: int) -> pa.Array:
        if not self.is_text:
            return pa.array(self._files[0][begin:end])
        offsets = self._files[0][begin : end + 1]
        return text_array(offsets - offsets[0], self._files[1][int(offsets[0]) : int(offsets[-1])])

    def chunks(self) -> Iterator[pa.Array]:
        for begin, end in cut(self.count, _GROUP):
            yield self._read(begin, end)

    def _look_up(self, ids: pa.Array) -> np.ndarray:
        if self.buckets is None:
            return super()._look_up(ids)
        found, bucket = np.full(len(ids), -1, np.int64), self.buckets.bucket_of(ids)
        for each in np.unique(bucket).tolist():
            at = np.flatnonzero(bucket == each)
            known, rows = self.buckets.read(each)
            found[at] = np.append(rows, -1)[_positions(ids.take(pa.array(at)), known)]
        return found

    def check_unique(self, table: TableFiles, column: str) -> None:
        """Raises `DataError` with the first id that occurs twice."""
        if self.first is not None:
            return
        again: list[tuple[int, int, pa.Scalar]] = []
        for bucket in range(1 if self.buckets is None else self.buckets.count):
            ids, rows = (self.ids, np.arange(self.count)) if self.buckets is None else self.buckets.read(bucket)
            first = _positions(ids, ids)
            if (twice := first != np.arange(len(ids))).any():
                at = int(twice.argmax())
                again.append((int(rows[at]), int(rows[first[at]]), ids[at]))
        if again:
            row, earlier, given = min(again, key=lambda found: found[0])
            raise DataError(
                f"{table.place(row)}, column {column!r}: id {given.as_py()!r} was given before "
                f"({table.place(earlier)}); a node has one row. Remove one of them."
            )


NodeIds = RowIds | KeyIds


class IdWriter:
    """Writes the ids of a table of nodes while it is read. Use it in a ``with`` block.

    from_text: they are of a text file, which has no other form of a number.
    """

    def __init__(self, folder: Path, kind: pa.DataType, from_text: bool) -> None:
        self._folder, self._numbers = folder, from_text
        self._is_text, self._stack, self._end = bool(pa.types.is_large_string(kind)), ExitStack(), 0
        dtypes = dict(zip(_IDS[1:], (np.int64, np.uint8), strict=True)) if self._is_text else {_IDS[0]: np.int64}
        self._writers = [
            self._stack.enter_context(ArrayWriter(folder, name, dtype, hashed=False)) for name, dtype in dtypes.items()
        ]
        if self._is_text:
            self._writers[0].write(np.zeros(1, np.int64))

    def write(self, ids: pa.Array) -> None:
        if not self._is_text:
            self._writers[0].write(ids.to_numpy())
            return
        self._numbers = self._numbers and pc.all(pc.match_substring_regex(ids, _NUMBER), min_count=0).as_py()
        offsets, data = text_buffers(ids)
        self._writers[0].write(offsets[1:] + self._end)
        self._writers[1].write(data)
        self._end += len(data)

    def __enter__(self) -> IdWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._stack.__exit__(kind, *rest)  # type: ignore[arg-type]
        if kind is None and self._is_text and self._numbers:
            with IdWriter(self._folder, pa.int64(), False) as numbers:
                for ids in StoredIds(self._folder).chunks():
                    numbers.write(pc.cast(ids, pa.int64()))
            for name in _IDS[1:]:
                (self._folder / name).unlink()


class DealtIds:
    """Ids with the rows they are of, dealt out over buckets by their hash, in files of a folder."""

    def __init__(self, folder: Path, buckets: int, is_text: bool) -> None:
        folder.mkdir(parents=True)
        self.count, self._is_text = buckets, is_text
        self._widths = {"rows": 8} | ({"lengths": 8, "bytes": 1} if is_text else {"values": 8})
        self._stack = ExitStack()
        self._writers = [
            self._stack.enter_context(RunWriter(folder / name, width, buckets)) for name, width in self._widths.items()
        ]
        self._runs: list[Runs] = []

    def bucket_of(self, ids: pa.Array) -> np.ndarray:
        """Returns uint32 [n], the bucket of each id; that of 0 for null."""
        hashes = _hash_texts(ids) if self._is_text else mix64(ids.fill_null(0).to_numpy().view(np.uint64))
        return (hashes % np.uint64(self.count)).astype(np.uint32)

    def add(self, ids: pa.Array, first: int) -> None:
        """Deals out ids. first: row of the first one; the others follow."""
        bucket = self.bucket_of(ids)
        order = np.argsort(bucket, kind="stable")
        sizes = np.bincount(bucket, minlength=self.count)
        self._writers[0].add(order + first, sizes)
        ids = ids.take(pa.array(order))
        if not self._is_text:
            self._writers[1].add(ids.fill_null(0).to_numpy(), sizes)
            return
        offsets, data = text_buffers(ids)
        ends = np.concatenate([[0], np.cumsum(sizes)])
        self._writers[1].add(np.diff(offsets), sizes)
        self._writers[2].add(data, np.diff(offsets[ends]))

    def close(self) -> None:
        """Ends the writing; `read` and `groups` come after it. Safe to call twice."""
        self._stack.close()
        self._runs = [writer.runs for writer in self._writers]

    def read(self, bucket: int, runs: slice = slice(None)) -> tuple[pa.Array, np.ndarray]:
        """Returns the ids of a bucket and their rows, int64 [n], ascending. runs: only what was added in these calls."""
        files = [Runs(each.path, each.table[runs]) for each in self._runs]
        rows, *data = (
            read_buckets([each], bucket, bucket + 1, width)[0]
            for each, width in zip(files, self._widths.values(), strict=True)
        )
        if not self._is_text:
            return pa.array(data[0].view(np.int64)), rows.view(np.int64)
        offsets = np.concatenate([[0], np.cumsum(data[0].view(np.int64))])
        return text_array(offsets, data[1]), rows.view(np.int64)

    def groups(self, bucket: int) -> Iterator[tuple[pa.Array, np.ndarray]]:
        """Yields the ids of a bucket and their rows, about `_GROUP` at a time: an edge's end may be the same a billion times."""
        table = self._runs[0].table
        sums = np.concatenate([[0], np.cumsum(table[:, bucket + 1] - table[:, bucket])])
        begin = 0
        while begin < len(table):
            end = max(begin + 1, int(np.searchsorted(sums, sums[begin] + _GROUP, "right")) - 1)
            yield self.read(bucket, slice(begin, end))
            begin = end


class IdJoin:
    """Looks up one end of many edges in the buckets of `StoredIds`: ends are dealt out by their hash, bucket by bucket they find
    their rows, and the rows are brought back into the order of the edges. Each is written and read once.
    """

    def __init__(self, ids: StoredIds, nodes: DealtIds, folder: Path) -> None:
        self._ids, self._nodes, self._folder = ids, nodes, folder
        self._edges = DealtIds(folder, nodes.count, ids.is_text)
        self._count, self._kind = 0, pa.large_string()
        self.unknown: tuple[int, pa.Array] | None = None  # the first edge whose id is not one of these, and the id [1]

    def add(self, ids: pa.Array) -> None:
        known, self._kind = self._ids.compared(ids), ids.type
        if known.null_count:
            row = int(pc.index(pc.is_null(known), True).as_py())
            self._miss(self._count + row, ids.slice(row, 1))
        self._edges.add(known, self._count)
        self._count += len(ids)

    def close(self) -> None:
        self._edges.close()

    def _miss(self, edge: int, one: pa.Array) -> None:
        if self.unknown is None or edge < self.unknown[0]:
            self.unknown = edge, one

    def rows(self) -> Iterator[np.ndarray]:
        """Yields the row of each end, in the order of the edges. Ends early if there is an `unknown` one."""
        self.close()
        record, capacity = np.dtype([("edge", np.int64), ("row", np.int64)]), _GROUP
        pieces = -(-self._count // capacity)
        with RunWriter(self._folder / "found", record.itemsize, pieces) as found:
            for bucket in range(self._nodes.count):
                known, rows = self._nodes.read(bucket)
                for ids, edges in self._edges.groups(bucket):
                    at = _positions(ids, known)
                    if (bad := at < 0).any():
                        first = int(bad.argmax())
                        self._miss(int(edges[first]), pc.cast(ids.slice(first, 1), self._kind))
                    elif self.unknown is None:
                        records = np.empty(len(ids), record)
                        records["edge"], records["row"] = edges, rows[at]
                        found.deal(records, edges // capacity)
        for piece in range(pieces if self.unknown is None else 0):
            records = read_buckets([found.runs], piece, piece + 1, record.itemsize)[0].view(record)
            ends = np.empty(len(records), np.int64)
            ends[records["edge"] - piece * capacity] = records["row"]
            yield ends


def _positions(ids: pa.Array, known: pa.Array) -> np.ndarray:
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
