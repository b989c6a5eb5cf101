"""Tables of edges, and sparse matrices, become arrays of rows of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from glt_lightning.base import DataError, EdgeType, NodeType, Progress
from glt_lightning.graph import ArrayWriter
from glt_lightning.partition.sources.scipy_sparse import read_sparse
from glt_lightning.partition.sources.tables.encoding import TableEncoding
from glt_lightning.partition.sources.tables.files import TableFiles
from glt_lightning.partition.sources.tables.ids import NodeIds, chunk_of, id_types, ids_of
from glt_lightning.partition.sources.tables.mapping import EdgeTable
from glt_lightning.partition.sources.tables.writers import ColumnWriters, readers

_INT32_MAX = 2**31 - 1


class EdgeConverter:
    """One table of edges: attributes are written as they come, ends are gathered and looked up many at once."""

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

    def run(self, folder: Path, progress: Progress) -> TableEncoding:
        """Returns the features of the edges."""
        table, ends = self._table, [column for column, _, _ in self._ends]
        read, types, encoding = readers(table, self._edges, list(ends), self._fitted, progress)
        types |= id_types(table, ends)
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
                held += len(piece)
                if held >= self._chunk:
                    self._flush(writers)
                    held = 0
                done(len(piece))
            self._flush(writers)
        return encoding

    def _flush(self, writers: list[ArrayWriter]) -> None:
        """Looks up what was gathered."""
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
        """other: the node type at the other end of the edge."""
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
