"""Rows of tables that come after a graph was partitioned: encoded as fitted, with ids among those of the graph."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from glt_lightning.base import DataError, EdgeType, NodeType, PartitionOptions, Progress, edge_type_str
from glt_lightning.graph import Manifest
from glt_lightning.partition.additions import Additions, NewEdges, NewNodes
from glt_lightning.partition.sources.tables.columns import edge_folder, load_facts, node_folder
from glt_lightning.partition.sources.tables.convert import Conversion
from glt_lightning.partition.sources.tables.converted import ConvertedTables
from glt_lightning.partition.sources.tables.encoders import CategoryEncoder
from glt_lightning.partition.sources.tables.encoding import GraphEncoding, TableEncoding, log_unknown
from glt_lightning.partition.sources.tables.files import TableFiles
from glt_lightning.partition.sources.tables.ids import IDS, KeyIds, NodeIds, RowIds, SortedIds, load_ids, named, rows_of
from glt_lightning.partition.sources.tables.job import TableJob
from glt_lightning.partition.sources.tables.mapping import EdgeTable, NodeTable, Tables, parse_tables
from glt_lightning.partition.tasks.run import Calls

if TYPE_CHECKING:
    from glt_lightning.partition.versions import Appended

_ENDS = ("source.npy", "destination.npy")


@dataclass(frozen=True)
class LaterRows:
    """New rows of the tables of a graph.

    Attributes:
        additions: The rows as they are added to the partition.
        ids: Node type -> what the user's table calls the new nodes, int64 or text; types with ids alone.
    """

    additions: Additions
    ids: Mapping[NodeType, np.ndarray]


class LaterTables:
    """Reads new rows of the tables of a graph.

    Args:
        dataset: The mapping of the tables that the graph was made of.
        root: Folder of downloads and partitions, with the converted tables.
        manifest, folder: Of the partition.
        appended: Rows that came before these; None: there are none.
        many: Rows are read again and again, so that look-ups of a few ids are worth an index of all.
    """

    def __init__(
        self,
        dataset: Any,
        root: str | Path,
        manifest: Manifest,
        folder: Path,
        appended: Appended | None = None,
        many: bool = False,
    ) -> None:
        self.tables = parse_tables(dataset)
        converted = ConvertedTables(root, manifest)
        converted.require("new")
        self._converted, self.has_ids = converted.folder, converted.has_ids
        self._folder, self._appended, self._many = folder, appended, many
        self._fitted: GraphEncoding | None = None
        self._in_tables = {t: facts.num_nodes for t, facts in load_facts(self._converted).items()}
        self._ids: dict[NodeType, Any] = {}
        self._lock = threading.Lock()

    @staticmethod
    def save(what: str, rows: Any, path: Path) -> None:
        """Writes a pandas DataFrame, a pyarrow Table or a mapping of columns as a file that `read` takes. Raises `DataError`,
        beginning with ``what``, for anything else."""
        try:
            table = pa.Table.from_pandas(rows, preserve_index=False) if hasattr(rows, "iloc") else pa.table(rows)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise DataError(f"{what}: cannot be read as columns of one length ({error}).") from None
        pq.write_table(table, path)

    def read(self, given: Mapping[str, Any], stay: bool = False) -> LaterRows:
        """Reads new rows.

        given: ``nodes`` and ``edges``, with the ``path`` of each table that has new rows; columns are as in the graph's own
        tables.  stay: they become part of the graph, so that their ids are numbers or text as those of the graph.

        Raises `DataError` for tables that do not fit those of the graph, naming the table, and the row where one is at fault.
        """
        tables = _with_paths(self.tables, given)
        with self._lock:
            fitted = self._fitted = self._fitted or GraphEncoding.load(self._folder)
        with tempfile.TemporaryDirectory(prefix="glt-new-") as temporary:
            return _Reader(tables, fitted, self, Path(temporary), stay).read()

    def read_deleted(self, given: Mapping[str, Any]) -> tuple[dict[NodeType, np.ndarray], dict[EdgeType, np.ndarray]]:
        """Reads rows to delete: nodes by their ids, from the column of ids or else the first one; edges by their ends.

        given: as of `read`. Returns the numbers of nodes [n], and of the ends of edges [2, E], by type.

        Raises `DataError` for an id that no node has, naming the row."""
        tables = _with_paths(self.tables, given, "delete")
        nodes: dict[NodeType, np.ndarray] = {}
        for t, table in tables.nodes.items():
            files = TableFiles(f"delete: {tables.key_of(t)}", table.path)
            nodes[t] = self._numbers(files, {table.id or files.columns[0]: t})[0]
        edges: dict[EdgeType, np.ndarray] = {}
        for e, of_edges in tables.edges.items():
            files = TableFiles(f"delete: {tables.key_of(e)}", of_edges.path)
            ends = {str(of_edges.source): e[0], str(of_edges.destination): e[2]}
            edges[e] = self._numbers(files, ends)
        return nodes, edges

    def name(self, t: NodeType, node: int) -> object:
        """Returns what the user's table calls a node: its id, or its row where nodes have none."""
        found = self.ids(t)
        return node if isinstance(found, RowIds) else found.ids[node].as_py()

    def require_alive(self, files: TableFiles, ends: Sequence[tuple[str, NodeType, np.ndarray]]) -> None:
        """Raises `DataError` for an edge of a deleted node. ends: of both ends the column, the type, and the numbers [E] of the
        nodes."""
        deleted = {} if self._appended is None else self._appended.deleted
        for column, t, numbers in ends:
            bad = np.flatnonzero(np.isin(numbers, deleted.get(t, ())))
            if len(bad):
                place, node = files.place(int(bad[0])), self.name(t, int(numbers[bad[0]]))
                raise DataError(f"{place}, column {column!r}: node {node!r} of type {t!r} is deleted. Remove the edge.")

    def is_deleted(self, t: NodeType, number: int) -> bool:
        return self._appended is not None and number in self._appended.deleted.get(t, ())

    def _numbers(self, files: TableFiles, columns: Mapping[str, NodeType]) -> np.ndarray:
        """Returns int64 [columns, rows]: the numbers of the nodes that columns name."""
        pieces = files.pieces(files.read_types(columns))
        found = [[rows_of(p, c, self.ids(t), f"a node of type {t!r}") for c, t in columns.items()] for p in pieces]
        return np.concatenate(found, axis=1).astype(np.int64)

    def ids(self, t: NodeType) -> NodeIds:
        """The ids of all nodes of a type that there are, with those of earlier rows."""
        with self._lock:
            if t not in self._ids:
                self._ids[t] = self._indexed(t)
            return self._ids[t]

    def _indexed(self, t: NodeType) -> NodeIds:
        if not self.has_ids(t):
            return RowIds(self._in_tables[t] if self._appended is None else self._appended.num_nodes[t])
        ids = load_ids(node_folder(self._converted, t))
        if self._appended is not None and t in self._appended.ids:
            ids = pa.concat_arrays([ids, pa.array(self._appended.ids[t], ids.type)])
        return SortedIds(ids) if self._many else KeyIds(ids)


def _with_paths(tables: Tables, given: Mapping[str, Any], what: str = "new") -> Tables:
    """Returns the tables that have new rows, with the paths of these. what: the beginning of errors."""
    if unknown := [key for key in given if key not in ("nodes", "edges")]:
        raise DataError(f"{what}: unknown key {unknown[0]!r}; allowed: nodes, edges.")
    found: dict[str, dict[Any, Any]] = {"nodes": {}, "edges": {}}
    known: dict[str, dict[str, Any]] = {
        "nodes": {t: t for t in tables.nodes},
        "edges": {edge_type_str(e): e for e in tables.edges},
    }
    for kind, each in ((kind, given.get(kind)) for kind in ("nodes", "edges")):
        if each is None:
            continue
        alone = tables.homogeneous and (isinstance(each, (str, list)) or (isinstance(each, Mapping) and "path" in each))
        by_type = {next(iter(known[kind])): each} if alone else each
        if not isinstance(by_type, Mapping):
            raise DataError(f"{what}: {kind}: expected the path of a table for each type, got {each!r:.100}.")
        for name, table in by_type.items():
            if name not in known[kind]:
                raise DataError(f"{what}: {kind}: the graph has no type {name!r}; it has: {', '.join(known[kind])}.")
            key = known[kind][name]
            found[kind][key] = _with_path(f"{what}: {kind}: {name}", getattr(tables, kind)[key], table)
    return replace(tables, nodes=found["nodes"], edges=found["edges"])


def _with_path(what: str, table: NodeTable | EdgeTable, given: Any) -> NodeTable | EdgeTable:
    path = given.get("path") if isinstance(given, Mapping) else given
    if isinstance(given, Mapping) and (other := [key for key in given if key != "path"]):
        raise DataError(f"{what}: {other[0]}: new rows have the columns of data.dataset; give the path alone.")
    paths = [path] if isinstance(path, (str, Path)) else path
    if not isinstance(paths, (list, tuple)) or not paths:
        raise DataError(f"{what}: expected the path of a table, got {given!r:.100}.")
    if isinstance(table, EdgeTable) and table.is_matrix:
        raise DataError(f"{what}: the edges of the graph are a matrix; new ones cannot be read from a table.")
    changes: dict[str, Any] = {"path": tuple(map(str, paths))}
    if isinstance(table, NodeTable):
        changes |= {"label": None, "split": None, "fit_on": None}
    return replace(table, **changes)


class _BothIds:
    """The ids of old nodes, and of new ones behind them."""

    def __init__(self, old: NodeIds, new: NodeIds) -> None:
        self._old, self._new = old, new
        self.count = old.count + new.count

    def find(self, ids: pa.Array) -> np.ndarray:
        """Returns int64, the row of each id; -1 if there is none."""
        new = self._new.find(ids)
        found = np.where(new >= 0, new + self._old.count, -1)
        if (missing := found < 0).any():
            found[missing] = self._old.find(ids.filter(pa.array(missing)))
        return found


class _Reader:
    """tables: of the new rows.  graph: those of the graph.  stay: as of `LaterTables.read`."""

    def __init__(self, tables: Tables, fitted: GraphEncoding, graph: LaterTables, temporary: Path, stay: bool) -> None:
        self._tables, self._fitted, self._temporary = tables, fitted, temporary
        self._graph, self._named, self._stay = graph, graph.has_ids, stay

    def read(self) -> LaterRows:
        nodes: dict[NodeType, NewNodes] = {}
        new_ids: dict[NodeType, NodeIds] = {}
        for t, table in self._tables.nodes.items():
            nodes[t], new_ids[t] = self._nodes(t, table)
        wanted = {t for e in self._tables.edges for t in (e[0], e[2])} | set(nodes)
        ids = {t: self._both(t, new_ids.get(t, RowIds(0))) for t in sorted(wanted)}
        edges = {e: self._edges(e, table, ids) for e, table in self._tables.edges.items()}
        shown = {t: named(each.ids) for t, each in new_ids.items() if isinstance(each, KeyIds)}
        return LaterRows(Additions(nodes=nodes, edges=edges), shown)

    def _conversion(self, job: TableJob, ids: Iterable[NodeType] = ()) -> Conversion:
        """Makes a conversion in this process. ids: of these types, for edges."""
        keys = {t: f"the graph's nodes of type {t!r}, or of its new ones" for t in ids}
        return Conversion(job, Calls(job, "", None), 1, Progress(False), keys)

    def _job(self, ids: Mapping[NodeType, Any]) -> TableJob:
        return TableJob(self._tables, self._temporary, PartitionOptions().memory_bytes, prefix="new: ", ids=ids)

    def _nodes(self, t: NodeType, table: NodeTable) -> tuple[NewNodes, NodeIds]:
        stored = self._fitted.nodes.get(t, TableEncoding())
        job = self._job({})
        facts, _ = self._conversion(job).nodes(t, replace(stored, classes=None))
        ids = job.ids(t)
        if isinstance(ids, RowIds) and self._named(t):
            what = job.what(f"nodes.{t}")
            raise DataError(f"{what}: nodes of this type have ids; data.dataset names no column of them.")
        if isinstance(ids, KeyIds) and self._named(t) and ids.count:
            self._require_new(t, ids, f"{table.id}", job.files(f"nodes.{t}"))
            if self._stay:
                ids = self._like_those_there(t, ids, f"{table.id}", job.files(f"nodes.{t}"))
        self._log_unknown(job.files(f"nodes.{t}"), stored)
        return NewNodes(facts.num_nodes, _arrays(node_folder(job.out, t), IDS)), ids

    def _like_those_there(self, t: NodeType, ids: KeyIds, column: str, files: TableFiles) -> KeyIds:
        """Returns ids as text if those of the graph are: a table of 17 and 18 alone does not tell. Raises `DataError` for text
        among numbers."""
        known = self._graph.ids(t)
        assert isinstance(known, KeyIds)
        alike = known.compared(ids.ids)
        if alike.null_count:
            row = int(alike.is_null().index(True).as_py())
            raise DataError(
                f"{files.place(row)}, column {column!r}: id {ids.ids[row].as_py()!r} is no integer, but those of the graph's "
                f"nodes of type {t!r} are. Give the node an integer."
            )
        return KeyIds(alike)

    def _require_new(self, t: NodeType, ids: KeyIds, column: str, files: TableFiles) -> None:
        known = np.asarray(self._graph.ids(t).find(ids.ids))
        if (known >= 0).any():
            row = int((known >= 0).argmax())
            which = "a deleted node" if self._graph.is_deleted(t, int(known[row])) else "a node"
            raise DataError(
                f"{files.place(row)}, column {column!r}: id {ids.ids[row].as_py()!r} is in the graph already, of {which}. "
                "New rows are of new nodes; remove it."
            )

    def _both(self, t: NodeType, new: NodeIds) -> _BothIds | RowIds:
        old = self._graph.ids(t)
        return _BothIds(old, new) if self._named(t) else RowIds(old.count + new.count)

    def _edges(self, e: EdgeType, table: EdgeTable, ids: Mapping[NodeType, Any]) -> NewEdges:
        name, job = edge_type_str(e), self._job(ids)
        place, stored = edge_folder(job.out, e), self._fitted.edges.get(name, TableEncoding())
        self._conversion(job, ids).edges(e, stored)
        self._log_unknown(job.files(f"edges.{name}"), stored)
        ends = np.stack([np.load(place / end, allow_pickle=False).astype(np.int64) for end in _ENDS])
        columns = str(table.source), str(table.destination)
        self._graph.require_alive(job.files(f"edges.{name}"), [*zip(columns, (e[0], e[2]), ends, strict=True)])
        return NewEdges(ends, _arrays(place, _ENDS))

    def _log_unknown(self, files: TableFiles, stored: TableEncoding) -> None:
        categories = TableEncoding([each for each in stored.encoders if isinstance(each, CategoryEncoder)])
        if categories.encoders:
            counts, rows = Counter[str](), 0
            for piece in files.pieces(categories.types(files)):
                counts, rows = counts + categories.unknown(piece), rows + len(piece)
            log_unknown(files.what, counts, rows)


def _arrays(folder: Path, others: tuple[str, ...]) -> dict[str, np.ndarray]:
    paths = (path for path in sorted(folder.glob("*.npy")) if path.name not in others)
    return {path.stem: np.load(path, allow_pickle=False) for path in paths}
