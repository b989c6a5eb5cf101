"""Tables of nodes become arrays; ids, labels and splits are held in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from glt_lightning.base import DataError, Progress
from glt_lightning.graph import ArrayWriter
from glt_lightning.partition.sources.tables.columns import SPLITS, LabelColumn, split_codes
from glt_lightning.partition.sources.tables.encoding import TableEncoding
from glt_lightning.partition.sources.tables.files import TableFiles, TablePiece
from glt_lightning.partition.sources.tables.ids import KeyIds, NodeIds, RowIds, id_types, ids_of
from glt_lightning.partition.sources.tables.lookup import NodeFacts
from glt_lightning.partition.sources.tables.mapping import NodeTable
from glt_lightning.partition.sources.tables.writers import ColumnWriters, readers

_INT32_MAX = 2**31 - 1


def convert_nodes(
    nodes: NodeTable, what: str, folder: Path, progress: Progress, fitted: TableEncoding | None
) -> tuple[NodeFacts, NodeIds, TableEncoding]:
    table = TableFiles(what, nodes.path)
    read, types, encoding = readers(table, nodes, [nodes.id, nodes.label, nodes.split], fitted, progress)
    types |= table.types(column for column in (nodes.label, nodes.split) if column)
    if nodes.id:
        types |= id_types(table, [nodes.id])
    labels = LabelColumn(nodes.label, types[nodes.label]) if nodes.label else None
    keys: list[pa.Array] = []
    splits: list[np.ndarray] = []
    count = 0
    with ColumnWriters(folder, read) as columns, progress.phase(f"converting {what}", table.num_rows, "rows") as done:
        for piece in _pieces(table, types):
            columns.write(piece)
            if nodes.id:
                keys.append(ids_of(piece, nodes.id))
            if labels:
                labels.add(piece)
            if nodes.split:
                splits.append(split_codes(piece, nodes.split))
            count += len(piece)
            done(len(piece))
    ids = _node_ids(nodes, table, keys, types, count)
    if isinstance(ids, KeyIds):
        ids.write(folder)
    known = None if fitted is None else fitted.classes
    classes = _write_labels(folder, labels, what, known) if labels else known
    if nodes.split:
        _write_splits(folder, np.concatenate(splits) if splits else np.zeros(0, np.int8))
    folder.mkdir(parents=True, exist_ok=True)
    return NodeFacts(num_nodes=count, classes=classes), ids, replace(encoding, classes=classes)


def _node_ids(
    nodes: NodeTable, table: TableFiles, keys: list[pa.Array], types: Mapping[str, pa.DataType], count: int
) -> NodeIds:
    if nodes.id is None:
        return RowIds(count)
    if count > _INT32_MAX:
        raise DataError(
            f"dataset: {table.what}: has {count} nodes with ids, and at most {_INT32_MAX} are supported; remove id."
        )
    kind = pa.large_string() if pa.types.is_large_string(types[nodes.id]) else pa.int64()
    ids = KeyIds(pa.chunked_array(keys, kind), table.is_text)
    keys.clear()
    ids.check_unique(table, nodes.id)
    return ids


def _pieces(table: TableFiles, types: Mapping[str, pa.DataType]) -> Iterator[TablePiece]:
    """All rows; of a table of which nothing is asked but its length, the first column is read."""
    return table.pieces(types or table.types(table.columns[:1]))


def _write_labels(folder: Path, labels: LabelColumn, what: str, known: list[str] | None) -> list[str] | None:
    """Returns the names of the classes. known: those of the encoding that is applied, whose numbers labels then get."""
    y, classes = labels.finish()
    if known is not None:
        if classes is None or not set(classes) <= set(known):
            other = "numbers" if classes is None else repr(min(set(classes) - set(known)))
            raise DataError(
                f"dataset: {what}: label: expected the classes of the encoding, {', '.join(known[:20])}; found {other}."
            )
        y = np.array([*map(known.index, classes), -1], np.int64)[y]
        classes = known
    with ArrayWriter(folder, "y.npy", y.dtype, hashed=False) as writer:
        writer.write(y)
    return classes


def _write_splits(folder: Path, codes: np.ndarray) -> None:
    for code, name in enumerate(dict.fromkeys(SPLITS.values())):
        if len(ids := np.flatnonzero(codes == code)):
            with ArrayWriter(folder / "splits", f"{name}.npy", np.int64, hashed=False) as writer:
                writer.write(ids)
