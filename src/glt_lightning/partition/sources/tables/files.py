"""Files of tables: the files that a path stands for, and their columns as a stream of record batches."""

from __future__ import annotations

import bisect
import glob
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from glt_lightning.base import DataError
from glt_lightning.graph import open_regular

PARQUET = (".parquet", ".pq")
TEXT = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
_BATCH_BYTES = 16 << 20
_MAX_BATCH = 1 << 17
_BUFFER = 64 << 10  # per column: a row group may be larger than memory


@dataclass(frozen=True)
class TablePiece:
    """A record batch of a table. begin: number of its first row in the table."""

    table: TableFiles
    begin: int
    batch: pa.RecordBatch

    def __len__(self) -> int:
        return self.batch.num_rows

    def column(self, name: str) -> pa.Array:
        return self.batch.column(name)

    def error(self, column: str, row: int, message: str) -> DataError:
        """Makes an error about a row of this piece."""
        return DataError(f"{self.table.place(self.begin + row)}, column {column!r}: {message}")


class TableFiles:
    """The files of one table, all Parquet or all text, read in order."""

    def __init__(self, what: str, path: tuple[str, ...]) -> None:
        self.what = what
        self.paths = list_files(what, path)
        kinds = {is_text(file) for file in self.paths}
        if len(kinds) > 1:
            raise DataError(f"dataset: {what}: path: expected Parquet files or text files, not both in one table.")
        self.is_text = kinds.pop()
        self._starts: list[int] = []  # first row of each file opened so far

    @property
    def columns(self) -> list[str]:
        """Names of the columns of the first file."""
        with reading(self.paths[0]):
            return text_columns(self.paths[0]) if self.is_text else list(pq.read_schema(self.paths[0]).names)

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
            with reading(self.paths[0]):
                return infer_types(self.paths, wanted, missing)
        found: list[pa.Schema] = []
        for path in self.paths:
            with reading(path):
                schema = pq.read_schema(path)
            found.append(pa.schema([(name, _decoded(schema.field(name).type)) for name in wanted]))
            try:
                found = [pa.unify_schemas(found, promote_options="permissive")]
            except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
                raise DataError(f"{path}: a column has another type than in {self.paths[0].name} ({error}).") from None
        return {name: found[0].field(name).type for name in wanted}

    def pieces(self, types: Mapping[str, pa.DataType]) -> Iterator[TablePiece]:
        """Yields all rows of the named columns, converted to these types, some megabytes at a time."""
        self.check_columns(types)
        self._starts = []
        begin = 0
        for path in self.paths:
            self._starts.append(begin)
            with reading(path):
                for batch in self._batches(path, list(types)):
                    piece = TablePiece(self, begin, batch)
                    yield TablePiece(self, begin, _converted(piece, types))
                    begin += len(piece)
        if begin == 0:  # an empty table: one piece without rows, from which callers learn types and widths
            yield TablePiece(self, 0, pa.record_batch([pa.array([], kind) for kind in types.values()], list(types)))

    def place(self, row: int) -> str:
        """Describes a row that was read by its file and its row there, from 0."""
        index = bisect.bisect_right(self._starts, row) - 1
        return f"{self.paths[index]}: row {row - self._starts[index]}"

    def _batches(self, path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
        if self.is_text:
            return text_batches(path, columns)
        file = pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
        rows = max(1, file.metadata.num_rows)
        size = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
        per_row = max(size // rows, 8 * len(columns), 1)
        return file.iter_batches(max(64, min(_MAX_BATCH, _BATCH_BYTES // per_row)), columns=columns)

    def check_columns(self, wanted: Iterable[str]) -> None:
        """Raises `DataError` unless each file has each of these once."""
        for path in self.paths:
            with reading(path):
                known = text_columns(path) if self.is_text else list(pq.read_schema(path).names)
            for name in wanted:
                if known.count(name) != 1:
                    how = "no column" if name not in known else "several columns"
                    raise DataError(
                        f"{path}: has {how} {name!r} (dataset: {self.what}); its columns: {_some(known)}. "
                        f"{_separator_hint(path, known)}Correct the name or the file."
                    )


def is_text(path: Path) -> bool:
    return path.name.endswith(TEXT)


def list_files(what: str, path: tuple[str, ...]) -> list[Path]:
    """Lists the files of ``path``, whose items are files, globs or folders; entries of a folder are sorted by name."""
    found: list[Path] = []
    for each in path:
        given = Path(each).expanduser()
        if given.is_dir():
            inside = sorted(file for file in given.iterdir() if file.name.endswith(PARQUET + TEXT))
            files = [file for file in inside if not file.name.startswith((".", "_"))]
        elif given.exists():
            files = [given]
        else:
            files = [Path(file) for file in sorted(glob.glob(str(given), recursive=True))]
        if not files:
            why = "the folder has no such file" if given.is_dir() else "there is no such file or folder"
            raise DataError(f"dataset: {what}: path: {each}: {why}; expected {', '.join(PARQUET + TEXT)}.")
        found += files
    for file in found:
        if not file.name.endswith(PARQUET + TEXT):
            raise DataError(f"dataset: {what}: path: {file}: its extension is not one of {', '.join(PARQUET + TEXT)}.")
        with reading(file):
            open_regular(file).close()  # a FIFO would be waited for
    return found


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns pyarrow's error about a file that cannot be read into a `DataError` of one line with the file's name."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        of_letters = isinstance(error, UnicodeDecodeError) or "UTF8" in reason
        encoding = "Save it as UTF-8 (iconv -f latin1 -t utf-8)."
        advice = encoding if of_letters else "It may be damaged or truncated."
        raise DataError(f"{path}: cannot be read as a table ({reason}). {advice}") from None


def _metadata(path: Path) -> Any:
    with reading(path):
        return pq.read_metadata(path)


def _decoded(kind: pa.DataType) -> pa.DataType:
    """Simplifies a type to that of its values: no dictionaries, one kind of text, no decimals."""
    if pa.types.is_dictionary(kind):
        return _decoded(kind.value_type)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.float64() if pa.types.is_decimal(kind) else kind


def _converted(piece: TablePiece, types: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    arrays = []
    for name, kind in types.items():
        array = piece.column(name)
        if array.type != kind:
            array = _cast(piece, name, array, kind)
        arrays.append(array)
    return pa.record_batch(arrays, list(types))


def _cast(piece: TablePiece, name: str, array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_large_string(array.type) and not pa.types.is_large_string(kind):
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


def _separator_hint(path: Path, columns: list[str]) -> str:
    """Returns a hint if the header of a text file looks as if another character separated its columns; else ""."""
    if is_text(path) and len(columns) == 1:
        for character in (";", "\t", "|", ","):
            if character in columns[0]:
                return f"Commas separate the columns of .csv, tabs those of .tsv; here it seems to be {character!r}. "
    return ""


def _some(names: list[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


# CSV and TSV files. All columns are read as text: a type guessed from the first megabyte is wrong in the second.


_BLOCK = 16 << 20  # the longest row


# From narrow to wide.
_TYPES = (pa.int64(), pa.float64(), pa.bool_(), pa.timestamp("us"), pa.timestamp("us", "UTC"))


# (thousands, decimal), the likeliest first
_WAYS_TO_WRITE = ((",", "."), (None, ","), (".", ","), *((space, end) for space in " \u00a0\u202f'_" for end in ".,"))


def text_columns(path: Path) -> list[str]:
    """The names in the first row."""
    return _open(path, None).schema.names


def text_batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yields the columns as text; an empty cell is null."""
    yield from _open(path, columns)


def infer_types(paths: Iterable[Path], columns: list[str], missing: Sequence[str] = ()) -> dict[str, pa.DataType]:
    """Returns for each column the first type of integer, float, bool, time that fits all its values, else text.

    missing: words that mean "no value", besides an empty cell.
    """
    words = pa.array(["", *missing], pa.large_string())
    fitting = {name: list(_TYPES) for name in columns}
    if columns:
        for path in paths:
            for batch in text_batches(path, columns):
                for name, types in fitting.items():
                    trimmed = pc.utf8_trim_whitespace(batch.column(name)) if types else None
                    if types and missing:
                        trimmed = pc.if_else(
                            pc.is_in(trimmed, value_set=words), pa.scalar(None, pa.large_string()), trimmed
                        )
                    while types and not _fits(trimmed, types[0]):
                        del types[0]
    return {name: types[0] if types else pa.large_string() for name, types in fitting.items()}


def _fits(array: pa.Array, kind: pa.DataType) -> bool:
    try:
        pc.cast(array, kind)
    except pa.ArrowException:
        return False
    return True


def _open(path: Path, columns: list[str] | None) -> csv.CSVStreamingReader:
    tabs = path.name.removesuffix(".gz").endswith(".tsv")
    names = columns
    if names is None:  # only the header is wanted
        return csv.open_csv(path, parse_options=_parsing(tabs), read_options=csv.ReadOptions(block_size=_BLOCK))
    return csv.open_csv(
        path,
        # One thread: only then do errors tell the row.
        read_options=csv.ReadOptions(block_size=_BLOCK, use_threads=False),
        parse_options=_parsing(tabs),
        convert_options=csv.ConvertOptions(
            include_columns=names,
            column_types=dict.fromkeys(names, pa.large_string()),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
        ),
    )


def _parsing(tabs: bool) -> csv.ParseOptions:
    return csv.ParseOptions(delimiter="\t" if tabs else ",", newlines_in_values=True)


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
