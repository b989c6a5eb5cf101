"""The readers and writers of the arrays that are made from the columns of a table."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from glt_lightning.base import DataError
from glt_lightning.partition.arrays import ArrayPieces
from glt_lightning.partition.sources.base import near
from glt_lightning.partition.sources.tables.columns import feature_columns, feature_types, times, values, weights
from glt_lightning.partition.sources.tables.encoders import Choices, ColumnEncoding, Encoder, PlainEncoder
from glt_lightning.partition.sources.tables.encoding import TableEncoding
from glt_lightning.partition.sources.tables.files import TableFiles, TablePiece
from glt_lightning.partition.sources.tables.fit import Fitting
from glt_lightning.partition.sources.tables.mapping import EdgeTable, NodeTable, features_asked
from glt_lightning.partition.sources.tables.raw_values import is_list

Read = Callable[..., np.ndarray]
Types = dict[str, pa.DataType]


def readers(columns: NodeTable | EdgeTable, encoding: TableEncoding) -> dict[str, Read]:
    """Returns for each array of features and attributes the reader of its rows."""
    read: dict[str, Read] = {name: partial(convert, name=column) for name, column, convert in _attributes(columns)}
    of_nodes = isinstance(columns, NodeTable)
    if encoding.floats:
        read["x" if of_nodes else "edge_attr"] = encoding.read_floats
    if encoding.codes:
        read["x_codes" if of_nodes else "edge_codes"] = encoding.read_codes
    return read


def _attributes(columns: NodeTable | EdgeTable) -> list[tuple[str, str, Read]]:
    """Returns (array, column, reader) of attributes."""
    chosen: list[tuple[str, str, Read]] = [(name, column, values) for name, column in columns.attrs.items()]
    if isinstance(columns, EdgeTable) and columns.weight is not None:
        chosen.append(("edge_weight", columns.weight, weights))
    if isinstance(columns, EdgeTable) and columns.time is not None:
        chosen.append(("edge_time", columns.time, times))
    return chosen


def encoding_of(
    table: TableFiles,
    columns: NodeTable | EdgeTable,
    used: list[str | None],
    fitted: TableEncoding | None,
    fit: Callable[[Fitting], Mapping[str, Encoder]],
) -> tuple[TableEncoding, Types]:
    """Returns the encoding of features, and the types of the columns of features and attributes.

    used: columns that are something else.  fitted: the encoding to apply; None: it is fitted to this table, by ``fit``.
    """
    table.check_columns([name for name in used if name])  # a wrong name would make an id a feature of the pattern *
    wanted = [column for _, column, _ in _attributes(columns)]
    types = table.types(wanted)
    if fitted is not None:
        return fitted, fitted.types(table) | types
    names = feature_columns(table, columns.features, [*filter(None, used), *wanted])
    encoded = _choices(table, columns.encode, names)
    plain = [name for name in names if name not in encoded]
    # A column that is an attribute too is read as that.
    types = table.read_types(encoded) | feature_types(table, plain) | types
    fits: Mapping[str, Encoder] = {}
    if encoded:
        train = columns.split if isinstance(columns, NodeTable) and columns.fit_on != "all" else None
        read = {name: types[name] for name in encoded} | (table.read_types([train]) if train else {})
        fits = fit(Fitting(columns=encoded, types=read, missing=columns.missing, split=train))
    widths = {name: None if is_list(types[name]) else 1 for name in names}
    encoders = [fits.get(name) or PlainEncoder(column=name, width=widths[name]) for name in names]
    return TableEncoding(encoders, features_asked(columns)), types


def _choices(table: TableFiles, encode: Choices, names: list[str]) -> dict[str, ColumnEncoding]:
    """The encoding of each feature that has one: that of its name, else that of the first pattern it matches."""
    for pattern, _ in encode:
        if pattern not in names and not fnmatch.filter(names, pattern):
            raise DataError(
                f"dataset: {table.what}: encode: {pattern!r} is not among the features and matches none; they are "
                f"{', '.join(names[:20])}.{near(pattern, names)}"
            )
    exact = dict(encode)
    matching = {name: [how for pattern, how in encode if fnmatch.fnmatchcase(name, pattern)] for name in names}
    return {name: exact.get(name) or how[0] for name, how in matching.items() if name in exact or how}


class ColumnPieces(ExitStack):
    """Writes rows of the arrays of one table. The files are opened with the first rows, which have the shapes.

    first: number of the first row.
    """

    def __init__(self, folder: Path, read: Mapping[str, Read], first: int) -> None:
        super().__init__()
        self._folder, self._read, self._at = folder, read, first
        self._pieces: dict[str, ArrayPieces] = {}
        self._shapes: dict[str, tuple[str, tuple[int, ...]]] = {}

    def write(self, piece: TablePiece) -> None:
        for name, read in self._read.items():
            rows = read(piece)
            if name not in self._pieces:
                pieces = ArrayPieces(self._folder, f"{name}.npy", rows.dtype, rows.shape[1:])
                self._pieces[name] = self.enter_context(pieces)
                self._shapes[name] = rows.dtype.str, rows.shape[1:]
            self._pieces[name].write(self._at, rows)
        self._at += len(piece)

    def facts(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Returns the dtype of each array, and the shape of a row."""
        return self._shapes
