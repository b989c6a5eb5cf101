"""Converts tables of nodes and edges to arrays. Labels and splits of nodes are held in memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from glt_lightning.base import DataError, EdgeType, NodeType, Progress, edge_type_str
from glt_lightning.partition.arrays import ArrayWriter
from glt_lightning.partition.sources.scipy_sparse import read_sparse
from glt_lightning.partition.sources.tables.columns import (
    SPLITS,
    LabelColumn,
    NodeFacts,
    edge_folder,
    node_folder,
    save_facts,
    split_codes,
)
from glt_lightning.partition.sources.tables.encoding import GraphEncoding, TableEncoding
from glt_lightning.partition.sources.tables.files import TableFiles, TablePiece
from glt_lightning.partition.sources.tables.ids import IdJoin, IdWriter, NodeIds, RowIds, StoredIds, id_types, ids_of
from glt_lightning.partition.sources.tables.mapping import EdgeTable, NodeTable, Tables
from glt_lightning.partition.sources.tables.writers import ColumnWriters, readers

_CHUNK = 1 << 20  # edges that are looked up at once
_CHUNK_BYTES = 128 << 20  # of their ids
_WORK = "work"  # folder of files that are needed until all tables are converted
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
    splits: list[np.ndarray] = []
    count = 0
    with ExitStack() as stack:
        columns = stack.enter_context(ColumnWriters(folder, read))
        keys = stack.enter_context(IdWriter(folder, types[nodes.id], table.is_text)) if nodes.id else None
        done = stack.enter_context(progress.phase(f"converting {what}", table.num_rows, "rows"))
        for piece in _pieces(table, types):
            columns.write(piece)
            if keys is not None:
                keys.write(ids_of(piece, str(nodes.id)))
            if labels:
                labels.add(piece)
            if nodes.split:
                splits.append(split_codes(piece, nodes.split))
            count += len(piece)
            done(len(piece))
    ids: NodeIds = RowIds(count)
    if nodes.id:
        if count > _INT32_MAX:
            raise DataError(
                f"dataset: {what}: has {count} nodes with ids, and at most {_INT32_MAX} are supported; remove id."
            )
        ids = StoredIds(folder)
        ids.deal(folder / _WORK)
        ids.check_unique(table, nodes.id)
    known = None if fitted is None else fitted.classes
    classes = _write_labels(folder, labels, what, known) if labels else known
    if nodes.split:
        _write_splits(folder, np.concatenate(splits) if splits else np.zeros(0, np.int8))
    folder.mkdir(parents=True, exist_ok=True)
    return NodeFacts(num_nodes=count, classes=classes), ids, replace(encoding, classes=classes)


def _pieces(table: TableFiles, types: Mapping[str, pa.DataType]) -> Iterator[TablePiece]:
    """Yields all rows. If only the length of a table is needed, its first column is read."""
    return table.pieces(types or table.types(table.columns[:1]))


def _write_labels(folder: Path, labels: LabelColumn, what: str, known: list[str] | None) -> list[str] | None:
    """Writes the labels, and returns the names of the classes. known: the classes of an encoding that is applied, by which labels
    are numbered."""
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


class EdgeConverter:
    """Converts one table of edges: attributes are written at once, ends are collected and looked up many at a time."""

    def __init__(
        self,
        edges: EdgeTable,
        what: str,
        edge_type: EdgeType,
        ids: Mapping[NodeType, NodeIds],
        keys: Mapping[NodeType, str],
        fitted: TableEncoding | None,
    ) -> None:
        self._edges = edges
        self._table = TableFiles(what, edges.path)
        assert edges.source is not None
        assert edges.destination is not None
        self._ends = [(edges.source, edge_type[0], "source"), (edges.destination, edge_type[2], "destination")]
        self._ids, self._keys, self._fitted = ids, keys, fitted
        self._begin = 0
        self._joins: list[IdJoin | None] = [None, None]
        self._held: list[list[pa.Array]] = [[], []]
        self._labels: LabelColumn | None = None
        self._splits: list[np.ndarray] = []

    def run(self, folder: Path, progress: Progress) -> TableEncoding:
        """Writes the arrays of the table, and returns the encoding of its features."""
        table, ends = self._table, [column for column, _, _ in self._ends]
        label, split = self._edges.label, self._edges.split
        read, types, encoding = readers(table, self._edges, [*ends, label, split], self._fitted, progress)
        types |= table.types(column for column in (label, split) if column)
        types |= id_types(table, ends)
        self._labels = None if label is None else LabelColumn(label, types[label])
        with ExitStack() as stack:
            columns = stack.enter_context(ColumnWriters(folder, read))
            writers = [
                stack.enter_context(ArrayWriter(folder, f"{name}.npy", _row_dtype(self._ids[t]), hashed=False))
                for _, t, name in self._ends
            ]
            done = stack.enter_context(progress.phase(f"converting {table.what}", table.num_rows, "edges"))
            for n, (_, t, name) in enumerate(self._ends):
                if isinstance(nodes := self._ids[t], StoredIds) and nodes.buckets is not None:
                    join = IdJoin(nodes, nodes.buckets, folder / _WORK / name)
                    self._joins[n] = stack.enter_context(closing(join))
            held = nbytes = 0
            for piece in table.pieces(types):
                columns.write(piece)
                for pieces, column in zip(self._held, ends, strict=True):
                    pieces.append(ids_of(piece, column))
                if self._labels is not None:
                    self._labels.add(piece)
                if split is not None:
                    self._splits.append(split_codes(piece, split))
                held += len(piece)
                nbytes += sum(pieces[-1].nbytes for pieces in self._held)
                if held >= _CHUNK or nbytes >= _CHUNK_BYTES:
                    self._flush(writers)
                    held = nbytes = 0
                done(len(piece))
            self._flush(writers)
            self._write_joined(writers)
        known = None if self._fitted is None else self._fitted.classes
        classes = known if self._labels is None else _write_labels(folder, self._labels, table.what, known)
        if split is not None:
            _write_splits(folder, np.concatenate(self._splits) if self._splits else np.zeros(0, np.int8))
        return replace(encoding, classes=classes)

    def _flush(self, writers: list[ArrayWriter]) -> None:
        """Looks up the collected ends and writes them; deals out those that are joined on disk."""
        if not self._held[0]:
            return
        ends = [pa.concat_arrays(pieces) for pieces in self._held]
        self._held = [[], []]
        count = len(ends[0])
        (_, first, _), (_, second, _) = self._ends
        found: list[np.ndarray] | None = None
        if self._joins == [None, None] and first == second and ends[0].type == ends[1].type:
            # One question for both: it costs a table of all ids.
            found = np.split(self._ids[first].find(pa.concat_arrays(ends)), [count])
        for n, (ids, join, writer) in enumerate(zip(ends, self._joins, writers, strict=True)):
            if join is not None:
                join.add(ids)
                continue
            rows = self._ids[self._ends[n][1]].find(ids) if found is None else found[n]
            if (bad := rows < 0).any():
                row = int(bad.argmax())
                raise self._unknown(n, self._begin + row, ids.slice(row, 1))
            writer.write(rows)
        self._begin += count

    def _write_joined(self, writers: list[ArrayWriter]) -> None:
        for n, (join, writer) in enumerate(zip(self._joins, writers, strict=True)):
            if join is None:
                continue
            for rows in join.rows():
                writer.write(rows)
            if join.unknown is not None:
                raise self._unknown(n, *join.unknown)

    def _unknown(self, end: int, edge: int, one: pa.Array) -> DataError:
        """Makes the error about an end that is no node. one: its id."""
        column, node_type, _ = self._ends[end]
        return DataError(
            f"{self._table.place(edge)}, column {column!r}: {one[0].as_py()!r} is not an id of {self._keys[node_type]}. "
            f"{self._remedy(one, self._ends[1 - end][1])}"
        )

    def _remedy(self, one: pa.Array, other: NodeType) -> str:
        """Returns advice on an unknown id. other: the node type at the other end of the edge."""
        if self._ids[other].find(one)[0] < 0 or self._ends[0][1] == self._ends[1][1]:
            return "Add that node or remove the edge."
        (source, _, _), (destination, _, _) = self._ends
        return (
            f"It is an id of nodes: {other}. Are source and destination swapped? Then set source: {destination}, "
            f"destination: {source}, or exchange the node types in the name of the edge type."
        )


def _row_dtype(ids: NodeIds) -> type:
    return np.int32 if ids.count <= _INT32_MAX else np.int64


def convert_matrix(edges: EdgeTable, what: str, folder: Path, shape: tuple[int, int]) -> None:
    path = Path(edges.path[0]).expanduser()
    matrix = read_sparse(path)
    if matrix.shape != shape:
        raise DataError(
            f"{path}: the matrix is {list(matrix.shape)} (dataset: {what}), but the nodes of its rows and columns are "
            f"{list(shape)}; entry (i, j) is an edge from row i to row j of the tables of nodes."
        )
    arrays = {"source": matrix.source, "destination": matrix.destination, "edge_weight": matrix.weight}
    for name, array in arrays.items():
        if array is not None:
            with ArrayWriter(folder, f"{name}.npy", array.dtype, hashed=False) as writer:
                writer.write(array)


# All tables of a graph, read once and written as ``.npy`` files.


def convert_tables(tables: Tables, folder: Path, progress: Progress, fitted: GraphEncoding | None) -> GraphEncoding:
    """Writes all tables below ``folder``; only labels and splits are held in memory.

    fitted: the encoding to apply; None: fit one. Returns the encoding that was used.
    """
    node_features: dict[str, TableEncoding] = {}
    edge_features: dict[str, TableEncoding] = {}
    facts: dict[NodeType, NodeFacts] = {}
    ids: dict[NodeType, NodeIds] = {}
    keys: dict[NodeType, str] = {}
    for t, nodes in tables.nodes.items():
        what = tables.key_of(t)
        stored = None if fitted is None else fitted.nodes.get(t, TableEncoding())
        facts[t], ids[t], node_features[t] = convert_nodes(nodes, what, node_folder(folder, t), progress, stored)
        named = f"column {nodes.id!r} of {nodes.path[0]}" if nodes.id else "which have no ids, but rows from 0"
        keys[t] = f"{what} ({named})"
    for e, edges in tables.edges.items():
        what = tables.key_of(e)
        if edges.is_matrix:
            convert_matrix(edges, what, edge_folder(folder, e), (ids[e[0]].count, ids[e[2]].count))
        else:
            name = edge_type_str(e)
            stored = None if fitted is None else fitted.edges.get(name, TableEncoding())
            converter = EdgeConverter(edges, what, e, ids, keys, stored)
            edge_features[name] = converter.run(edge_folder(folder, e), progress)
    for each in (*(node_folder(folder, t) for t in tables.nodes), *(edge_folder(folder, e) for e in tables.edges)):
        shutil.rmtree(each / _WORK, ignore_errors=True)
    save_facts(folder, facts)
    return GraphEncoding(nodes=node_features, edges=edge_features)
