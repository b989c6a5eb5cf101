"""The mapping that describes tables of nodes and edges, checked key by key."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from glt_lightning.base import EDGE, NODE, DataError, EdgeType, GraphSchema, NodeType, edge_type_str
from glt_lightning.partition.sources.base import near
from glt_lightning.partition.sources.tables.encoders import (
    Choices,
    changed,
    parse_encode,
    parse_fit_on,
    parse_missing,
)

_TYPE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]|_(?!_))*")
# Names that batches and partitions use for something else.
_TAKEN = {"x", "y", "n_id", "e_id", "input_id", "batch", "batch_size", "ptr", "num_nodes", "hotness", "node", "edge"}
_TAKEN |= {"edge_index", "edge_attr", "edge_weight", "edge_time", "edge_ids", "indptr", "indices"}
_TAKEN |= {"num_sampled_nodes", "num_sampled_edges", "source", "destination", "ids", "ids_offsets", "ids_bytes"}
_TAKEN |= {"x_codes", "edge_codes"}


@dataclass(frozen=True, kw_only=True)
class NodeTable:
    """One table of nodes.

    Attributes:
        path: Files, globs or folders.
        id: Column of the ids; None: a node's id is its row.
        label, split: Columns of ``y`` and of the words train, val, test.
        features: Columns of ``x``: names, patterns, columns of lists.
        attrs: Attribute -> column.
        encode: The encoding of columns of ``features``, by column or pattern; other columns are unchanged numbers.
        missing: Words that mean "no value"; None: the default words, for columns of numbers or dates.
        fit_on: Rows by which means, deviations and fills are fitted: train or all. None: train if there is ``split``.
    """

    path: tuple[str, ...]
    id: str | None = None
    label: str | None = None
    split: str | None = None
    features: tuple[str, ...] = ()
    attrs: Mapping[str, str] = field(default_factory=dict)
    encode: Choices = ()
    missing: tuple[str, ...] | None = None
    fit_on: str | None = None


@dataclass(frozen=True, kw_only=True)
class EdgeTable:
    """One table of edges, or (with nothing but a path) the file of a sparse matrix.

    Attributes:
        path: Files, globs or folders.
        source, destination: Columns of node ids.
        label, split: Columns of labels to predict and of the words train, val, test.
        weight, time: Columns of ``edge_weight`` and ``edge_time``.
        features: Columns of ``edge_attr``: names, patterns, columns of lists.
        attrs: Attribute -> column.
        encode, missing: As for nodes; means, deviations and fills are fitted by all edges.
    """

    path: tuple[str, ...]
    source: str | None = None
    destination: str | None = None
    label: str | None = None
    split: str | None = None
    weight: str | None = None
    time: str | None = None
    features: tuple[str, ...] = ()
    attrs: Mapping[str, str] = field(default_factory=dict)
    encode: Choices = ()
    missing: tuple[str, ...] | None = None

    @property
    def is_matrix(self) -> bool:
        return len(self.path) == 1 and self.path[0].endswith(".npz")


@dataclass(frozen=True, kw_only=True)
class Tables:
    """All tables of a graph.

    encoding: folder whose fitted encoding is applied to these tables; None: an encoding is fitted to them.
    """

    nodes: Mapping[NodeType, NodeTable]
    edges: Mapping[EdgeType, EdgeTable]
    homogeneous: bool
    name: str | None = None
    encoding: str | None = None

    @property
    def schema(self) -> GraphSchema:
        return GraphSchema(tuple(self.nodes), tuple(self.edges), self.homogeneous)

    def key_of(self, table: NodeType | EdgeType) -> str:
        """Returns the key of a table in the mapping, for errors: ``edges``, or ``edges: author__writes__paper``."""
        key, name = ("nodes", table) if isinstance(table, str) else ("edges", edge_type_str(table))
        return key if self.homogeneous else f"{key}: {name}"

    def columns_text(self) -> str:
        """Returns the use of all columns as text, without paths: a part of the fingerprint."""
        tables: list[tuple[str, NodeTable | EdgeTable]] = [*sorted(self.nodes.items())]
        tables += sorted((edge_type_str(e), table) for e, table in self.edges.items())
        return json.dumps([self.homogeneous, [(name, _columns_of(table)) for name, table in tables]])


def _columns_of(table: NodeTable | EdgeTable) -> dict[str, Any]:
    """Returns the use of the columns of a table. Keys of later releases are included only if they are given, so that folders of
    earlier releases keep their name."""
    keys = {name: value for name, value in asdict(table).items() if name != "path"}
    later = ("label", "split") if isinstance(table, EdgeTable) else ()
    for name in ("encode", "missing", "fit_on", *later):
        if keys.get(name) in (None, ()):
            keys.pop(name, None)
    return keys


def features_asked(table: NodeTable | EdgeTable) -> dict[str, Any]:
    """Returns the keys of a table that define its features, in the form that is stored with the fitted encoding."""
    encode = {name: changed(how) for name, how in table.encode}
    asked: dict[str, Any] = {"features": table.features, "encode": encode, "missing": table.missing}
    asked |= {"fit_on": table.fit_on} if isinstance(table, NodeTable) else {}
    return json.loads(json.dumps(asked))


def parse_tables(given: Mapping[str, Any] | argparse.Namespace) -> Tables:
    """Parses the mapping. Raises `DataError`, with the key, for an unknown, missing or invalid value."""
    plain = _plain(given)
    _check_keys("dataset", plain, ("nodes", "edges", "name", "encoding"), ("nodes", "edges"))
    nodes, edges = _mapping("nodes", plain["nodes"]), plain["edges"]
    node_tables: dict[NodeType, NodeTable]
    edge_tables: dict[EdgeType, EdgeTable]
    homogeneous = "path" in nodes and not isinstance(nodes["path"], Mapping)
    if homogeneous:
        node_tables, edge_tables = {NODE: _node_table("nodes", nodes)}, {EDGE: _edge_table("edges", edges)}
        if both := set(node_tables[NODE].attrs) & set(edge_tables[EDGE].attrs):
            raise DataError(f"dataset: attrs: {min(both)!r} is given for nodes and for edges; rename one.")
    else:
        if stray := [key for key, value in nodes.items() if not isinstance(value, Mapping)]:
            raise DataError(
                f"dataset: nodes: {stray[0]}: expected one table (with a path) or a table for each node type, "
                f"{{TYPE: {{path: ...}}}}; got {nodes[stray[0]]!r} and no path."
                + near(stray[0], _keys(NodeTable), cutoff=0.5)
            )
        node_tables = {_type_name(t, "nodes"): _node_table(f"nodes: {t}", value) for t, value in nodes.items()}
        edge_tables = {
            _edge_type(name, node_tables): _edge_table(f"edges: {name}", value)
            for name, value in _mapping("edges", edges).items()
        }
    name, encoding = (_column(key, plain.get(key)) for key in ("name", "encoding"))
    return Tables(nodes=node_tables, edges=edge_tables, homogeneous=homogeneous, name=name, encoding=encoding)


def is_text(keys: Sequence[str]) -> bool:
    """Tells whether the value at these keys of the mapping is text, or a list of texts. The name of a column may look like a
    number."""
    kinds = {each.name: str(each.type) for kind in (Tables, NodeTable, EdgeTable) for each in fields(kind)}
    return "encode" not in keys and ("attrs" in keys[:-1] or kinds.get(keys[-1], "").startswith(("str", "tuple[str")))


def plain_mapping(given: Any) -> Any:
    """Returns the mapping as JSON values, which other processes parse again."""
    return json.loads(json.dumps(_plain(given), default=str))


def _plain(value: Any) -> Any:
    """Converts namespaces, which the command line makes, to mappings."""
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    return {str(k): _plain(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def _keys(kind: type) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


def _node_table(where: str, given: Any) -> NodeTable:
    table = _mapping(where, given)
    _check_keys(where, table, _keys(NodeTable), ("path",))
    columns = {key: _column(f"{where}: {key}", table.get(key)) for key in ("id", "label", "split")}
    fit_on = parse_fit_on(f"{where}: fit_on", table.get("fit_on"), columns["split"] is not None)
    return NodeTable(path=_paths(where, table["path"]), **columns, **_many(where, table), fit_on=fit_on)


def _edge_table(where: str, given: Any) -> EdgeTable:
    table = _mapping(where, {"path": given} if isinstance(given, str) else given)
    _check_keys(where, table, _keys(EdgeTable), ("path",))
    columns = {
        key: _column(f"{where}: {key}", table.get(key))
        for key in ("source", "destination", "label", "split", "weight", "time")
    }
    made = EdgeTable(path=_paths(where, table["path"]), **columns, **_many(where, table))
    if made.label is not None and made.label in (*made.features, *made.attrs.values(), made.weight):
        raise DataError(
            f"dataset: {where}: label: {made.label!r} is also a feature, an attribute or the weight of the edges: the "
            "model would read what it is to predict. Remove it there."
        )
    if not made.is_matrix:
        _check_keys(where, table, _keys(EdgeTable), ("path", "source", "destination"))
    elif len(table) > 1:
        raise DataError(
            f"dataset: {where}: {made.path[0]} is a sparse matrix, which takes no other keys; "
            f"remove {', '.join(key for key in table if key != 'path')}."
        )
    return made


def _many(where: str, table: Mapping[str, Any]) -> dict[str, Any]:
    attrs = {
        _attr_name(where, name): _column(f"{where}: attrs: {name}", column, needed=True)
        for name, column in _mapping(f"{where}: attrs", table.get("attrs") or {}).items()
    }
    many = {"features": _texts(f"{where}: features", table.get("features") or []), "attrs": attrs}
    encode = parse_encode(f"{where}: encode", table.get("encode"))
    for key in ("encode", "missing"):
        if table.get(key) is not None and not (many["features"] if key == "encode" else encode):
            needs = "features, whose encoding it describes" if key == "encode" else "encode, which fills missing values"
            raise DataError(f"dataset: {where}: {key} needs {needs}.")
    return many | {"encode": encode, "missing": parse_missing(f"{where}: missing", table.get("missing"))}


def _mapping(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise DataError(f"dataset: {where}: expected a mapping, got {value!r}.")
    return value


def _check_keys(where: str, given: Mapping[str, Any], allowed: Iterable[str], needed: Iterable[str]) -> None:
    where = where if where == "dataset" else f"dataset: {where}"
    for key in given:
        if key not in allowed:
            raise DataError(
                f"{where}: unknown key {key!r}; allowed: {', '.join(allowed)}.{near(key, allowed, cutoff=0.5)}"
            )
    if missing := [key for key in needed if given.get(key) is None]:
        raise DataError(f"{where}: {', '.join(missing)} missing; allowed: {', '.join(allowed)}.")


def _column(where: str, value: Any, needed: bool = False) -> Any:
    if (value is None and not needed) or (isinstance(value, str) and value):
        return value
    raise DataError(f"dataset: {where}: expected a name, got {value!r}; put it in quotes if it is one.")


def _texts(where: str, value: Any) -> tuple[str, ...]:
    many = list(value) if isinstance(value, (list, tuple)) else [value]
    return tuple(_column(where, each, needed=True) for each in many)


def _paths(where: str, value: Any) -> tuple[str, ...]:
    many = value if isinstance(value, (list, tuple)) else [value]
    if not many:
        raise DataError(f"dataset: {where}: path: expected a file, a list of files, a glob or a folder; got [].")
    return _texts(f"{where}: path", [str(each) if hasattr(each, "__fspath__") else each for each in many])


def _attr_name(where: str, name: str) -> str:
    if name in _TAKEN or not name.isidentifier() or not name.isascii():
        why = "is a reserved name" if name in _TAKEN else "is not an identifier"
        raise DataError(f"dataset: {where}: attrs: {name!r} {why}; choose another name for the attribute.")
    return name


def _type_name(name: str, where: str) -> str:
    if not _TYPE_NAME.fullmatch(name):
        raise DataError(f"dataset: {where}: {name!r} cannot name a type; use letters, digits and single underscores.")
    return name


def _edge_type(name: str, nodes: Mapping[NodeType, NodeTable]) -> EdgeType:
    parts = name.split("__")
    if len(parts) != 3:
        raise DataError(f"dataset: edges: {name!r}: expected SRC__REL__DST, with the node types {', '.join(nodes)}.")
    src, rel, dst = (_type_name(part, "edges") for part in parts)
    for t in (src, dst):
        if t not in nodes:
            raise DataError(
                f"dataset: edges: {name}: unknown node type {t!r}; known: {', '.join(nodes)}.{near(t, nodes, cutoff=0.5)}"
            )
    return src, rel, dst
