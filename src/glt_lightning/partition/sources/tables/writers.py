"""Which columns of a table become which arrays, and their writers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from glt_lightning.data.arrays import ArrayWriter
from glt_lightning.partition.sources.tables.columns import (
    Features,
    feature_columns,
    feature_types,
    times,
    values,
    weights,
)
from glt_lightning.partition.sources.tables.files import TableFiles, TablePiece
from glt_lightning.partition.sources.tables.mapping import EdgeTable, NodeTable

Read = Callable[..., np.ndarray]


def readers(
    table: TableFiles, columns: NodeTable | EdgeTable, used: list[str | None]
) -> tuple[dict[str, Read], dict[str, pa.DataType]]:
    """(array to write -> how to read it, types of the columns that this takes) for features and attributes."""
    chosen: list[tuple[str, str, Read]] = [(name, column, values) for name, column in columns.attrs.items()]
    if isinstance(columns, EdgeTable) and columns.weight is not None:
        chosen.append(("edge_weight", columns.weight, weights))
    if isinstance(columns, EdgeTable) and columns.time is not None:
        chosen.append(("edge_time", columns.time, times))
    read: dict[str, Read] = {name: partial(convert, name=column) for name, column, convert in chosen}
    wanted = [column for _, column, _ in chosen]
    types = table.types(wanted)
    names = feature_columns(table, columns.features, [*filter(None, used), *wanted])
    if not names:
        return read, types
    feature = feature_types(table, names)
    # A column that is an attribute too is read as that.
    read["x" if isinstance(columns, NodeTable) else "edge_attr"] = Features(feature).read
    return read, feature | types


class ColumnWriters:
    """Writers of the arrays of one table, opened when the first rows tell their shapes."""

    def __init__(self, folder: Path, read: Mapping[str, Read]) -> None:
        self._folder, self._read = folder, read
        self._stack = ExitStack()
        self._writers: dict[str, ArrayWriter] = {}

    def write(self, piece: TablePiece) -> None:
        for name, read in self._read.items():
            rows = read(piece)
            if name not in self._writers:
                writer = ArrayWriter(self._folder, f"{name}.npy", rows.dtype, rows.shape[1:])
                self._writers[name] = self._stack.enter_context(writer)
            self._writers[name].write(rows)

    def __enter__(self) -> ColumnWriters:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(*error)  # type: ignore[arg-type]
