"""The converted tables of a partitioned graph: what the user calls its nodes, and nodes and edges that are given by these ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from glt_lightning.base import DataError, EdgeType, NodeType, edge_type_str
from glt_lightning.graph import EdgeSplit, Manifest
from glt_lightning.partition.sources.tables.columns import LabelColumn, load_facts, node_folder, user_ids
from glt_lightning.partition.sources.tables.encoding import GraphEncoding, TableEncoding, log_unknown
from glt_lightning.partition.sources.tables.files import TableFiles
from glt_lightning.partition.sources.tables.ids import KeyIds, NodeIds, RowIds, has_ids, ids_of, load_ids, rows_of
from glt_lightning.partition.sources.tables.mapping import EdgeTable, parse_tables
from glt_lightning.partition.sources.tables.source import tables_folder
from glt_lightning.partition.sources.tables.writers import Read


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
            ids = pa.concat_arrays([ids_of(piece, column) for piece in files.pieces(files.read_types([column]))])
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
        table, nodes = _edge_table(what, dataset, edge_type), [_ids(self.folder, t) for t in edge_type[::2]]
        encoding = GraphEncoding.load(self.folder).edges.get(edge_type_str(edge_type), TableEncoding())
        ends, classes = [str(table.source), str(table.destination)], encoding.classes
        label = table.label if with_label else None
        read: dict[str, Read] = {}
        if encoding.floats:
            read["attr"] = encoding.read_floats
        if encoding.codes:
            read["codes"] = encoding.read_codes
        files = TableFiles(what, (path,))
        files.check_columns([*ends, *(e.column for e in encoding.encoders), *([label] if label else [])])
        types = encoding.types(files) | files.read_types(ends)
        labels = LabelColumn(label or "")
        if label is not None:
            read["label"] = labels.read
            types |= files.types([label]) if classes is None else {label: pa.large_string()}
        edges, unknown = list[list[np.ndarray]](), Counter[str]()
        found: dict[str, list[np.ndarray]] = {name: [] for name in read}
        for piece in files.pieces(types):
            edges.append([rows_of(piece, *each, "a node of the graph") for each in zip(ends, nodes, strict=True)])
            for name, reader in read.items():
                found[name].append(reader(piece))
            unknown += encoding.unknown(piece)
        edge = np.concatenate(edges, axis=1).astype(np.int64)
        log_unknown(f"{what}: {path}", unknown, edge.shape[1])
        arrays = {name: np.concatenate(parts) for name, parts in found.items()}
        if label is not None:
            arrays["label"] = _numbered(f"{what}: {path}: {label}", arrays["label"], labels.classes, classes)
        if encoding.codes:
            arrays["codes"] = arrays["codes"].astype(np.int64)
        return EdgeSplit(edge=edge, **arrays)


def _edge_table(what: str, dataset: Any, edge_type: EdgeType) -> EdgeTable:
    """Returns the graph's own table of edges. Raises `DataError` where there is none, or a matrix."""
    tables = parse_tables(dataset).edges
    if edge_type not in tables:
        raise DataError(f"{what}: the data set has no table of edges {edge_type_str(edge_type)}.")
    if tables[edge_type].source is None or tables[edge_type].destination is None:
        raise DataError(f"{what}: the edges of the graph are a matrix. Give node ids [2, S] as an .npy file.")
    return tables[edge_type]


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
