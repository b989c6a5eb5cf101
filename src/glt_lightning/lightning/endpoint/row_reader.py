"""New rows that come with a request: read as those of ``data.new`` are, and those at fault left out and named."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from glt_lightning.base import DataError, GraphSchema, edge_type_str
from glt_lightning.lightning.endpoint.question import Question, QuestionError
from glt_lightning.lightning.new_rows import additions_of
from glt_lightning.partition import Additions, LaterTables

_MOST_BAD = 8  # rows of a table that are looked for; with more, the request is at fault
_COLUMN = re.compile(r"column '([^']+)'")
_OWN_PATH = re.compile(r"\S*glt-ask-\S*?: (row \d+, )?")  # of the file that rows were put into
_Tables = Mapping[str, Mapping[str, pa.Table]]


@dataclass(frozen=True)
class NewRows:
    """New rows that were read.

    Attributes:
        additions: What is added to the graph.
        names: Node type -> own ids of the new nodes; types with ids alone.
        errors: What was wrong with the rows that are left out.
        bad: Node type -> ids, as text, of nodes at edges that are left out: a prediction would lack these.
    """

    additions: Additions
    names: Mapping[str, Sequence[Any]]
    errors: list[QuestionError] = field(default_factory=list)
    bad: Mapping[str, set[str]] = field(default_factory=dict)


class RowReader:
    """Reads new rows of a version of the graph.

    schema: of the graph.  tables: those that it was made of; None: it is no tables.  check: raises `DataError` for rows that do
    not fit the graph.
    """

    def __init__(self, schema: GraphSchema, tables: LaterTables | None, check: Callable[[Additions], None]) -> None:
        self._schema, self._tables, self._check = schema, tables, check

    def read(self, question: Question) -> NewRows:
        """Raises `QuestionError` for rows of types that the graph does not have, and where many are at fault."""
        given: dict[str, dict[str, pa.Table]] = {}
        for kind, tables in (("nodes", question.nodes), ("edges", question.edges)):
            types = [*self._schema.node_types] if kind == "nodes" else list(map(edge_type_str, self._schema.edge_types))
            for t in tables:
                if t not in types and (t or len(types) > 1):
                    name = f"{kind}.{t}".rstrip(".")
                    raise QuestionError(f"{kind}: expected rows of {', '.join(types)}; got {t!r:.80}.", name)
            given[kind] = {t or types[0]: rows for t, rows in tables.items()}
        try:
            return self._read(given)
        except QuestionError:
            raise
        except DataError as error:
            return self._read_good(given, error)

    def _read(self, given: _Tables) -> NewRows:
        if self._tables is None:
            found = NewRows(_arrays(given), {})
        else:
            with tempfile.TemporaryDirectory(prefix="glt-ask-") as temporary:
                later = self._tables.read(_saved(given, Path(temporary)))
            found = NewRows(later.additions, {t: names.tolist() for t, names in later.ids.items()})
        self._check(found.additions)
        return found

    def _read_good(self, given: _Tables, error: DataError) -> NewRows:
        """Reads the rows that can be read: nodes first, then edges between them and old ones."""
        errors: list[QuestionError] = []
        good: dict[str, dict[str, pa.Table]] = {"nodes": {}, "edges": {}}
        bad: dict[str, set[str]] = {}
        for kind, tables in given.items():
            for name, table in tables.items():
                found = self._faults(f"{kind}.{name}", table, good["nodes"])
                if found and kind == "nodes" and (self._tables is None or not self._tables.has_ids(name)):
                    raise found[min(found)]  # without ids, nodes are told apart by number, which would change
                errors += found.values()
                left = [row for row in range(len(table)) if row not in found]
                good[kind][name] = table.take(pa.array(left, pa.int64())) if found else table
                if kind == "edges":
                    for t, ids in self._ends(name, table.take(pa.array([*found], pa.int64()))).items():
                        bad.setdefault(t, set()).update(ids)
        if not errors:  # rows that fit one by one, but not together
            raise _fault("nodes", None, error) from error
        try:
            return replace(self._read(good), errors=errors, bad=bad)
        except DataError as reason:
            raise errors[0] from reason

    def _faults(
        self, name: str, table: pa.Table, nodes: Mapping[str, pa.Table], first: int = 0
    ) -> dict[int, QuestionError]:
        """Returns the rows at fault, by halves, and why. nodes: new nodes that edges may lead to."""
        kind, _, of = name.partition(".")
        rows = (
            {"nodes": {**nodes, of: table}, "edges": {}} if kind == "nodes" else {"nodes": nodes, "edges": {of: table}}
        )
        try:
            self._read(rows)
            return {}
        except QuestionError:
            raise
        except DataError as error:
            if len(table) <= 1:
                return {first: _fault(name, first, error)}
        half = len(table) // 2
        found = self._faults(name, table.slice(0, half), nodes, first)
        found |= self._faults(name, table.slice(half), nodes, first + half)
        if len(found) > _MOST_BAD:
            raise found[min(found)]
        return found

    def _ends(self, name: str, table: pa.Table) -> dict[str, set[str]]:
        """Returns the ids at the ends of edges by node type, as text."""
        src, _, dst = name.split("__")
        columns: tuple[str | None, str | None] = ("source", "destination")
        if self._tables is not None:
            edges = {edge_type_str(e): each for e, each in self._tables.tables.edges.items()}[name]
            columns = edges.source, edges.destination
        found: dict[str, set[str]] = {src: set(), dst: set()}
        for t, column in zip((src, dst), columns, strict=True):
            if column in table.column_names:
                found[t].update(map(str, table.column(column).to_pylist()))
        return found


def _fault(name: str, row: int | None, reason: DataError) -> QuestionError:
    """An error about a new row, which names its column and not the file that it was put into."""
    text = _OWN_PATH.sub("", str(reason))
    column = _COLUMN.search(text)
    name = f"{name}.{column[1]}" if column else name
    return QuestionError(f"{name}: {text}", name, row)


def _saved(given: _Tables, folder: Path) -> dict[str, Any]:
    """Writes rows as files. Returns their paths as in the file of ``data.new``."""
    paths: dict[str, Any] = {"nodes": {}, "edges": {}}
    for kind, tables in given.items():
        for number, (name, table) in enumerate(tables.items()):
            path = folder / f"{kind}{number}.parquet"
            LaterTables.save(f"{kind}.{name}", table, path)
            paths[kind][name] = {"path": str(path)}
    return paths


def _arrays(given: _Tables) -> Additions:
    """Makes arrays of the rows of a graph that is no tables."""
    edges: dict[str, Any] = {}
    for name, table in given["edges"].items():
        columns = _columns(table)
        if not {"source", "destination"} <= set(columns):
            raise QuestionError(f"edges.{name}: expected the columns source and destination.", f"edges.{name}")
        edges[name] = np.stack([columns.pop("source"), columns.pop("destination")]), columns
    nodes: dict[str, Any] = {t: _columns(table) or table.num_rows for t, table in given["nodes"].items()}
    return additions_of(nodes, edges)


def _columns(table: pa.Table) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in table.column_names:
        try:
            found[name] = np.array(table.column(name).to_pylist())
        except ValueError:  # rows of several widths
            raise DataError(f"column {name!r}: expected rows of one shape.") from None
    return found
