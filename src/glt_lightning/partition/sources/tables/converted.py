"""The converted tables of a partitioned graph: what the user calls its nodes, and nodes and edges that are given by these ids."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from glt_lightning.base import DataError, EdgeType, NodeType, edge_type_str
from glt_lightning.graph import EdgeSplit, Manifest
from glt_lightning.partition.sources.tables.columns import LabelColumn, feature_types, load_facts, node_folder, user_ids
from glt_lightning.partition.sources.tables.encoders import PlainEncoder
from glt_lightning.partition.sources.tables.encoding import GraphEncoding, encode_rows
from glt_lightning.partition.sources.tables.files import TableFiles
from glt_lightning.partition.sources.tables.ids import KeyIds, NodeIds, RowIds, has_ids, ids_of, load_ids
from glt_lightning.partition.sources.tables.mapping import EdgeTable, parse_tables
from glt_lightning.partition.sources.tables.source import tables_folder


class ConvertedTables:
    """The tables that a partitioned graph was made of, as they were converted: what the user calls its nodes.

    root: folder of downloads and partitions.  manifest: of the graph.  later: node type -> ids of the last nodes, which came
    after the tables were converted; types with ids alone.
    """

    def __init__(
        self, root: str | Path, manifest: Manifest, later: Mapping[NodeType, np.ndarray] = MappingProxyType({})
    ) -> None:
        made = manifest.made_by
        self.folder = tables_folder(root, str(made.get("source")), str(made.get("fingerprint")))
        self._manifest, self._later = manifest, later

    def require(self, what: str) -> None:
        """Raises `DataError` if they are not there. what: the beginning of the error."""
        if not self.folder.is_dir():
            raise DataError(
                f"{what}: {self.folder} is not there, the converted tables with the ids of the nodes. Set data.root to where the "
                "graph was partitioned."
            )

    def has_ids(self, node_type: NodeType) -> bool:
        """Tells whether they are there, and nodes of a type have ids other than their rows."""
        return has_ids(node_folder(self.folder, node_type))

    def user_ids(self, n_id: np.ndarray, node_type: NodeType) -> np.ndarray | None:
        """Returns the ids of nodes, int64 or text [K]; None unless the type `has_ids`."""
        if not self.has_ids(node_type):
            return None
        later = self._later.get(node_type)
        if later is None:
            return user_ids(self.folder, n_id, node_type)
        count = self._manifest.num_nodes[self._manifest.schema.node_index(node_type)] - len(later)
        old = user_ids(self.folder, n_id[n_id < count], node_type)
        found = np.empty(len(n_id), old.dtype)
        found[n_id < count], found[n_id >= count] = old, later[n_id[n_id >= count] - count]
        return found

    def read_ids(self, what: str, path: str, node_type: NodeType) -> np.ndarray:
        """Reads ids of nodes, the user's own, from a file: the lines of ``.txt``, or the first column of a table. Returns their
        rows in the table of nodes, int64 [n].

        what: the beginning of errors. Raises `DataError` for an id that no node has."""
        self.require(what)
        known = _ids(self.folder, node_type)
        if path.endswith(".txt"):
            lines = [line.strip() for line in _open_text(what, path).splitlines()]
            ids = pa.array([line for line in lines if line], pa.large_string())
        else:
            files = TableFiles(what, (path,))
            column = files.columns[0]
            ids = _joined([ids_of(piece, column) for piece in files.pieces(files.read_types([column]))])
        found = known.find(ids)
        if (bad := found < 0).any():
            row = int(bad.argmax())
            raise DataError(
                f"{what}: {path}: {ids[row].as_py()!r} is no id of a node of type {node_type!r}. Remove it."
            )
        return found

    def read_edges(
        self, what: str, path: str, dataset: Any, edge_type: EdgeType, *, with_label: bool = False
    ) -> EdgeSplit:
        """Reads edges to predict from a table with the columns of the graph's own table of edges.

        what: the beginning of errors.  dataset: the mapping of the graph's own tables.  with_label: read the column ``label``,
        too, which has the relations of edges; other labels are what is to be predicted.

        Raises `DataError` for a table without these columns, and for an id that no node has.
        """
        self.require(what)
        table = _edge_table(what, dataset, edge_type)
        encoding = GraphEncoding.load(self.folder).edges.get(edge_type_str(edge_type))
        features = [each.column for each in encoding.encoders] if encoding is not None else []
        ends, label = [str(table.source), str(table.destination)], table.label if with_label else None
        files = TableFiles(what, (path,))
        files.check_columns([*ends, *features, *([label] if label else [])])
        plain = [each.column for each in (encoding.encoders if encoding else ()) if isinstance(each, PlainEncoder)]
        encoded = [name for name in features if name not in plain]
        types = feature_types(files, plain) | files.read_types([*ends, *encoded])
        nodes = [_ids(self.folder, t) for t in (edge_type[0], edge_type[2])]
        classes = None if encoding is None else encoding.classes
        labels, numbers = None, list[np.ndarray]()
        if label is not None:
            types[label] = pa.large_string() if classes is not None else files.types([label])[label]
            labels = LabelColumn(label)
        found: list[np.ndarray] = []
        columns: dict[str, list[Any]] = {name: [] for name in features}
        for piece in files.pieces(types):
            found.append(np.stack([_rows_of(piece, *each) for each in zip(ends, nodes, strict=True)]))
            if labels is not None:
                numbers.append(labels.read(piece))
            for name, parts in columns.items():
                parts.append(piece.column(name))
        edge = np.concatenate(found, axis=1).astype(np.int64) if found else np.zeros((2, 0), np.int64)
        known_labels = None
        if labels is not None:
            known_labels = _numbered(f"{what}: {path}: {label}", np.concatenate(numbers), labels.classes, classes)
        if not features or not edge.shape[1]:
            return EdgeSplit(edge=edge, label=known_labels)
        made = encode_rows(self.folder, {name: _joined(parts) for name, parts in columns.items()}, edge_type=edge_type)
        codes = made.get("edge_codes")
        codes = None if codes is None else codes.astype(np.int64)
        return EdgeSplit(edge=edge, label=known_labels, attr=made.get("edge_attr"), codes=codes)


def _edge_table(what: str, dataset: Any, edge_type: EdgeType) -> EdgeTable:
    """Returns the graph's own table of edges. Raises `DataError` where there is none, or a matrix."""
    tables = parse_tables(dataset).edges
    if edge_type not in tables:
        raise DataError(f"{what}: the data set has no table of edges {edge_type_str(edge_type)}.")
    if tables[edge_type].source is None or tables[edge_type].destination is None:
        raise DataError(f"{what}: the edges of the graph are a matrix. Give node ids [2, S] as an .npy file.")
    return tables[edge_type]


def _rows_of(piece: Any, column: str, known: Any) -> np.ndarray:
    """Finds the rows of the ids in a column. Raises `DataError` for one that no node has."""
    ids = ids_of(piece, column)
    found: np.ndarray = known.find(ids)
    if (bad := found < 0).any():
        row = int(bad.argmax())
        raise piece.error(column, row, f"{ids[row].as_py()!r} is no id of a node of the graph. Remove the row.")
    return found


def _numbered(what: str, labels: np.ndarray, names: list[str] | None, classes: list[str] | None) -> np.ndarray:
    """Returns int64 [E], labels by the classes of the graph. names: of the labels.  classes: None if they are numbers. Raises
    `DataError` for others."""
    if classes is None or names is None:
        return labels
    if unknown := sorted(set(names) - set(classes)):
        raise DataError(f"{what}: expected one of {', '.join(classes[:20])}; found {unknown[0]!r}.")
    return np.array([*(classes.index(name) for name in names), -1])[labels]


def _open_text(what: str, path: str) -> str:
    try:
        return Path(path).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{what}: {path}: cannot be read ({error}).") from None


def _ids(folder: Path, node_type: str) -> NodeIds:
    place = node_folder(folder, node_type)
    return KeyIds(load_ids(place)) if has_ids(place) else RowIds(load_facts(folder)[node_type].num_nodes)


def _joined(parts: list[Any]) -> pa.Array:
    return pa.chunked_array(parts).combine_chunks()
