"""The tasks that convert tables: functions of a `TableJob` and of JSON values that return a JSON value, by name. Between them,
the first process adds up what they found (``convert.py``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glt_lightning.partition.arrays import ArrayPieces
from glt_lightning.partition.sources.tables.columns import LabelColumn, split_codes
from glt_lightning.partition.sources.tables.files import (
    Range,
    Scan,
    TablePiece,
    count_rows,
    fitting_types,
    reading,
    scan_blocks,
)
from glt_lightning.partition.sources.tables.ids import (
    EDGES_AT_ONCE,
    JOINED,
    DealtIds,
    IdDealer,
    IdPiece,
    KeyIds,
    NodeIds,
    StoredIds,
    ids_of,
    join_bucket,
    store_ids,
)
from glt_lightning.partition.sources.tables.job import TableJob, piece_name
from glt_lightning.partition.sources.tables.mapping import EdgeTable
from glt_lightning.partition.sources.tables.writers import ColumnPieces, Read, readers
from glt_lightning.partition.tasks.exchange import finished_runs, load_runs, read_buckets

_CHUNK = 1 << 20  # edges that are looked up at once
_CHUNK_BYTES = 128 << 20  # of their ids
INT32_MAX = 2**31 - 1
ENDS = ("source", "destination")


def scan_text(job: TableJob, table: str, file: int, begin: int, end: int) -> list[Scan]:
    """Counts the rows of blocks of a text file: `scan_blocks`."""
    path = job.files(table).paths[file]
    with reading(path):
        return scan_blocks(path, begin, end)


def count_text(job: TableJob, table: str, file: int) -> int:
    """Counts the rows of a text file, from its beginning."""
    path = job.files(table).paths[file]
    with reading(path):
        return count_rows(path)


def find_types(
    job: TableJob, table: str, columns: list[str], missing: list[str], rows: Sequence[int]
) -> dict[str, list[int]]:
    """Tells which types fit the values of a range of a text file: `fitting_types`."""
    text = dict.fromkeys(columns, pa.large_string())
    pieces = job.files(table).read(Range(*rows), text, job.layout(table))
    return fitting_types((piece.batch for piece in pieces), columns, missing)


def fit_rows(job: TableJob, table: str, rows: Sequence[int]) -> dict[str, list[Any]]:
    """Reads a range of the columns that are fitted."""
    fits, given = job.fits(table), Range(*rows)
    return fits.read(job.files(table).read(given, fits.fitting.types, job.layout(table)), job.fit_folder(table, given))


def convert_rows(job: TableJob, table: str, rows: Sequence[int]) -> dict[str, Any]:
    """Converts a range of rows: writes attributes, ids as they are, rows of ends that are looked up in memory, labels and splits.

    Returns the shapes of the arrays, what is found out of ids or ends, and the names of classes.
    """
    given, plan, columns, files = Range(*rows), job.plan(table), job.table(table), job.files(table)
    labels = None if columns.label is None else LabelColumn(columns.label)
    scratch: dict[str, Read] = {} if labels is None else {"y": labels.read}
    if columns.split is not None:
        scratch["splits"] = partial(split_codes, name=columns.split)
    with ExitStack() as stack:
        arrays = ColumnPieces(job.array_folder(table), readers(columns, plan.encoding), given.first)
        others = ColumnPieces(job.scratch(table), scratch, given.first)
        writers: dict[str, ColumnPieces | IdPiece | _Ends] = {"arrays": arrays, "scratch": others}
        if isinstance(columns, EdgeTable):
            writers["ends"] = _Ends(job, table, columns, given)
        elif columns.id is not None:
            folder = job.scratch(table) / "ids" / piece_name(given)
            writers["ids"] = IdPiece(folder, columns.id, plan.types[columns.id], files.is_text)
        for writer in writers.values():
            stack.enter_context(writer)
        for piece in files.read(given, plan.types, job.layout(table)):
            for writer in writers.values():
                writer.write(piece)
        found: dict[str, Any] = {"classes": None if labels is None else labels.classes}
        return found | {name: writer.facts() for name, writer in writers.items()}


class _Ends(ExitStack):
    """The ends of edges: looked up in memory many at a time, or dealt out to be joined."""

    def __init__(self, job: TableJob, table: str, edges: EdgeTable, rows: Range) -> None:
        super().__init__()
        edge_type = job.type_of(table)
        self._columns, self._types = [str(edges.source), str(edges.destination)], [edge_type[0], edge_type[2]]
        self._ids: list[NodeIds] = [job.ids(t) for t in self._types]
        self._job, self._table, self._at = job, table, rows.first
        self._held: list[list[pa.Array]] = [[], []]
        self._count = self._nbytes = 0
        self._unknown: list[list[Any] | None] = [None, None]
        self._into = [self._writer(n, rows) for n in (0, 1)]
        for each in self._into:
            self.enter_context(each)

    def _writer(self, end: int, rows: Range) -> IdDealer | ArrayPieces:
        name, ids = ENDS[end], self._ids[end]
        if isinstance(ids, StoredIds) and ids.buckets is not None:
            folder = self._job.scratch(self._table) / name / piece_name(rows)
            return IdDealer(folder, ids.buckets.count, ids.is_text)
        return ArrayPieces(self._job.array_folder(self._table), f"{name}.npy", row_dtype(ids))

    def write(self, piece: TablePiece) -> None:
        for held, column in zip(self._held, self._columns, strict=True):
            held.append(ids_of(piece, column))
            self._nbytes += held[-1].nbytes
        self._count += len(piece)
        if self._count >= _CHUNK or self._nbytes >= _CHUNK_BYTES:
            self._flush()

    def facts(self) -> list[list[Any] | None]:
        """Writes the rest. Returns for each end the first that is no node: the edge, and its id."""
        self._flush()
        return self._unknown

    def _flush(self) -> None:
        if not self._held[0]:
            return
        ends = [pa.concat_arrays(pieces) for pieces in self._held]
        found: list[np.ndarray] | None = None
        if self._types[0] == self._types[1] and ends[0].type == ends[1].type and isinstance(self._into[0], ArrayPieces):
            # One question for both: it costs a table of all ids.
            found = np.split(self._ids[0].find(pa.concat_arrays(ends)), [self._count])
        for n, (ids, nodes, into) in enumerate(zip(ends, self._ids, self._into, strict=True)):
            if isinstance(into, ArrayPieces):
                rows = nodes.find(ids) if found is None else found[n]
                self._note(n, ids, rows < 0)
                into.write(self._at, rows)
            else:
                assert isinstance(nodes, KeyIds)
                known = nodes.compared(ids)
                self._note(n, ids, pc.is_null(known).to_numpy(zero_copy_only=False))
                into.add(known, self._at)
        self._at += self._count
        self._held, self._count, self._nbytes = [[], []], 0, 0

    def _note(self, end: int, ids: pa.Array, bad: np.ndarray) -> None:
        """Notes the first end that is no node."""
        if self._unknown[end] is None and bad.any():
            row = int(bad.argmax())
            self._unknown[end] = [self._at + row, ids[row].as_py()]


def row_dtype(ids: NodeIds) -> type:
    """Returns the dtype of rows of nodes."""
    return np.int32 if ids.count <= INT32_MAX else np.int64


def place_ids(job: TableJob, table: str, rows: Sequence[int], base: int, is_text: bool, buckets: int) -> None:
    """Writes the ids of a range to their place; deals them out if they are many. base: bytes before them, of text."""
    given, name = Range(*rows), piece_name(Range(*rows))
    stored = store_ids(job.scratch(table) / "ids" / name, job.array_folder(table), given.first, base, is_text)
    with IdDealer(job.scratch(table) / "dealt" / name, buckets, is_text) if buckets else nullcontext() as dealer:
        for first, ids in stored:
            if dealer is not None:
                dealer.add(ids, first)


def check_ids(job: TableJob, table: str, low: int, high: int) -> tuple[int, int, Any] | None:
    """Returns the first id of some buckets that occurs twice: `StoredIds.first_again`."""
    ids = job.ids(job.type_of(table))
    assert isinstance(ids, StoredIds)
    return ids.first_again(low, high)


def join_ends(
    job: TableJob, table: str, end: int, pieces: list[str], edges: int, low: int, high: int
) -> tuple[int, Any] | None:
    """Finds the rows of the ends of edges in some buckets. Returns the first that is no node: the edge, and its id."""
    ids = job.ids(job.type_of(table)[2 * end])
    assert isinstance(ids, StoredIds)
    assert ids.buckets is not None
    folder = job.scratch(table) / ENDS[end]
    dealt = DealtIds([folder / piece for piece in pieces], ids.buckets.count, ids.is_text)
    unknown = None
    with finished_runs(folder / f"found.{low}", JOINED.itemsize, -(-edges // EDGES_AT_ONCE)) as found:
        for bucket in range(low, high):
            first = join_bucket(ids.buckets, dealt, bucket, found)
            if first is not None and (unknown is None or first[0] < unknown[0]):
                unknown = first[0], first[1][0].as_py()
    return unknown


def place_ends(job: TableJob, table: str, end: int, groups: list[int], edges: int, low: int, high: int) -> None:
    """Writes the rows of the ends of some edges. low, high: in `EDGES_AT_ONCE`.  groups: the first buckets of `join_ends`."""
    runs = [load_runs(job.scratch(table) / ENDS[end] / f"found.{group}") for group in groups]
    dtype = row_dtype(job.ids(job.type_of(table)[2 * end]))
    with ArrayPieces(job.array_folder(table), f"{ENDS[end]}.npy", dtype) as writer:
        for at in range(low, high):
            records = read_buckets(runs, at, at + 1, JOINED.itemsize)[0].view(JOINED)
            first = at * EDGES_AT_ONCE
            rows: np.ndarray = np.empty(len(records), dtype)
            rows[records["edge"] - first] = records["row"]
            writer.write(first, rows)


TASKS: dict[str, Callable[..., Any]] = {
    task.__name__: task
    for task in (scan_text, count_text, find_types, fit_rows, convert_rows, place_ids, check_ids, join_ends, place_ends)
}
