"""The user's node ids: from id to row while edges are converted, and in files for the way back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glt_lightning.base import DataError
from glt_lightning.graph import ArrayWriter
from glt_lightning.partition.sources.tables.files import TableFiles, TablePiece

_MOST = str(2**63 - 1)
# Numbers of 19 digits that fit in an int64: the first i digits are those of the greatest, the next is less.
_WIDE = [f"{_MOST[:i]}[{int(i == 0)}-{int(_MOST[i]) - 1}][0-9]{{{18 - i}}}" for i in range(19) if _MOST[i] != "0"]
# How an int64 is written.
_NUMBER = rf"^(0|-?([1-9][0-9]{{0,17}}|{'|'.join(_WIDE)}|{_MOST}))$"
_LEAST_CHUNK = 1 << 20


def ids_of(piece: TablePiece, column: str) -> pa.Array:
    """Ids as int64 or text; raises `DataError` for null and for other types."""
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
    """Ids in a text file stay text until all are known: 007 is another id than 7."""
    return dict.fromkeys(columns, pa.large_string()) if table.is_text else table.types(columns)


class RowIds:
    """Nodes without ids: a node is named by its row."""

    def __init__(self, count: int) -> None:
        self.count = count

    def find(self, ids: pa.Array) -> np.ndarray:
        """int64, the row of each id; -1 where there is none."""
        rows = as_numbers(ids).fill_null(-1).to_numpy()
        return np.where((rows >= 0) & (rows < self.count), rows, -1)


class KeyIds:
    """Ids given by a column.

    pyarrow makes a hash table of all ids for each question: 1.4 s for 5 M text ids of 17 characters, and 1.8 s to look
    as many up. Whoever asks about at least half as many at once (`chunk_of`) pays about twice the look-up, however many
    edges there are.
    """

    def __init__(self, ids: pa.ChunkedArray, from_text: bool) -> None:
        if from_text and _all_numbers(ids):  # a text file has no other form of a number
            ids = pa.chunked_array([pc.cast(chunk, pa.int64()) for chunk in ids.chunks], pa.int64())
        self.ids = pa.concat_arrays(ids.chunks) if ids.num_chunks else pa.array([], ids.type)
        self.count = len(self.ids)
        self._first = self._consecutive()

    @property
    def is_text(self) -> bool:
        return bool(pa.types.is_large_string(self.ids.type))

    def _consecutive(self) -> int | None:
        """The first of ids that rise by one."""
        if self.is_text or not self.count:
            return None
        numbers = self.ids.to_numpy()
        first = int(numbers[0])
        same = numbers[-1] - first == self.count - 1 and bool((np.diff(numbers) == 1).all())
        return first if same else None

    def find(self, ids: pa.Array) -> np.ndarray:
        """int64, the row of each id; -1 where there is none. Numbers written as text are numbers."""
        if not self.is_text:
            ids = as_numbers(ids)
        elif not pa.types.is_large_string(ids.type):
            ids = pc.cast(ids, pa.large_string())
        if self._first is not None:
            valid = pc.is_valid(ids).to_numpy(zero_copy_only=False)
            rows = ids.fill_null(0).to_numpy()
            inside = valid & (rows >= self._first) & (rows < self._first + self.count)
            return np.where(inside, rows - self._first, -1)
        found = pc.index_in(ids, value_set=self.ids, skip_nulls=True)
        return found.fill_null(-1).to_numpy().astype(np.int64)

    def check_unique(self, table: TableFiles, column: str) -> None:
        """Raises `DataError` that names the first id which occurs again."""
        if self._first is not None:
            return
        first = self.find(self.ids)
        again = first != np.arange(self.count)
        if again.any():
            row = int(again.argmax())
            raise DataError(
                f"{table.place(row)}, column {column!r}: id {self.ids[row].as_py()!r} was given before "
                f"({table.place(int(first[row]))}); a node has one row. Remove one of them."
            )

    def write(self, folder: Path) -> None:
        """``ids.npy`` [N], or for text the bytes of all ids (UTF-8) and where each ends."""
        if not self.is_text:
            _write(folder, "ids.npy", self.ids.to_numpy())
            return
        _, offsets, data = self.ids.buffers()
        ends = np.frombuffer(offsets, np.int64)[self.ids.offset : self.ids.offset + self.count + 1]
        begin, end = (int(ends[0]), int(ends[-1])) if self.count else (0, 0)
        _write(folder, "ids_offsets.npy", ends - begin if self.count else np.zeros(1, np.int64))
        _write(folder, "ids_bytes.npy", np.frombuffer(data or b"", np.uint8)[begin:end])


NodeIds = RowIds | KeyIds


def chunk_of(*ids: NodeIds) -> int:
    """How many edges to look up at once: few enough for the memory that the ids take themselves."""
    return max(_LEAST_CHUNK, *(each.count // 2 for each in ids if isinstance(each, KeyIds)), 0)


def as_numbers(ids: pa.Array) -> pa.Array:
    """int64, null for what is no number."""
    if not pa.types.is_large_string(ids.type):
        return ids
    is_number = pc.match_substring_regex(ids, _NUMBER)
    return pc.cast(pc.if_else(is_number, ids, pa.scalar(None, pa.large_string())), pa.int64())


def _all_numbers(ids: pa.ChunkedArray) -> bool:
    return all(pc.all(pc.match_substring_regex(chunk, _NUMBER), min_count=0).as_py() for chunk in ids.chunks)


def _write(folder: Path, name: str, array: np.ndarray) -> None:
    with ArrayWriter(folder, name, array.dtype, hashed=False) as writer:
        writer.write(array)
