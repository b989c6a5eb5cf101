"""The readers and writers of the arrays that are made from the columns of a table."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from glt_lightning.base import DataError, Progress
from glt_lightning.partition.arrays import ArrayWriter
from glt_lightning.partition.sources.tables.columns import feature_columns, feature_types, times, values, weights
from glt_lightning.partition.sources.tables.encoders import Choices, ColumnEncoding, PlainEncoder
from glt_lightning.partition.sources.tables.encoding import TableEncoding
from glt_lightning.partition.sources.tables.files import TableFiles, TablePiece
from glt_lightning.partition.sources.tables.fit import Fitting, fit_columns
from glt_lightning.partition.sources.tables.mapping import EdgeTable, NodeTable, features_asked

Read = Callable[..., np.ndarray]
Types = dict[str, pa.DataType]


def readers(
    table: TableFiles,
    columns: NodeTable | EdgeTable,
    used: list[str | None],
    fitted: TableEncoding | None,
    progress: Progress,
) -> tuple[dict[str, Read], Types, TableEncoding]:
    """Returns for features and attributes: array to write -> its reader, the types of the columns read, and the encoding.

    fitted: the encoding to apply; None: it is fitted to this table.
    """
    table.check_columns([name for name in used if name])  # a wrong name would make an id a feature of the pattern *
    chosen: list[tuple[str, str, Read]] = [(name, column, values) for name, column in columns.attrs.items()]
    if isinstance(columns, EdgeTable) and columns.weight is not None:
        chosen.append(("edge_weight", columns.weight, weights))
    if isinstance(columns, EdgeTable) and columns.time is not None:
        chosen.append(("edge_time", columns.time, times))
    read: dict[str, Read] = {name: partial(convert, name=column) for name, column, convert in chosen}
    wanted = [column for _, column, _ in chosen]
    types = table.types(wanted)
    if fitted is None:
        names = feature_columns(table, columns.features, [*filter(None, used), *wanted])
        encoding, types = _fitted(table, columns, names, types, progress)
    else:
        encoding = fitted
        plain = [each.column for each in fitted.encoders if isinstance(each, PlainEncoder)]
        types = _encoded_types(table, [e.column for e in fitted.encoders]) | feature_types(table, plain) | types
    of_nodes = isinstance(columns, NodeTable)
    if encoding.floats:
        read["x" if of_nodes else "edge_attr"] = encoding.read_floats
    if encoding.codes:
        read["x_codes" if of_nodes else "edge_codes"] = encoding.read_codes
    return read, types, encoding


def _fitted(
    table: TableFiles, columns: NodeTable | EdgeTable, names: list[str], types: Types, progress: Progress
) -> tuple[TableEncoding, Types]:
    """Fits the features of a table. Returns the encoding, and the types of the columns read besides those in ``types``."""
    encoded = _choices(table, columns.encode, names)
    plain = [name for name in names if name not in encoded]
    # A column that is an attribute too is read as that.
    types = _encoded_types(table, list(encoded)) | feature_types(table, plain) | types
    train = columns.split if isinstance(columns, NodeTable) and columns.fit_on != "all" else None
    fits = fit_columns(table, Fitting(columns=encoded, types=types, missing=columns.missing, split=train), progress)
    encoders = [fits.get(name) or PlainEncoder(column=name) for name in names]
    return TableEncoding(encoders, features_asked(columns)), types


def _encoded_types(table: TableFiles, names: list[str]) -> Types:
    """Returns the types by which encoded columns are read: text for text files, which may have words for "no value"."""
    return dict.fromkeys(names, pa.large_string()) if table.is_text else table.types(names)


def _choices(table: TableFiles, encode: Choices, names: list[str]) -> dict[str, ColumnEncoding]:
    """The encoding of each feature that has one: that of its name, else that of the first pattern it matches."""
    for pattern, _ in encode:
        if pattern not in names and not fnmatch.filter(names, pattern):
            near = difflib.get_close_matches(pattern, names, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise DataError(
                f"dataset: {table.what}: encode: {pattern!r} is not among the features and matches none; they are "
                f"{', '.join(names[:20])}.{hint}"
            )
    exact = dict(encode)
    found = {}
    for name in names:
        matching = [how for pattern, how in encode if fnmatch.fnmatchcase(name, pattern)]
        if name in exact:
            found[name] = exact[name]
        elif matching:
            found[name] = matching[0]
    return found


class ColumnWriters:
    """The writers of the arrays of one table. They are opened with the first rows, which have the shapes."""

    def __init__(self, folder: Path, read: Mapping[str, Read]) -> None:
        self._folder, self._read = folder, read
        self._stack = ExitStack()
        self._writers: dict[str, ArrayWriter] = {}

    def write(self, piece: TablePiece) -> None:
        for name, read in self._read.items():
            rows = read(piece)
            if name not in self._writers:
                writer = ArrayWriter(self._folder, f"{name}.npy", rows.dtype, rows.shape[1:], hashed=False)
                self._writers[name] = self._stack.enter_context(writer)
            self._writers[name].write(rows)

    def __enter__(self) -> ColumnWriters:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(*error)  # type: ignore[arg-type]
