"""Converts tables of nodes and edges to arrays. Ids, labels and splits of nodes are held in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
from glt_lightning.partition.sources.tables.mapping import EdgeTable, NodeTable, Tables
from glt_lightning.partition.sources.tables.writers import ColumnWriters, readers

_MOST = str(2**63 - 1)


# Numbers of 19 digits that fit in an int64: the first i digits are those of the greatest, the next is less.
_WIDE = [f"{_MOST[:i]}[{int(i == 0)}-{int(_MOST[i]) - 1}][0-9]{{{18 - i}}}" for i in range(19) if _MOST[i] != "0"]


# How an int64 is written.
_NUMBER = rf"^(0|-?([1-9][0-9]{{0,17}}|{'|'.join(_WIDE)}|{_MOST}))$"
_LEAST_CHUNK = 1 << 20


def ids_of(piece: TablePiece, column: str) -> pa.Array:
    """Reads ids as int64 or text. Raises `DataError` for null and for other types."""
    array = piece.column(column)
    if array.null_count:
        row = int(pc.index(pc.is_null(array), True).as_py())
        raise piece.error(column, row, "the id is missing. Fill it in or remove the row.")
    if pa.types.is_integer(array.type):
        return pc.cast(array, pa.int64())
    if not pa.types.is_large_string(array.type):
        raise piece.error(column, 0, f"ids are {array.type}; expected integers or text. Convert the column.")
    return array


def id_types(table: TableFiles, columns: Iterable[str]) -> dict[str, pa.DataType]:
    """Returns the types by which ids are read. Ids in a text file stay text until all are known: 007 is another id than 7."""
    return dict.fromkeys(columns, pa.large_string()) if table.is_text else table.types(columns)


class RowIds:
    """The ids of nodes without an id column: a node's id is its row."""

    def __init__(self, count: int) -> None:
        self.count = count

    def find(self, ids: pa.Array) -> np.ndarray:
        """Returns int64, the row of each id; -1 if there is none."""
        rows = as_numbers(ids).fill_null(-1).to_numpy()
        return np.where((rows >= 0) & (rows < self.count), rows, -1)


class KeyIds:
    """The ids of nodes in an id column.

    pyarrow makes a hash table of all ids for each lookup: 1.4 s for 5 M text ids of 17 characters, and 1.8 s to look as many
    up. If at least half as many ids are looked up at once (`chunk_of`), the whole takes about twice as long as the lookups,
    however many edges there are.
    """

    def __init__(self, ids: pa.ChunkedArray, from_text: bool) -> None:
        if from_text and _all_numbers(ids):  # a text file has no other form of a number
            ids = pa.chunked_array([pc.cast(chunk, pa.int64()) for chunk in ids.chunks], pa.int64())
        self.ids = pa.concat_arrays(ids.chunks) if ids.num_chunks else pa.array([], ids.type)
        self.count = len(self.ids)
        self._first = self._consecutive()

    @property
    def is_text(self) -> bool:
        return bool(pa.types.is_large_string(self.ids.type))

    def _consecutive(self) -> int | None:
        """The first id, if each id is one more than the id before; else None."""
        if self.is_text or not self.count:
            return None
        numbers = self.ids.to_numpy()
        first = int(numbers[0])
        same = numbers[-1] - first == self.count - 1 and bool((np.diff(numbers) == 1).all())
        return first if same else None

    def find(self, ids: pa.Array) -> np.ndarray:
        """Returns int64, the row of each id; -1 if there is none. Numbers written as text are numbers."""
        if not self.is_text:
            ids = as_numbers(ids)
        elif not pa.types.is_large_string(ids.type):
            ids = pc.cast(ids, pa.large_string())
        if self._first is not None:
            valid = pc.is_valid(ids).to_numpy(zero_copy_only=False)
            rows = ids.fill_null(0).to_numpy()
            inside = valid & (rows >= self._first) & (rows < self._first + self.count)
            return np.where(inside, rows - self._first, -1)
        found = pc.index_in(ids, value_set=self.ids, skip_nulls=True)
        return found.fill_null(-1).to_numpy().astype(np.int64)

    def check_unique(self, table: TableFiles, column: str) -> None:
        """Raises `DataError` with the first id that occurs twice."""
        if self._first is not None:
            return
        first = self.find(self.ids)
        again = first != np.arange(self.count)
        if again.any():
            row = int(again.argmax())
            raise DataError(
                f"{table.place(row)}, column {column!r}: id {self.ids[row].as_py()!r} was given before "
                f"({table.place(int(first[row]))}); a node has one row. Remove one of them."
            )

    def write(self, folder: Path) -> None:
        """Writes ``ids.npy`` [N], or for text the bytes of all ids (UTF-8) and the end of each."""
        if not self.is_text:
            _write(folder, "ids.npy", self.ids.to_numpy())
            return
        _, offsets, data = self.ids.buffers()
        ends = np.frombuffer(offsets, np.int64)[self.ids.offset : self.ids.offset + self.count + 1]
        begin, end = (int(ends[0]), int(ends[-1])) if self.count else (0, 0)
        _write(folder, "ids_offsets.npy", ends - begin if self.count else np.zeros(1, np.int64))
        _write(folder, "ids_bytes.npy", np.frombuffer(data or b"", np.uint8)[begin:end])


NodeIds = RowIds | KeyIds


def chunk_of(*ids: NodeIds) -> int:
    """Returns the number of edges to look up at once: their memory is no more than that of the ids themselves."""
    return max(_LEAST_CHUNK, *(each.count // 2 for each in ids if isinstance(each, KeyIds)), 0)


def as_numbers(ids: pa.Array) -> pa.Array:
    """Converts ids to int64, null for one that is no number."""
    if not pa.types.is_large_string(ids.type):
        return ids
    is_number = pc.match_substring_regex(ids, _NUMBER)
    return pc.cast(pc.if_else(is_number, ids, pa.scalar(None, pa.large_string())), pa.int64())


def _all_numbers(ids: pa.ChunkedArray) -> bool:
    return all(pc.all(pc.match_substring_regex(chunk, _NUMBER), min_count=0).as_py() for chunk in ids.chunks)


def _write(folder: Path, name: str, array: np.ndarray) -> None:
    with ArrayWriter(folder, name, array.dtype, hashed=False) as writer:
        writer.write(array)


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
        self._chunk = chunk_of(ids[edge_type[0]], ids[edge_type[2]])
        self._begin = 0
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
            held = 0
            for piece in table.pieces(types):
                columns.write(piece)
                for pieces, column in zip(self._held, ends, strict=True):
                    pieces.append(ids_of(piece, column))
                if self._labels is not None:
                    self._labels.add(piece)
                if split is not None:
                    self._splits.append(split_codes(piece, split))
                held += len(piece)
                if held >= self._chunk:
                    self._flush(writers)
                    held = 0
                done(len(piece))
            self._flush(writers)
        known = None if self._fitted is None else self._fitted.classes
        classes = known if self._labels is None else _write_labels(folder, self._labels, table.what, known)
        if split is not None:
            _write_splits(folder, np.concatenate(self._splits) if self._splits else np.zeros(0, np.int8))
        return replace(encoding, classes=classes)

    def _flush(self, writers: list[ArrayWriter]) -> None:
        """Looks up the collected ends and writes them."""
        if not self._held[0]:
            return
        ends = [pa.concat_arrays(pieces) for pieces in self._held]
        self._held = [[], []]
        count = len(ends[0])
        (_, first, _), (_, second, _) = self._ends
        if first == second and ends[0].type == ends[1].type:  # one question for both: it costs a table of all ids
            rows = np.split(self._ids[first].find(pa.concat_arrays(ends)), [count])
        else:
            rows = [self._ids[t].find(ids) for t, ids in zip((first, second), ends, strict=True)]
        for ids, found, (column, node_type, _), writer in zip(ends, rows, self._ends, writers, strict=True):
            if (bad := found < 0).any():
                row = int(bad.argmax())
                raise DataError(
                    f"{self._table.place(self._begin + row)}, column {column!r}: {ids[row].as_py()!r} is not an id "
                    f"of {self._keys[node_type]}. "
                    f"{self._remedy(ids.slice(row, 1), first if node_type == second else second)}"
                )
            writer.write(found)
        self._begin += count

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
    """Writes all tables below ``folder``; only the ids, labels and splits of the nodes are held in memory.

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
    save_facts(folder, facts)
    return GraphEncoding(nodes=node_features, edges=edge_features)
