"""Tables in a folder, by the user's ids: written by one rank, read by one rank of each host."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from glt_lightning.base import DataError, long_work
from glt_lightning.tensors.reader import GraphReader
from glt_lightning.tensors.saved import RowsToSave, SavedRows, write_rows
from glt_lightning.tensors.space import RowSpace
from glt_lightning.tensors.table import SharedTable
from glt_lightning.tensors.tables import SharedTables
from glt_lightning.workers import on_all_or_none

_log = logging.getLogger(__name__)
IDS = "ids"  # of edges, whose ids have gaps; rows of nodes are saved in the order of their ids
_AT_ONCE = 1 << 16  # rows


def save_tables(folder: Path, tables: SharedTables, named: Mapping[str, SharedTable], reader: GraphReader) -> None:
    """Writes tables to a new folder. A collective call. Raises `WriteError`, on other ranks `PeerError`."""

    def write() -> None:
        if tables.ranks.rank == 0:
            write_rows(folder, rows_to_save(named, reader), reader.manifest.options_hash)

    on_all_or_none(tables.ranks, write, lambda _: None)


def rows_to_save(named: Mapping[str, SharedTable], reader: GraphReader) -> list[RowsToSave]:
    return [_to_save(name, table, reader) for name, table in named.items()]


def _to_save(name: str, table: SharedTable, reader: GraphReader) -> RowsToSave:
    ids = reader.user_ids(table.space, np.arange(table.num_rows))
    order = np.argsort(ids, kind="stable")
    arrays = {table.kind.name: (table.dtype, (len(ids), *table.row_shape), table.read)}
    if table.space.kind == "edge":
        arrays[IDS] = (ids.dtype, ids.shape, lambda rows: ids[rows])
    return RowsToSave(name, table.space.label, None, arrays, order)


def kind_and_shape(saved: SavedRows, name: str) -> tuple[str, tuple[int, ...]]:
    """Type of the values, and shape of a row, of a saved table."""
    arrays = saved.table(name)["arrays"]
    kind = next(each for each in arrays if each != IDS)
    return kind, tuple(arrays[kind]["shape"][1:])


def load_table(saved: SavedRows, tables: SharedTables, table: SharedTable, reader: GraphReader) -> None:
    """Reads the rows of this host, on its first rank. Raises `DataError` for rows of other nodes or edges than the graph has."""
    homes = tables.homes
    if not homes.is_first:
        return
    values = saved.open(table.name, table.kind.name, table.row_shape, table.dtype)
    ids = None if table.space.kind == "node" else saved.open(table.name, IDS, (), np.dtype(np.int64))
    if len(values) != table.num_rows:
        raise _other_rows(saved, table.name, table.space, len(values))
    pieces = [
        (each.first + begin, each.begin + begin, min(_AT_ONCE, each.count - begin))
        for each in table.own_parts
        for begin in range(0, each.count, _AT_ONCE)
    ]
    with long_work(_log, f"tensor {table.name!r}: loaded", len(table.own)) as advance:
        for first, begin, count in pieces:
            wanted = reader.user_ids(table.space, np.arange(first, first + count))
            at = wanted if ids is None else np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
            if ids is not None and not np.array_equal(ids[at], wanted):
                raise _other_rows(saved, table.name, table.space, len(values))
            table.own[begin : begin + count] = values[at]
            advance(count)


def _other_rows(saved: SavedRows, name: str, space: RowSpace, rows: int) -> DataError:
    return DataError(
        f"{saved.folder}: tensor {name!r} has {rows} rows of another graph; {space.label!r} has {space.num_rows} rows here."
    )
