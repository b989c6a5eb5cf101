"""Edges of a table that came after the graph was partitioned: ends by the user's ids, features by the stored encoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from glt_lightning.base import DataError, EdgeType, edge_type_str
from glt_lightning.graph import EdgeSplit
from glt_lightning.partition.sources.tables.columns import LabelColumn, feature_types, load_facts, user_ids
from glt_lightning.partition.sources.tables.encoders import PlainEncoder
from glt_lightning.partition.sources.tables.encoding import GraphEncoding, encode_rows
from glt_lightning.partition.sources.tables.files import TableFiles
from glt_lightning.partition.sources.tables.mapping import EdgeTable
from glt_lightning.partition.sources.tables.nodes import KeyIds, ids_of
from glt_lightning.partition.sources.tables.raw_values import is_text


def read_new_edges(
    what: str, path: str, table: EdgeTable, edge_type: EdgeType, folder: Path, *, with_label: bool = False
) -> EdgeSplit:
    """Reads edges to predict from a table with the columns of the graph's own table of edges.

    what: the beginning of errors.  table: how the graph's own table is read.  folder: of the converted tables.  with_label: read
    the column ``label``, too, which has the relations of edges; other labels are what is to be predicted.
    Raises `DataError` for a table without these columns, and for an id that no node has.
    """
    if table.source is None or table.destination is None:
        raise DataError(f"{what}: the edges of the graph are a matrix. Give node ids [2, S] as an .npy file.")
    encoding = GraphEncoding.load(folder).edges.get(edge_type_str(edge_type))
    features = [each.column for each in encoding.encoders] if encoding is not None else []
    ends, label = [table.source, table.destination], table.label if with_label else None
    files = TableFiles(what, (path,))
    files.check_columns([*ends, *features, *([label] if label else [])])
    plain = [each.column for each in (encoding.encoders if encoding else ()) if isinstance(each, PlainEncoder)]
    encoded = [name for name in features if name not in plain]
    text = dict.fromkeys([*ends, *encoded], pa.large_string())
    types = feature_types(files, plain) | (text if files.is_text else files.types([*ends, *encoded]))
    nodes = [_ids(folder, t) for t in (edge_type[0], edge_type[2])]
    classes = None if encoding is None else encoding.classes
    labels = None
    if label is not None:
        types[label] = pa.large_string() if classes is not None else files.types([label])[label]
        labels = LabelColumn(label, types[label])
    found: list[np.ndarray] = []
    columns: dict[str, list[Any]] = {name: [] for name in features}
    for piece in files.pieces(types):
        found.append(np.stack([_rows_of(piece, *each) for each in zip(ends, nodes, strict=True)]))
        if labels is not None:
            labels.add(piece)
        for name, parts in columns.items():
            parts.append(piece.column(name))
    edge = np.concatenate(found, axis=1).astype(np.int64) if found else np.zeros((2, 0), np.int64)
    known_labels = None if labels is None else _numbered(f"{what}: {path}: {label}", labels, classes)
    if not features or not edge.shape[1]:
        return EdgeSplit(edge=edge, label=known_labels)
    made = encode_rows(folder, {name: _joined(parts) for name, parts in columns.items()}, edge_type=edge_type)
    codes = made.get("edge_codes")
    codes = None if codes is None else codes.astype(np.int64)
    return EdgeSplit(edge=edge, label=known_labels, attr=made.get("edge_attr"), codes=codes)


def _rows_of(piece: Any, column: str, known: Any) -> np.ndarray:
    """Finds the rows of the ids in a column. Raises `DataError` for one that no node has."""
    ids = ids_of(piece, column)
    found: np.ndarray = known.find(ids)
    if (bad := found < 0).any():
        row = int(bad.argmax())
        raise piece.error(column, row, f"{ids[row].as_py()!r} is no id of a node of the graph. Remove the row.")
    return found


def _numbered(what: str, labels: LabelColumn, classes: list[str] | None) -> np.ndarray:
    """Returns int64 [E], labels by the classes of the graph. classes: None if they are numbers. Raises `DataError` for others."""
    found, names = labels.finish()
    if classes is None or names is None:
        return found
    if unknown := [name for name in names if name not in classes]:
        raise DataError(f"{what}: expected one of {', '.join(classes[:20])}; found {unknown[0]!r}.")
    return np.array([*(classes.index(name) for name in names), -1])[found]


def read_ids(what: str, path: str, node_type: str, folder: Path) -> np.ndarray:
    """Reads ids of nodes, the user's own, from a file: the lines of ``.txt``, or the first column of a table. Returns their rows
    in the table of nodes, int64 [n].

    what: the beginning of errors.  folder: of the converted tables. Raises `DataError` for an id that no node has."""
    known = _ids(folder, node_type)
    if path.endswith(".txt"):
        lines = [line.strip() for line in _open_text(what, path).splitlines()]
        ids = pa.array([line for line in lines if line], pa.large_string())
        names = ids
    else:
        files = TableFiles(what, (path,))
        column = files.columns[0]
        types = {column: pa.large_string()} if files.is_text else files.types([column])
        ids = pa.chunked_array([ids_of(piece, column) for piece in files.pieces(types)]).combine_chunks()
        names = ids
    found = known.find(ids)
    if (bad := found < 0).any():
        row = int(bad.argmax())
        raise DataError(f"{what}: {path}: {names[row].as_py()!r} is no id of a node of type {node_type!r}. Remove it.")
    return found


def _open_text(what: str, path: str) -> str:
    try:
        return Path(path).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{what}: {path}: cannot be read ({error}).") from None


def _ids(folder: Path, node_type: str) -> KeyIds:
    ids = pa.array(user_ids(folder, np.arange(load_facts(folder)[node_type].num_nodes), node_type))
    ids = ids.cast(pa.large_string()) if is_text(ids.type) else ids
    return KeyIds(pa.chunked_array([ids]), from_text=False)


def _joined(parts: list[Any]) -> pa.Array:
    return pa.chunked_array(parts).combine_chunks()
