"""A user's graph and its stored form: the input of both stages, assigning nodes and writing parts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from glt_lightning.base import DataError, EdgeType, NodeType, PartitionOptions, Progress, counted, edge_type_str
from glt_lightning.graph import EdgeColumns
from glt_lightning.kernels import BFLOAT16
from glt_lightning.partition.build.edge_types import StoredEdgeType, stored_edge_types
from glt_lightning.partition.build.normalize import is_float, numbered_chunks
from glt_lightning.partition.build.rows import Storage, StoredAs
from glt_lightning.partition.edge_splits.read import num_columns, user_columns
from glt_lightning.partition.edge_splits.source import StoredSplits, stored_splits
from glt_lightning.partition.sources.base import EdgeList, GraphSource, Rows, counted_by, file_of
from glt_lightning.partition.splits import check_labels, check_overlap, check_seed_labels

_log = logging.getLogger(__name__)

_FEW_NODES = 4  # average per part below which a mistaken num_parts is likelier than a tiny test graph on purpose
ResolvedSplits = Mapping[str, tuple[NodeType, np.ndarray]]


class StoredGraph:
    """The user's graph with its stored edge types and options.

    Attributes are small; arrays as long as the graph are returned by methods, so that the caller can free them.

    Attributes:
        schema, stored_types: The stored types, and the user's types they come from.
        edges: The user's edges by the user's type.
        num_nodes: Nodes of each type, in the order of the types.
        offsets: First gid of each node type.
        splits: Name -> (node type, int64 user ids).
    """

    def __init__(
        self,
        source: GraphSource,
        options: PartitionOptions,
        splits: ResolvedSplits,
        made: Mapping[str, Any],
        progress: Progress,
    ) -> None:
        self.source, self.options, self.splits, self.progress = source, options, splits, progress
        self.schema, self.stored_types = stored_edge_types(source.schema, made["undirected"])
        self.edges = {edge_type: source.edges(edge_type) for edge_type in source.schema.edge_types}
        self.num_nodes = {t: int(source.num_nodes[t]) for t in self.schema.node_types}
        self.offsets = dict(zip(self.num_nodes, np.cumsum([0, *self.num_nodes.values()]).tolist(), strict=False))
        self.undirected, self.normalize = made["undirected"], made["normalize"]

    @property
    def total_nodes(self) -> int:
        return sum(self.num_nodes.values())

    def num_edges(self, own: StoredEdgeType) -> int:
        """Number of edges of a stored type, before parallel ones are merged."""
        return self.edges[own.source].num_edges * (2 if own.both else 1)

    @property
    def most_edge_ids(self) -> int:
        """The largest number of edge ids of a stored edge type."""
        return max((num_columns(edges) for edges in self.edges.values()), default=0)

    @property
    def edge_columns(self) -> tuple[EdgeColumns, ...]:
        """For each stored edge type the user's edges that it is made from."""
        index = {r.edge_type: k for k, r in enumerate(self.stored_types)}
        return tuple(
            EdgeColumns(num_columns(self.edges[r.source]), index[r.source] if r.flip or r.both else None)
            for r in self.stored_types
        )

    @cached_property
    def storage(self) -> Storage:
        """The stored form of the attributes. Raises `OptionError` if options name attributes that they do not fit."""
        return Storage(self.source, self.options)

    def check(self) -> None:
        """Raises `DataError` for attributes that cannot be stored."""
        self._consider_parts()
        self._check_attrs()
        check_overlap(self.splits, self.options.allow, self.source)
        check_seed_labels(self.source, self.splits, self.options.allow)
        _ = self.storage

    def _check_attrs(self) -> None:
        """Checks names, lengths and dtypes of all attributes, and labels. Ids of edges are checked when edges are first read,
        values of attributes when they are written."""
        source, file = self.source, file_of(self.source)
        for t, count in self.num_nodes.items():
            check_labels(source, t, self.options.allow)
            attrs = source.node_attrs(t)
            for name, rows in attrs.items():
                clause = "" if rows.shape[:1] == (count,) else counted_by(source, t)
                _check_attr(f"{file}{name} of node type {t!r}", name, rows, count, "node", clause)
            if self.normalize != "none" and "x" in attrs and (not is_float(x := attrs["x"]) or len(x.shape) != 2):
                raise DataError(
                    f"normalize: {self.normalize} needs x as floats [N, D], but x of node type {t!r} is {x.dtype} "
                    f"{list(x.shape)}. Convert x to floats, or set data.normalize: none."
                )
        for e, edges in self.edges.items():
            for name, rows in source.edge_attrs(e).items():
                _check_attr(f"{file}{name} of edge type {edge_type_str(e)}", name, rows, edges.num_edges, "edge")

    def _consider_parts(self) -> None:
        parts, nodes = self.options.num_parts, self.total_nodes
        if parts > 1 and nodes < _FEW_NODES * parts:
            empty = f", so at least {counted(parts - nodes, 'part')} will be empty" if parts > nodes else ""
            _log.warning(
                "partition.num_parts: %s for a graph of %s%s. Each part is a folder of files, and most neighbours of a node "
                "are remote. One part per host, or per process that samples, is enough.",
                counted(parts, "part"),
                counted(nodes, "node"),
                empty,
            )

    @property
    def edge_splits(self) -> StoredSplits:
        """The edges to predict, by the stored edge types."""
        return stored_splits(self.source, self.schema)


# Checks of a user's attributes before anything is written.


_RESERVED = {"n_id", "hotness", "indptr", "indices", "edge_ids"}


def _check_attr(what: str, name: str, rows: Rows, count: int, of: str, clause: str = "") -> None:
    if name in _RESERVED or not name.isidentifier() or not name.isascii():
        raise DataError(f"{what}: this attribute name is reserved or not usable as a file name. Rename the attribute.")
    if not rows.shape or rows.shape[0] != count:
        given = counted(rows.shape[0] if rows.shape else 0, "row")
        raise DataError(f"{what}: expected one row per {of}, which makes {count}{clause}, got {given}.")
    if rows.dtype.kind not in "biuf" and rows.dtype != BFLOAT16:
        raise DataError(
            f"{what}: attributes are numbers or booleans, but the dtype is {rows.dtype}. Convert or remove it."
        )


# Checks of their values before nodes are assigned to parts. That reads all values once more than writing does. It takes seconds,
# while the assignment, after which writing would find bad values, may take hours.

# Called with rows and their user ids; raises `DataError` for a bad one.
Check = Callable[[np.ndarray, np.ndarray], object]


@dataclass(frozen=True)
class Checked:
    """An attribute whose values may be refused: as times, as weights, or since NaN is not allowed."""

    rows: Rows
    edges: EdgeList | None
    checks: tuple[Check, ...]

    def check(self, begin: int, end: int) -> None:
        """Raises `DataError` for the first bad value of the rows [begin, end)."""
        for ids, chunk in numbered_chunks(self.rows, begin, end):
            user_ids = ids if self.edges is None else user_columns(self.edges, ids)
            for check in self.checks:
                check(chunk, user_ids)


def checked_attrs(graph: StoredGraph) -> dict[str, Checked]:
    """Returns the attributes whose values are checked, by a name of their own."""
    storage, schema, found = graph.storage, graph.source.schema, dict[str, Checked]()

    def add(own: NodeType | EdgeType, name: str, rows: Rows, stored: StoredAs, edges: EdgeList | None = None) -> None:
        times = None if storage.time_attr is None else storage.time_attr.own_times(own, name)
        weights = storage.weights[own].get(name) if isinstance(own, tuple) else None
        checks: list[Check] = [] if times is None else [times.converted]
        checks += [] if weights is None else [weights.require_weights]
        # of features that are normalised, each row is looked at when it enters the statistics
        if stored.allow is not None and (edges is not None or name != "x" or graph.normalize == "none"):
            checks.append(stored.require_allowed)
        if checks:
            found[f"{own}.{name}"] = Checked(rows, edges, tuple(checks))

    for edge_type in schema.edge_types:
        for name, rows in graph.source.edge_attrs(edge_type).items():
            add(edge_type, name, rows, storage.edges[edge_type][name], graph.edges[edge_type])
    for node_type in schema.node_types:
        for name, rows in graph.source.node_attrs(node_type).items():
            add(node_type, name, rows, storage.nodes[node_type][name])
    return found
