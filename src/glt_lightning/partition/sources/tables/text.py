"""CSV and TSV files. All columns are read as text: a type guessed from the first megabyte is wrong in the second."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

_BLOCK = 16 << 20  # the longest row
# From narrow to wide.
_TYPES = (pa.int64(), pa.float64(), pa.bool_(), pa.timestamp("us"), pa.timestamp("us", "UTC"))

# (thousands, decimal), the likeliest first
_WAYS_TO_WRITE = ((",", "."), (None, ","), (".", ","), *((space, end) for space in " \u00a0\u202f'_" for end in ".,"))


def text_columns(path: Path) -> list[str]:
    """The names in the first row."""
    return _open(path, None).schema.names


def text_batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The columns as text; an empty cell is null."""
    yield from _open(path, columns)


def infer_types(paths: Iterable[Path], columns: list[str], missing: Sequence[str] = ()) -> dict[str, pa.DataType]:
    """The first of integer, float, bool, time that fits all values of a column, else text.

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
    """How to read all of these as numbers, where other characters than a point are in them; empty if they are not numbers."""
    for thousands, decimal in _WAYS_TO_WRITE:
        pattern = re.compile(number_pattern(thousands, decimal))
        if values and all(pattern.match(each) for each in values):
            named = {"thousands": thousands, "decimal": "," if decimal == "," else None}
            options = ", ".join(f"{name}: {character!r}" for name, character in named.items() if character)
            return f"for numbers that are written so, set encode: {{'*': auto, {column}: {{as: number, {options}}}}}"
    return ""
