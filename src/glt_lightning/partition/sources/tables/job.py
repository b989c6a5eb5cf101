"""What the tasks of one conversion work on: the tables, and for each what was found out before its rows are converted."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from glt_lightning.base import EdgeType, NodeType, edge_type_str
from glt_lightning.partition.sources.tables.columns import edge_folder, feature_columns, node_folder
from glt_lightning.partition.sources.tables.encoders import ColumnEncoding
from glt_lightning.partition.sources.tables.encoding import TableEncoding
from glt_lightning.partition.sources.tables.files import Layout, Range, TableFiles
from glt_lightning.partition.sources.tables.fit import Fits, Fitting
from glt_lightning.partition.sources.tables.ids import DealtIds, NodeIds, RowIds, StoredIds
from glt_lightning.partition.sources.tables.mapping import EdgeTable, NodeTable, Tables, parse_tables
from glt_lightning.partition.tasks.exchange import save_text
from glt_lightning.partition.tasks.job import JOB


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How the rows of a table are converted. types: as which columns are read."""

    types: Mapping[str, pa.DataType]
    encoding: TableEncoding


@dataclass(frozen=True, kw_only=True)
class IdFacts:
    """How the ids of nodes are stored.

    Attributes:
        count: Number of nodes.
        keys: Whether there is a column of ids; else a node's id is its row.
        is_text, first: As of `KeyIds`.
        buckets: Number of buckets into which tasks have dealt the ids out by their hash; 0: they were not.
        pieces: Names of these tasks' folders.
    """

    count: int
    keys: bool
    is_text: bool = False
    first: int | None = None
    buckets: int = 0
    pieces: tuple[str, ...] = ()


class TableJob:
    """One conversion of tables. A table goes by a name: ``nodes.TYPE`` or ``edges.SRC__REL__DST``.

    tables: the parsed mapping, and ``given`` the mapping itself, which other processes get.
    folder: of the whole run.
    prefix: begins the names of tables in errors.
    ids: of node types that come from elsewhere.
    paths: the files of each table; None: they are listed.

    Attributes:
        out, work: The converted tables, which will be renamed, and the files between tasks.
        memory_bytes: Working memory of one task.
    """

    def __init__(
        self,
        tables: Tables,
        folder: Path,
        memory_bytes: int,
        *,
        given: Any = None,
        prefix: str = "",
        ids: Mapping[NodeType, Any] | None = None,
        paths: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.tables, self.folder, self.memory_bytes = tables, folder, memory_bytes
        self.out, self.work = folder / "tables", folder / "work"
        self._given, self._prefix, self._ids, self._paths = given, prefix, dict(ids or {}), dict(paths or {})
        self._files: dict[str, TableFiles] = {}
        self._layouts: dict[str, Layout] = {}

    def save(self) -> str:
        nonce = os.urandom(8).hex()
        # Elsewhere another folder may be the current one.
        paths = {name: [str(path.absolute()) for path in self.files(name).paths] for name in self.names}
        text = {"nonce": nonce, "tables": self._given, "paths": paths, "memory_bytes": self.memory_bytes}
        save_text(self.folder / JOB, json.dumps(text))
        return nonce

    @classmethod
    def opened(cls, raw: Mapping[str, Any], folder: Path) -> TableJob:
        """Opens a job in another process. raw: as `save` wrote it."""
        paths = {name: tuple(each) for name, each in raw["paths"].items()}
        return cls(parse_tables(raw["tables"]), folder, raw["memory_bytes"], paths=paths)

    @property
    def tasks(self) -> Mapping[str, Callable[..., Any]]:
        from glt_lightning.partition.sources.tables.tasks import TASKS  # which knows the job

        return TASKS

    @cached_property
    def _types(self) -> dict[str, NodeType | EdgeType]:
        edges = {f"edges.{edge_type_str(e)}": e for e, table in self.tables.edges.items() if not table.is_matrix}
        return {f"nodes.{t}": t for t in self.tables.nodes} | edges

    @property
    def names(self) -> list[str]:
        return [*self._types]

    def type_of(self, name: str) -> Any:
        """Returns the node type or the edge type of a table."""
        return self._types[name]

    def table(self, name: str) -> NodeTable | EdgeTable:
        of = self._types[name]
        return self.tables.nodes[of] if isinstance(of, str) else self.tables.edges[of]

    def what(self, name: str) -> str:
        return f"{self._prefix}{self.tables.key_of(self._types[name])}"

    def files(self, name: str) -> TableFiles:
        if name not in self._files:
            self._files[name] = TableFiles(self.what(name), self._paths.get(name, self.table(name).path))
        return self._files[name]

    def least_bytes(self, name: str) -> int:
        """Lower bound on the bytes of a table's arrays: of features, and of ids or ends. 0 for text, whose rows are not known."""
        table, rows = self.table(name), self.files(name).num_rows
        if isinstance(table, EdgeTable):
            return rows * 2 * 4
        taken = [table.id, table.label, table.split, *table.attrs.values()]
        features = feature_columns(self.files(name), table.features, [each for each in taken if each]) if rows else []
        return rows * (8 * (table.id is not None) + 4 * len(features))

    def array_folder(self, name: str) -> Path:
        of = self._types[name]
        return node_folder(self.out, of) if isinstance(of, str) else edge_folder(self.out, of)

    def scratch(self, name: str) -> Path:
        folder = self.work / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def fit_folder(self, name: str, rows: Range) -> Path:
        """Folder of the values that a task keeps for the fit of columns."""
        return self.scratch(name) / "fits" / piece_name(rows)

    # Files about a table, which the first process writes before tasks need them.

    def save_about(self, name: str, about: Layout | Fitting | Plan | IdFacts) -> None:
        save_text(self.scratch(name) / f"{type(about).__name__}.json", json.dumps(about, default=_to_json))

    def _load(self, name: str, kind: type) -> dict[str, Any]:
        raw = json.loads((self.work / name / f"{kind.__name__}.json").read_bytes())
        return raw | (
            {"types": {column: _type_of(text) for column, text in raw["types"].items()}} if "types" in raw else {}
        )

    def layout(self, name: str) -> Layout:
        if name not in self._layouts:
            self._layouts[name] = Layout(**self._load(name, Layout))
        return self._layouts[name]

    def fits(self, name: str) -> Fits:
        raw = self._load(name, Fitting)
        columns = {
            column: ColumnEncoding(**how | {"cyclic": tuple(how["cyclic"])}) for column, how in raw["columns"].items()
        }
        missing = None if raw["missing"] is None else tuple(raw["missing"])
        return Fits(self.files(name), Fitting(**{**raw, "columns": columns, "missing": missing}))

    def plan(self, name: str) -> Plan:
        raw = self._load(name, Plan)
        return Plan(types=raw["types"], encoding=TableEncoding.from_json(raw["encoding"]))

    def ids(self, t: NodeType) -> NodeIds:
        """The ids of nodes, when their table is converted."""
        if t not in self._ids:
            facts = IdFacts(**self._load(f"nodes.{t}", IdFacts))
            self._ids[t] = self._stored(t, facts) if facts.keys else RowIds(facts.count)
        found: NodeIds = self._ids[t]
        return found

    def _stored(self, t: NodeType, facts: IdFacts) -> StoredIds:
        folders = [self.scratch(f"nodes.{t}") / "dealt" / piece for piece in facts.pieces]
        buckets = DealtIds(folders, facts.buckets, facts.is_text) if facts.buckets else None
        return StoredIds(node_folder(self.out, t), facts.first, buckets)


def piece_name(rows: Range) -> str:
    """Returns the name of the files that a task writes about a range of a table."""
    return f"{rows.first}-{rows.file}-{rows.begin}"


def _to_json(value: Any) -> Any:
    if isinstance(value, pa.DataType):
        return base64.b64encode(pa.schema([("", value)]).serialize().to_pybytes()).decode()
    return value.to_json() if isinstance(value, TableEncoding) else vars(value)


def _type_of(text: str) -> pa.DataType:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))).field(0).type
