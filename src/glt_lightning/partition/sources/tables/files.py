"""Files of tables: the files that a path stands for, and their columns as a stream of record batches."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from glt_lightning.base import DataError
from glt_lightning.graph import open_regular
from glt_lightning.partition.sources.tables.location import File, find_files, for_arrow, open_binary

PARQUET = (".parquet", ".pq")
TEXT = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
_BATCH_BYTES = 16 << 20
_MAX_BATCH = 1 << 17
_MOST_ROWS = 1 << 25  # of a range: a run that is interrupted loses no more
_BUFFER = 64 << 10  # per column: a row group may be larger than memory


@dataclass(frozen=True)
class TablePiece:
    """Some rows of a table.

    place: describes a row of the table, by its number, in errors.  begin: number of the first of these rows.
    """

    batch: pa.RecordBatch
    place: Callable[[int], str]
    begin: int = 0

    def __len__(self) -> int:
        return self.batch.num_rows

    def column(self, name: str) -> pa.Array:
        return self.batch.column(name)

    def error(self, column: str, row: int, message: str) -> DataError:
        """Makes an error about a row of this piece."""
        return DataError(f"{self.place(self.begin + row)}, column {column!r}: {message}")


class Range(NamedTuple):
    """Some rows of one file of a table, which a task reads; its argument as a list.

    begin, end: rows of a Parquet file, blocks of a text file.  first: number of the first row in the table.  rows: how many.
    """

    file: int
    begin: int
    end: int
    first: int
    rows: int


@dataclass(frozen=True)
class Layout:
    """The rows of the files of a table.

    rows: of each file, the rows of each row group or of each block of text.
    cuts: of each text file, the places in bytes between the rows of one block and the next, from 0 to its end; None: it can only
        be read from its beginning, and its rows are those of one block.
    """

    rows: list[list[int]]
    cuts: list[list[int] | None]

    @property
    def starts(self) -> list[int]:
        """The first row of each file."""
        return [0, *accumulate(map(sum, self.rows))][:-1]

    @property
    def num_rows(self) -> int:
        return sum(map(sum, self.rows))


class TableFiles:
    """The files of one table, all Parquet or all text, read in order.

    Attributes:
        infer: Finds the types of columns of text files, by `chosen_types`.
    """

    def __init__(self, what: str, path: tuple[str, ...]) -> None:
        self.what = what
        self.paths = list_files(what, path)
        kinds = {is_text(file) for file in self.paths}
        if len(kinds) > 1:
            raise DataError(f"dataset: {what}: path: expected Parquet files or text files, not both in one table.")
        self.is_text = kinds.pop()
        self.infer: Callable[[list[str], Sequence[str]], dict[str, pa.DataType]] = self._infer_here
        self._starts: list[int] = []  # first row of each file opened so far

    @property
    def columns(self) -> list[str]:
        """Names of the columns of the first file."""
        return self._columns_of(self.paths[0])

    def _columns_of(self, path: File) -> list[str]:
        with reading(path):
            return text_columns(path) if self.is_text else list(pq.read_schema(for_arrow(path)).names)

    @property
    def num_rows(self) -> int:
        """Number of rows of all files; 0 if only reading them would tell."""
        return 0 if self.is_text else sum(_metadata(path).num_rows for path in self.paths)

    def types(self, columns: Iterable[str], missing: Sequence[str] = ()) -> dict[str, pa.DataType]:
        """Returns the type of each column over all files; for text files the narrowest type that fits all values.

        missing: words of text files that mean "no value".
        """
        wanted = list(dict.fromkeys(columns))
        self.check_columns(wanted)
        if self.is_text:
            return self.infer(wanted, missing)
        found: list[pa.Schema] = []
        for path in self.paths:
            with reading(path):
                schema = pq.read_schema(for_arrow(path))
            found.append(pa.schema([(name, _decoded(schema.field(name).type)) for name in wanted]))
            try:
                found = [pa.unify_schemas(found, promote_options="permissive")]
            except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
                raise DataError(f"{path}: a column has another type than in {self.paths[0].name} ({error}).") from None
        return {name: found[0].field(name).type for name in wanted}

    def read_types(self, columns: Iterable[str]) -> dict[str, pa.DataType]:
        """Returns the types by which columns are read whose meaning is not known: all columns of text files are text."""
        return dict.fromkeys(columns, pa.large_string()) if self.is_text else self.types(columns)

    def _infer_here(self, columns: list[str], missing: Sequence[str]) -> dict[str, pa.DataType]:
        with reading(self.paths[0]):
            batches = (batch for path in self.paths for batch in text_batches(path, columns))
            return chosen_types([fitting_types(batches, columns, missing)])

    def row_groups(self) -> list[list[int]]:
        """Returns the number of rows of each row group, for each file of Parquet."""
        found = map(_metadata, self.paths)
        return [[each.row_group(i).num_rows for i in range(each.num_row_groups)] for each in found]

    def ranges(self, layout: Layout, columns: int, parts: int) -> list[Range]:
        """Splits the rows into some ``parts``. Batches of ``columns`` columns are the same, however they are split."""
        self._starts = layout.starts
        target = max(1, min(_MOST_ROWS, -(-layout.num_rows // parts)))
        found = []
        for index, (start, units) in enumerate(zip(layout.starts, layout.rows, strict=True)):
            batch = 1 if self.is_text else self._batch_rows(_metadata(self.paths[index]), columns)
            total, read, first_unit, end = sum(units), 0, 0, 0
            for unit, rows in enumerate(units):
                end += rows
                last = unit == len(units) - 1
                if not last and end - read < target:
                    continue
                to = total if last else min(total, -(-end // batch) * batch)  # where a batch begins
                if to > read:
                    bounds = (first_unit, unit + 1) if self.is_text else (read, to)
                    found.append(Range(index, *bounds, start + read, to - read))
                    read, first_unit = to, unit + 1
        return found or [Range(0, 0, 0, 0, 0)]

    def read(self, rows: Range, types: Mapping[str, pa.DataType], layout: Layout) -> Iterator[TablePiece]:
        """Yields the named columns of a range, converted to these types, some megabytes at a time; of an empty one a piece
        without rows, from which callers learn types and widths. Raises `DataError` if the rows are not those of the layout."""
        self._starts = layout.starts
        path, begin, end = self.paths[rows.file], rows.first, rows.first + rows.rows
        if not rows.rows:
            yield self._empty(types)
            return
        with reading(path):
            for batch in self._batches_of(rows, list(types), layout):
                begin += batch.num_rows
                if begin > end:
                    break
                yield self._converted(batch, begin - batch.num_rows, types)
        if begin != end:
            raise DataError(f"{path}: it changed while it was read: let no other process write to it.")

    def _batches_of(self, rows: Range, columns: list[str], layout: Layout) -> Iterator[pa.RecordBatch]:
        path = self.paths[rows.file]
        if not self.is_text:
            return self._parquet_rows(path, columns, rows.begin, rows.end)
        cuts = layout.cuts[rows.file]
        if cuts is None:
            return text_batches(path, columns)
        first = rows.first - layout.starts[rows.file]
        return block_batches(path, columns, cuts[rows.begin : rows.end + 1], first)

    def _parquet_rows(
        self, path: File, columns: list[str], begin: int = 0, end: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows [begin, end) of a file in the batches in which the whole file is read: sums are the same."""
        file = pq.ParquetFile(for_arrow(path), buffer_size=_BUFFER, pre_buffer=False)
        bounds = [0, *accumulate(file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups))]
        end = bounds[-1] if end is None else end
        low, high = bisect.bisect_right(bounds, begin) - 1, bisect.bisect_left(bounds, end)
        size, at, skip = self._batch_rows(file.metadata, len(columns)), begin, begin - bounds[low]
        held: list[pa.RecordBatch] = []
        for batch in file.iter_batches(size, row_groups=[*range(low, high)], columns=columns):
            skipped = min(skip, batch.num_rows)
            skip, batch = skip - skipped, batch.slice(skipped)
            while batch.num_rows and at < end:
                wanted = min(end, (at // size + 1) * size) - at - sum(each.num_rows for each in held)
                held.append(batch.slice(0, wanted))
                batch = batch.slice(wanted)
                if held[-1].num_rows == wanted:
                    whole = held[0] if len(held) == 1 else pa.concat_batches(held)
                    yield whole
                    at, held = at + whole.num_rows, []

    def pieces(self, types: Mapping[str, pa.DataType]) -> Iterator[TablePiece]:
        """Yields all rows of the named columns, converted to these types, some megabytes at a time."""
        self.check_columns(types)
        self._starts = []
        begin = 0
        for path in self.paths:
            self._starts.append(begin)
            with reading(path):
                batches = text_batches if self.is_text else self._parquet_rows
                for batch in batches(path, list(types)):
                    yield self._converted(batch, begin, types)
                    begin += batch.num_rows
        if begin == 0:  # an empty table: one piece without rows, from which callers learn types and widths
            yield self._empty(types)

    def _converted(self, batch: pa.RecordBatch, begin: int, types: Mapping[str, pa.DataType]) -> TablePiece:
        piece = TablePiece(batch, self.place, begin)
        arrays = [_cast(piece, name, kind) for name, kind in types.items()]
        return replace(piece, batch=pa.record_batch(arrays, list(types)))

    def _empty(self, types: Mapping[str, pa.DataType]) -> TablePiece:
        return TablePiece(pa.RecordBatch.from_pylist([], pa.schema([*types.items()])), self.place)

    def place(self, row: int) -> str:
        """Describes a row that was read by its file and its row there, from 0."""
        index = bisect.bisect_right(self._starts, row) - 1
        return f"{self.paths[index]}: row {row - self._starts[index]}"

    @staticmethod
    def _batch_rows(metadata: Any, columns: int) -> int:
        rows = max(1, metadata.num_rows)
        size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        per_row = max(size // rows, 8 * columns, 1)
        return max(64, min(_MAX_BATCH, _BATCH_BYTES // per_row))

    def check_columns(self, wanted: Iterable[str]) -> None:
        """Raises `DataError` unless each file has each of these once."""
        for path in self.paths:
            known = self._columns_of(path)
            for name in wanted:
                if known.count(name) != 1:
                    how = "no column" if name not in known else "several columns"
                    raise DataError(
                        f"{path}: has {how} {name!r} (dataset: {self.what}); its columns: {_some(known)}. "
                        f"{_separator_hint(path, known)}Correct the name or the file."
                    )


def is_text(path: File) -> bool:
    return path.name.endswith(TEXT)


def list_files(what: str, path: tuple[str, ...]) -> list[File]:
    """Lists the files of ``path``, whose items are files, globs, folders or URLs of these; entries of a folder are sorted."""
    found: list[File] = []
    for each in path:
        files, is_folder = find_files(each, PARQUET + TEXT)
        if not files:
            why = "the folder has no such file" if is_folder else "there is no such file or folder"
            raise DataError(f"dataset: {what}: path: {each}: {why}; expected {', '.join(PARQUET + TEXT)}.")
        found += files
    for file in found:
        if not file.name.endswith(PARQUET + TEXT):
            raise DataError(f"dataset: {what}: path: {file}: its extension is not one of {', '.join(PARQUET + TEXT)}.")
        if isinstance(file, Path):
            with reading(file):
                open_regular(file).close()  # a FIFO would be waited for
    return found


@contextmanager
def reading(path: File) -> Iterator[None]:
    """Turns pyarrow's error about a file that cannot be read into a `DataError` of one line with the file's name."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        of_letters = isinstance(error, UnicodeDecodeError) or "UTF8" in reason
        encoding = "Save it as UTF-8 (iconv -f latin1 -t utf-8)."
        advice = encoding if of_letters else "It may be damaged or truncated."
        raise DataError(f"{path}: cannot be read as a table ({reason}). {advice}") from None


def _metadata(path: File) -> Any:
    with reading(path):
        return pq.read_metadata(for_arrow(path))


def _decoded(kind: pa.DataType) -> pa.DataType:
    """Simplifies a type to that of its values: no dictionaries, one kind of text, no decimals."""
    if pa.types.is_dictionary(kind):
        return _decoded(kind.value_type)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.float64() if pa.types.is_decimal(kind) else kind


def _cast(piece: TablePiece, name: str, kind: pa.DataType) -> pa.Array:
    """Returns a column as the type."""
    array = piece.column(name)
    if array.type == kind:
        return array
    if pa.types.is_large_string(array.type):
        array = pc.utf8_trim_whitespace(array)
    try:
        return pc.cast(array, kind, safe=not pa.types.is_timestamp(kind))
    except pa.ArrowException:
        row = first_failure(array, kind)
        value, advice = array[row].as_py(), ""
        if pa.types.is_float32(kind):  # of text files, only features are read as these
            encode = (
                f"set encode: {{{name}: category}} for categories, {{{name}: number}} for numbers with missing values, "
            )
            advice = f", or {number_advice(name, [value]) or f'{encode}auto to choose by the values of each column'}"
        raise piece.error(name, row, f"{value!r} is not a valid {kind}; correct the value{advice}.") from None


def first_failure(array: pa.Array, kind: pa.DataType) -> int:
    """Finds the first row that cannot be converted, of which there must be one."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            pc.cast(array.slice(low, middle - low), kind)
            low = middle
        except pa.ArrowException:
            high = middle
    return low


def _separator_hint(path: File, columns: list[str]) -> str:
    """Returns a hint if the header of a text file looks as if another character separated its columns; else ""."""
    if is_text(path) and len(columns) == 1:
        for character in (";", "\t", "|", ","):
            if character in columns[0]:
                return f"Commas separate the columns of .csv, tabs those of .tsv; here it seems to be {character!r}. "
    return ""


def _some(names: list[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


# CSV and TSV files. All columns are read as text: a type guessed from the first megabyte is wrong in the second.


_HEAD = 64
_BLOCK = 16 << 20  # the longest row


# From narrow to wide.
_TYPES = (pa.int64(), pa.float64(), pa.bool_(), pa.timestamp("us"), pa.timestamp("us", "UTC"))


# (thousands, decimal), the likeliest first
_WAYS_TO_WRITE = ((",", "."), (None, ","), (".", ","), *((space, end) for space in " \u00a0\u202f'_" for end in ".,"))


def text_columns(path: File) -> list[str]:
    """The names in the first row."""
    try:
        return list(_open(path, _BUFFER).schema.names)
    except pa.ArrowInvalid:  # it may be longer
        return list(_open(path, _BLOCK).schema.names)


def text_batches(path: File, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yields the columns as text; an empty cell is null."""
    yield from _open(path, _BLOCK, _as_text(columns))


def fitting_types(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str], missing: Sequence[str] = ()
) -> dict[str, list[int]]:
    """Returns for each column which of `_TYPES` fit all values of the batches.

    missing: words that mean "no value", besides an empty cell.
    """
    words = pa.array(["", *missing], pa.large_string())
    found = {name: [*range(len(_TYPES))] for name in columns}
    for batch in batches:
        for name in columns:
            if not found[name]:
                continue
            trimmed = pc.utf8_trim_whitespace(batch.column(name))
            if missing:
                trimmed = pc.if_else(pc.is_in(trimmed, value_set=words), pa.scalar(None, pa.large_string()), trimmed)
            fitting: list[int] = []
            for at in found[name]:
                if (at == 1 and fitting == [0]) or _fits(trimmed, _TYPES[at]):  # integers are floats
                    fitting.append(at)
            found[name] = fitting
    return found


def chosen_types(found: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, pa.DataType]:
    """Returns for each column the first type of integer, float, bool, time that fits all its values, else text.

    found: `fitting_types` of all pieces.
    """
    fitting = {name: set.intersection(*(set(each[name]) for each in found)) for name in found[0]}
    return {name: (*_TYPES, pa.large_string())[min(each, default=len(_TYPES))] for name, each in fitting.items()}


def _fits(array: pa.Array, kind: pa.DataType) -> bool:
    try:
        for some in (array.slice(0, _HEAD), array):  # a cast that fails makes a message for each value
            pc.cast(some, kind)
    except pa.ArrowException:
        return False
    return True


class Scan(NamedTuple):
    """Blocks of a text file, if a quote is open before them or not.

    rows: of each block, the number of rows that end there, header included.  cuts: for each, the place behind the last of them;
    that of an earlier one, or 0, where none ends.  open: whether a quote is open at the end.
    good: whether each quote is one of a pair around a value, or doubled inside; else only reading from the beginning tells.
    """

    rows: list[int]
    cuts: list[int]
    open: bool
    good: bool


def scan_blocks(path: File, begin: int, end: int) -> list[Scan]:
    """Counts the rows of the blocks [begin, end) of a text file, first as if no quote is open before them, then as if one is."""
    scans = [Scan([], [], is_open, True) for is_open in ((False,) if begin == 0 else (False, True))]
    with open_binary(path) as stream:
        size = path.stat().st_size
        stream.seek(max(0, begin * _BLOCK - 1))
        before, data = stream.read(1) if begin else b"\n", _read(stream, _BLOCK)
        for block in range(begin, end):
            following = _read(stream, _BLOCK)
            letters = np.frombuffer(before + data + (following[:1] or b"\n"), np.uint8)
            first, is_last = block * _BLOCK - 1, (block + 1) * _BLOCK >= size
            newlines = [np.flatnonzero(letters[:-1] == each) for each in b"\n\r" if each in data or each in before]
            ends = np.sort(np.concatenate([*newlines, np.zeros(0, np.int64)]))
            quotes = np.flatnonzero(letters[1:-1] == 34) + 1
            scans = [_scanned(each, letters, first, ends, quotes, is_last, _separator(path)) for each in scans]
            before, data = data[-1:] or before, following
    return scans


def _scanned(
    scan: Scan, letters: np.ndarray, first: int, newlines: np.ndarray, quotes: np.ndarray, is_last: bool, separator: str
) -> Scan:
    """Adds a block.

    letters: the block, with a byte before and one behind.  first: place of the one before.  newlines, quotes: where in it are
    ends of lines and quotes.
    """
    opens = (np.arange(len(quotes)) + scan.open) % 2 == 0
    beside = letters[np.where(opens, quotes - 1, quotes + 1)]
    good = bool(np.isin(beside, np.frombuffer(f'\n\r"{separator}'.encode(), np.uint8)).all())
    ends = newlines[(np.searchsorted(quotes, newlines) + scan.open) % 2 == 0]
    # empty lines are no rows, and \r\n is one end
    rows = int(np.count_nonzero(np.diff(ends) > 1)) + int(len(ends) > 0 and ends[0] > 0)
    rows += is_last and not (len(ends) > 0 and ends[-1] == len(letters) - 2)
    last = len(letters) - 2 if is_last else int(ends[-1]) if len(ends) else None
    cut = max(scan.cuts, default=0) if last is None else first + last + 1
    return Scan([*scan.rows, rows], [*scan.cuts, cut], scan.open ^ bool(len(quotes) % 2), scan.good and good)


def count_rows(path: File) -> int:
    return sum(batch.num_rows for batch in text_batches(path, text_columns(path)[:1]))


def block_count(path: File) -> int:
    return max(1, -(-path.stat().st_size // _BLOCK))


def block_batches(path: File, columns: list[str], cuts: Sequence[int], first: int) -> Iterator[pa.RecordBatch]:
    """Yields rows of a text file, those between two cuts by themselves. An empty cell is null.

    cuts: as of `Layout`.  first: number of the first row in the file.
    """
    names = text_columns(path)
    with open_binary(path) as stream:
        stream.seek(cuts[0])
        for begin, end in pairwise(cuts):
            text = _read(stream, end - begin)
            if text[:1] in b"\r\n" and not text.strip(b"\r\n"):
                continue
            try:
                table = csv.read_csv(
                    pa.BufferReader(text),
                    read_options=csv.ReadOptions(
                        block_size=len(text) + 1, use_threads=False, column_names=names if begin else None
                    ),
                    parse_options=_parsing(path),
                    convert_options=_as_text(columns),
                )
            except pa.ArrowInvalid as error:
                # counted in the file, the header included
                raise pa.ArrowInvalid(_later_row(str(error), first + 1 if begin else 0)) from None
            if table.num_rows:
                yield table.combine_chunks().to_batches()[0]
                first += table.num_rows


def _later_row(message: str, rows: int) -> str:
    return re.sub(r"(?<=Row #)\d+", lambda number: str(int(number[0]) + rows), message, count=1)


def _read(stream: BinaryIO, size: int) -> bytes:
    """Reads so many bytes, or to the end: one read of a store may return less."""
    parts, left = [], size
    while left and (part := stream.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _separator(path: File) -> str:
    return "\t" if path.name.removesuffix(".gz").endswith(".tsv") else ","


def _as_text(columns: list[str]) -> csv.ConvertOptions:
    return csv.ConvertOptions(
        include_columns=columns,
        column_types=dict.fromkeys(columns, pa.large_string()),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
    )


def _open(path: File, block: int, convert: csv.ConvertOptions | None = None) -> csv.CSVStreamingReader:
    return csv.open_csv(
        for_arrow(path),
        # One thread: only then do errors tell the row.
        read_options=csv.ReadOptions(block_size=block, use_threads=False),
        parse_options=_parsing(path),
        convert_options=convert,
    )


def _parsing(path: File) -> csv.ParseOptions:
    return csv.ParseOptions(delimiter=_separator(path), newlines_in_values=True)


def number_pattern(thousands: str | None, decimal: str) -> str:
    """The pattern of numbers that are written with these characters. In 1,5 a comma does not group digits."""
    point, group = re.escape(decimal), re.escape(thousands or "")
    grouped = f"|[0-9]{{1,3}}({group}[0-9]{{2,3}})*{group}[0-9]{{3}}" if thousands else ""
    return f"^[+-]?(([0-9]+{grouped})({point}[0-9]*)?|{point}[0-9]+)([eE][+-]?[0-9]+)?$"


def number_advice(column: str, values: Sequence[str]) -> str:
    """Returns advice on reading values as numbers, if they have other characters than a point; empty if they are no numbers."""
    for thousands, decimal in _WAYS_TO_WRITE:
        pattern = re.compile(number_pattern(thousands, decimal))
        if values and all(pattern.match(each) for each in values):
            named = {"thousands": thousands, "decimal": "," if decimal == "," else None}
            options = ", ".join(f"{name}: {character!r}" for name, character in named.items() if character)
            return f"for numbers that are written so, set encode: {{'*': auto, {column}: {{as: number, {options}}}}}"
    return ""
