"""Rows that are added to a partitioned graph, changed or deleted, and their checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from glt_lightning.base import DataError, EdgeType, NodeType, edge_type_str
from glt_lightning.graph import IN_TRAINING, ArrayEntry, Manifest, among, attr_key, edge_path, node_path
from glt_lightning.kernels import BFLOAT16, ENCODINGS
from glt_lightning.partition import links
from glt_lightning.partition.build.normalize import Normalization
from glt_lightning.partition.build.rows import StoredAs

Attributes = Mapping[str, np.ndarray]
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class NewNodes:
    """New nodes of one type. They get the user ids that follow those of the graph.

    Attributes:
        count: Number of them.
        attrs: Attributes [count, ...] by name, as the graph has them. Labels ``y`` may be left out.

    Example:
        >>> NewNodes(2, {"x": np.zeros((2, 3), np.float32)}).count
        2
    """

    count: int
    attrs: Attributes = field(default_factory=dict)


@dataclass(frozen=True)
class NewEdges:
    """New edges of one type of the user's edges. They get the edge ids that follow those of the graph.

    Attributes:
        edge_index: Integers [2, E], row 0 the sources: user ids of old and of new nodes.
        attrs: Attributes [E, ...] by name, as the graph has them.

    Example:
        >>> NewEdges(np.array([[0, 1], [10, 10]])).edge_index.shape  # two edges into the first new node of ten old ones
        (2, 2)
    """

    edge_index: np.ndarray
    attrs: Attributes = field(default_factory=dict)


@dataclass(frozen=True)
class ChangedNodes:
    """Old nodes of one type with other values of some attributes.

    Attributes:
        ids: Integers [n], user ids, each once.
        attrs: The attributes [n, ...] that changed, by name.

    Example:
        >>> ChangedNodes(np.array([7]), {"x": np.zeros((1, 3), np.float32)}).ids
        array([7])
    """

    ids: np.ndarray
    attrs: Attributes


@dataclass(frozen=True)
class DeletedEdges:
    """Edges of one type of the user's edges that are deleted.

    Attributes:
        ids: int64 [n], edge ids, ascending; `HELD_OUT` of one that no row has: an edge to predict.
        ends: int64 [2, n], user ids; where both directions are stored, in either.
    """

    HELD_OUT = -1

    ids: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, ids: np.ndarray, ends: np.ndarray) -> DeletedEdges:
        """Sorts edges by their ids, and keeps each once, of those that are held out each pair."""
        held_out = np.unique(ends[:, ids == cls.HELD_OUT].astype(np.int64), axis=1)
        ids, first = np.unique(ids.astype(np.int64), return_index=True)
        first = first[ids != cls.HELD_OUT]
        ends = np.concatenate([held_out, ends[:, first]], axis=1)
        alone = np.full(held_out.shape[1], cls.HELD_OUT, np.int64)
        return cls(np.concatenate([alone, ids[ids != cls.HELD_OUT]]), np.ascontiguousarray(ends, np.int64))

    def joined(self, others: DeletedEdges) -> DeletedEdges:
        """Returns these edges and others."""
        return self.of(np.append(self.ids, others.ids), np.concatenate([self.ends, others.ends], axis=1))


@dataclass(frozen=True)
class Deleted:
    """Rows that are deleted, as `deletions.find_deleted` finds them: with a node all its edges.

    Attributes:
        nodes: Node type -> int64 [n], user ids, ascending.
        edges: The edges.
    """

    nodes: Mapping[NodeType, np.ndarray] = field(default_factory=dict)
    edges: Mapping[EdgeType, DeletedEdges] = field(default_factory=dict)

    def joined(self, later: Deleted) -> Deleted:
        """Returns these rows and later ones."""
        nodes, edges = dict(self.nodes), dict(self.edges)
        for t, ids in later.nodes.items():
            nodes[t] = np.union1d(nodes[t], ids) if t in nodes else ids
        for e, some in later.edges.items():
            edges[e] = edges[e].joined(some) if e in edges else some
        return Deleted(nodes, edges)


@dataclass(frozen=True)
class Additions:
    """Rows that are added to a graph, by type.

    Attributes:
        nodes: New nodes.
        edges: New edges, of types that the user's data has: reverse edges of ``undirected`` are added by themselves.
        changed: Old nodes whose attributes changed; several of one type for attributes of different nodes.
        deleted: Rows of the graph, or of these, that are deleted.

    Example:
        >>> new = NewNodes(1, {"x": np.ones((1, 3), np.float32)})
        >>> Additions(nodes={"node": new}, edges={("node", "to", "node"): NewEdges(np.array([[0], [10]]))}).nodes["node"].count
        1
    """

    nodes: Mapping[NodeType, NewNodes] = field(default_factory=dict)
    edges: Mapping[EdgeType, NewEdges] = field(default_factory=dict)
    changed: Mapping[NodeType, ChangedNodes | Sequence[ChangedNodes]] = field(default_factory=dict)
    deleted: Deleted = field(default_factory=Deleted)

    def changes(self) -> Iterator[tuple[NodeType, ChangedNodes]]:
        """Yields the changes, with the type of their nodes."""
        for t, of_type in self.changed.items():
            yield from ((t, each) for each in ([of_type] if isinstance(of_type, ChangedNodes) else of_type))

    def num_nodes(self, manifest: Manifest) -> dict[NodeType, int]:
        """Returns the number of nodes of each type, with the new ones. Raises as `num_new`."""
        counts = zip(manifest.schema.node_types, manifest.num_nodes, self.num_new(manifest), strict=True)
        return {t: old + new for t, old, new in counts}

    def num_new(self, manifest: Manifest) -> tuple[int, ...]:
        """Returns the number of new nodes of each type. Raises `DataError` for a type that the graph does not have."""
        known = manifest.schema.node_types
        for node_type in (*self.nodes, *self.changed):
            if node_type not in known:
                raise DataError(f"nodes: the graph has no node type {node_type!r}; it has: {', '.join(known)}.")
        return tuple(self.nodes[t].count if t in self.nodes else 0 for t in known)


@dataclass(frozen=True)
class StoredAttributes:
    """The attributes of one type of nodes or edges, as the partition stores them. kind: nodes or edges.  index: the type's."""

    manifest: Manifest
    kind: str
    index: int

    @property
    def what(self) -> str:
        schema = self.manifest.schema
        if self.kind == "nodes":
            return f"node type {schema.node_types[self.index]!r}"
        return f"edge type {edge_type_str(schema.edge_types[self.index])}"

    @property
    def names(self) -> tuple[str, ...]:
        of = self.manifest.node_attrs if self.kind == "nodes" else self.manifest.edge_attrs
        return of(self.index)

    def entry(self, name: str) -> ArrayEntry:
        path = node_path(0, self.index, name) if self.kind == "nodes" else edge_path(0, self.index, name)
        return self.manifest.arrays[path]

    def stored_as(self, name: str) -> StoredAs:
        entry = self.entry(name)
        encoding = self.manifest.encodings.get(attr_key(self.kind, self.index, name))
        is_float = np.dtype(entry.dtype).kind == "f" or encoding is not None
        allow = "nonfinite_features" if is_float and name != "y" else None
        return StoredAs(f"{name} of {self.what}", np.dtype(entry.dtype), tuple(entry.shape[1:]), encoding, allow)

    def encoded(self, given: Attributes, count: int, ids: np.ndarray) -> dict[str, np.ndarray]:
        """Returns all attributes of new rows, as stored. ids: int [count], for errors.

        Raises `DataError` for an attribute that is missing, unknown, or of another form than the graph's."""
        self.require_known(given)
        return {
            name: self.encode(name, given[name], count, ids) if name in given else self._left_out(name, count)
            for name in self.names
        }

    def completed(self, given: Attributes, count: int) -> dict[str, np.ndarray]:
        """Returns the attributes of new rows as given, with those that may be left out. Raises as `encoded`."""
        ids = np.arange(count)
        self.require_known(given)
        for name, values in given.items():
            self.encode(name, values, count, ids)
        return {name: np.asarray(given[name]) if name in given else self._left_out(name, count) for name in self.names}

    def empty(self) -> dict[str, np.ndarray]:
        """Returns all attributes of no rows, as stored."""
        entries = {name: self.entry(name) for name in self.names}
        return {name: np.empty((0, *entry.shape[1:]), entry.dtype) for name, entry in entries.items()}

    def require_known(self, given: Attributes) -> None:
        if unknown := [name for name in given if name not in self.names]:
            raise DataError(
                f"{unknown[0]} of {self.what}: the graph has no such attribute; it has: {', '.join(self.names) or 'none'}."
            )

    def encode(self, name: str, values: np.ndarray, count: int, ids: np.ndarray) -> np.ndarray:
        """Returns rows of one attribute as stored: [count, ...]; normalised as the partition was, by its statistics."""
        stored, entry = self.stored_as(name), self.entry(name)
        shape = tuple(entry.shape[1:])
        if stored.entry is not None and (head := ENCODINGS[stored.entry.stored].head):
            shape = (shape[0] - head,)
        values = np.asarray(values)
        if values.shape != (count, *shape):
            raise DataError(f"{stored.what}: expected {[count, *shape]}, got {list(values.shape)}.")
        if stored.entry is None:
            if values.dtype != stored.dtype and not np.can_cast(values.dtype, stored.dtype, "same_kind"):
                raise DataError(f"{stored.what}: expected {stored.dtype}, got {values.dtype}. Convert it.")
            values = values.astype(stored.dtype, copy=False)
        elif values.dtype != BFLOAT16 and values.dtype.kind != "f":
            raise DataError(f"{stored.what}: expected floats, got {values.dtype}. Convert it.")
        elif stored.entry.given == "bfloat16" and values.dtype != BFLOAT16:
            raise DataError(f"{stored.what}: expected bfloat16, got {values.dtype}. Convert it.")
        self._require_in_range(name, values, ids)
        normalized = self.manifest.normalization.get(self.index) if self.kind == "nodes" and name == "x" else None
        if normalized is not None:
            values = Normalization(**normalized).apply(np.ascontiguousarray(values))
        return np.ascontiguousarray(stored.encode(values, ids))

    def _require_in_range(self, name: str, values: np.ndarray, ids: np.ndarray) -> None:
        """Raises `DataError` for a code or a class that the graph does not have: the model has no row for it."""
        manifest = self.manifest
        node_type = manifest.schema.node_types[self.index] if self.kind == "nodes" else ""
        most: np.ndarray | None = None
        if name == "x_codes" and node_type in manifest.num_categories:
            most = np.asarray(manifest.num_categories[node_type])
        elif name == "y" and node_type == manifest.target_type and manifest.num_classes and values.ndim == 1:
            most = np.array(manifest.num_classes) if values.dtype.kind in "iu" else None
        if most is None:
            return
        if len(bad := np.argwhere((values >= most) | ((values < 0) if name == "x_codes" else False))):
            at = tuple(bad[0].tolist())
            limit = int(most if most.ndim == 0 else most[at[1]])
            raise DataError(
                f"{name} of {self.what}: row {ids[at[0]]} has {values[at]}; the graph has 0 to {limit - 1}."
            )

    def _left_out(self, name: str, count: int) -> np.ndarray:
        """Returns the values of an attribute that may be left out: of labels "none", of the mask of training edges True."""
        entry = self.entry(name)
        dtype, shape = np.dtype(entry.dtype), (count, *entry.shape[1:])
        if self.kind == "nodes" and name == "y" and dtype.kind in "if" and self.stored_as(name).entry is None:
            return np.full(shape, -1 if dtype.kind == "i" else np.nan, dtype)
        if self.kind == "edges" and name == IN_TRAINING:
            return np.ones(shape, dtype)
        raise DataError(f"{name} of {self.what}: new rows need it, as all {self.kind} of this type have it.")


def checked_changes(
    manifest: Manifest, node_type: NodeType, changed: ChangedNodes, count: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns the ids of nodes that change, and the rows of their attributes as stored. count: number of nodes of the type.

    Raises `DataError` for ids that are no nodes, or occur twice, and for attributes that do not fit or order the graph."""
    what, ids = f"changed nodes of type {node_type!r}", np.asarray(changed.ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or len(np.unique(ids)) < len(ids):
        raise DataError(f"{what}: expected integers [n], each id once.")
    if len(bad := np.flatnonzero((ids < 0) | (ids >= count))):
        raise DataError(f"{what}: {ids[bad[0]]} is no node of the graph, which has 0 to {count - 1}.")
    order, stored = manifest.row_order, StoredAttributes(manifest, "nodes", manifest.schema.node_index(node_type))
    if order is not None and order.of == "nodes" and order.time_attr in changed.attrs:
        raise DataError(f"{what}: {order.time_attr} orders the rows of the graph and cannot change.")
    stored.require_known(changed.attrs)
    return ids, {name: stored.encode(name, values, len(ids), ids) for name, values in changed.attrs.items()}


def require_alive(
    edge_type: EdgeType, index: np.ndarray, deleted: Mapping[NodeType, np.ndarray], gone: np.ndarray = _NONE
) -> None:
    """Raises `DataError` for a new edge of a deleted node. index: [2, E].  deleted: user ids by node type.  gone: positions of
    edges that are deleted themselves."""
    for row, t in zip(index, (edge_type[0], edge_type[2]), strict=True):
        ascending = np.sort(deleted.get(t, _NONE), kind="stable")
        if len(bad := np.setdiff1d(np.flatnonzero(among(row, ascending)), gone)):
            raise DataError(
                f"edges of {edge_type_str(edge_type)}: edge {bad[0]} leads to node {row[bad[0]]} of type {t!r}, which is deleted."
            )


def checked_edges(
    manifest: Manifest, edge_type: EdgeType, edges: NewEdges, num_nodes: Mapping[NodeType, int]
) -> np.ndarray:
    """Returns int64 [2, E]. num_nodes: of each type, with the new ones.

    Raises `DataError` for ids that are no nodes, and a type that the user's edges do not have."""
    if edge_type not in manifest.given_edge_types:
        known = ", ".join(map(edge_type_str, manifest.given_edge_types))
        raise DataError(f"edges: the graph has no edge type {edge_type_str(edge_type)}; it has: {known}.")
    index, types = np.asarray(edges.edge_index), (edge_type[0], edge_type[2])
    return links.checked_edges(
        f"edges of {edge_type_str(edge_type)}",
        index if index.size else index.astype(np.int64),
        [num_nodes[t] for t in types],
        known=[f"nodes of type {t!r}, with the new ones" for t in types],
    )
