"""Builds the arrays of a partition, of all its parts or of some, in a folder of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import NodeType
from glt_lightning.graph import (
    TABLE_ENCODING,
    ArrayEntry,
    ArrayWriter,
    EdgeLabelEntry,
    EdgeSplitEntry,
    EncodingEntry,
    Manifest,
    SplitEntry,
    attr_key,
    edge_split_key,
    edge_split_path,
    gid_path,
    node_path,
    node_times_path,
    seeds_hash,
    split_path,
)
from glt_lightning.partition.assign.base import Assigner
from glt_lightning.partition.build.degrees import Degrees
from glt_lightning.partition.build.edge_types import StoredEdgeType
from glt_lightning.partition.build.edges import EdgeJob, write_edges
from glt_lightning.partition.build.layout import NodeLayout, number_nodes
from glt_lightning.partition.build.normalize import transform_for
from glt_lightning.partition.build.rows import write_rows
from glt_lightning.partition.build.space import bytes_to_number, bytes_to_write, require_space, row_width
from glt_lightning.partition.build.stored_graph import StoredGraph
from glt_lightning.partition.build.topology import GraphTopology
from glt_lightning.partition.edge_splits.source import LinkSource
from glt_lightning.partition.hotness.rank import Hotness, hotness_arrays, rank_nodes
from glt_lightning.partition.sources.base import GraphSource, categories_of, edge_categories_of

_INT32_MAX = 2**31 - 1


_PIECE = 1 << 22  # ids in memory at once


@dataclass(frozen=True)
class Built:
    """The result of one run of the partitioner.

    Attributes:
        head: The manifest without the parts: it lists only arrays that belong to no part, and has no edge counts.
        arrays: The arrays of the parts, by path.
        numbering: Hash of the new numbers of all nodes. Parts fit together only if it is the same in all of them.
    """

    head: Manifest
    arrays: Mapping[str, ArrayEntry]
    numbering: str


class Builder:
    """One run of the partitioner.

    made: the options and the hash of the data, which the manifest records.  parts: the parts to write, ascending.
    """

    def __init__(
        self, graph: StoredGraph, folder: Path, assigner: Assigner, made: Mapping[str, Any], parts: Sequence[int]
    ) -> None:
        self._graph, self._folder, self._assigner, self._made, self._parts = graph, folder, assigner, made, parts
        self._options, self._progress = graph.options, graph.progress
        self._id_dtype = self._dtype(graph.total_nodes)
        self._edge_id_dtype = self._dtype(graph.most_edge_ids)
        self._arrays: dict[str, ArrayEntry] = {}

    def build(self) -> Built:
        self._graph.check(self._assigner)
        self._require_space_for_all()
        # A run of some parts checks the values that it writes: with all of them, each of many hosts would read the whole data.
        if len(self._parts) == self._options.num_parts:
            self._graph.check_values()
        degrees = self._graph.count()
        layouts, hotness = self._number(degrees)
        in_degrees = [degrees.in_degree(r) for r in self._stored_types]
        del degrees  # as long as all nodes, twice per edge type; only the in-degrees are needed from here on
        if len(self._parts) < self._options.num_parts:
            nodes = {t: sum(stop - start for start, stop in self._ranges(layouts[t])) for t in layouts}
            self._require_space(nodes, self._edges_of_parts(layouts, in_degrees))
        self._write_nodes(layouts)
        self._write_edges(layouts, in_degrees)
        # arrays of parts so far; those that follow belong to no part, and go into the head
        arrays, self._arrays = self._arrays, {}
        self._write_whole(layouts)
        head = manifest_head(
            self._graph,
            layouts,
            arrays=self._arrays,
            made_by=self._made,
            hotness=hotness,
            id_dtype=self._id_dtype,
            edge_id_dtype=self._edge_id_dtype,
        )
        return Built(head, arrays, _digest(layouts))

    @property
    def _stored_types(self) -> Sequence[StoredEdgeType]:
        return self._graph.stored_types

    def _dtype(self, count: int) -> np.dtype:
        return np.dtype(np.int64 if self._made["wide_ids"] or count > _INT32_MAX else np.int32)

    def _ranges(self, layout: NodeLayout) -> list[tuple[int, int]]:
        """Returns the range of new node numbers [start, stop) of each part to write."""
        return [(layout.bounds[p], layout.bounds[p + 1]) for p in self._parts]

    def _require_space_for_all(self) -> None:
        """Checks disk space before any work. The size of single parts is known only after nodes are numbered, so a run that
        writes some of the parts checks just the numbering here, and the parts themselves later."""
        graph, before = self._graph, bytes_to_number(self._graph, self._assigner)
        if len(self._parts) < self._options.num_parts:
            return require_space(self._folder, before, "numbering the nodes of this graph")
        edges = [graph.edges[r.source].num_edges * (2 if r.both else 1) for r in graph.stored_types]
        return self._require_space(graph.num_nodes, edges, before)

    def _require_space(self, nodes: Mapping[NodeType, int], edges: Sequence[int], before: int = 0) -> None:
        """Raises `PartitionError` unless the disk has room for ``nodes`` per type and ``edges`` per stored edge type.

        before: bytes that earlier steps need; their files are gone before the arrays are written.
        """
        needed = bytes_to_write(self._graph, nodes, edges, self._id_dtype, self._edge_id_dtype)
        require_space(self._folder, max(before, needed), "a partition of this graph")

    def _number(self, degrees: Degrees) -> tuple[dict[NodeType, NodeLayout], dict[str, Any]]:
        """Numbers all nodes. Returns the numbering, and the manifest's record of the hotness. Writes the rankings of remote rows
        here, since they are too large to be returned."""
        graph = self._graph
        with graph.topology(self._folder, degrees) as topology:
            parts = graph.assign(self._assigner, topology)
            train = graph.splits.get("train")
            hotness = self._assigner.hotness(topology) or rank_nodes(
                topology, parts, train, self._options, self._folder, self._progress
            )
            layouts = self._layouts(topology, parts, hotness)
            del parts
            for part in self._parts:
                for path, values, dtype in hotness_arrays(part, topology, layouts, hotness, self._id_dtype):
                    self._write(path, values, dtype)
        return layouts, {hotness.policy: hotness.made_by}

    def _layouts(
        self, topology: GraphTopology, parts: dict[NodeType, np.ndarray], hotness: Hotness
    ) -> dict[NodeType, NodeLayout]:
        owners = [*parts.values()]
        own = topology.split(hotness.of_owner(owners[0] if len(owners) == 1 else np.concatenate(owners)))
        degree = topology.degrees.occurrences(self._stored_types, self._graph.num_nodes)
        return {
            t: number_nodes(parts[t], own[t], degree[t], self._options.num_parts, self._id_dtype)
            for t in self._graph.num_nodes
        }

    def _write_nodes(self, layouts: Mapping[NodeType, NodeLayout]) -> None:
        attrs = {t: self._graph.source.node_attrs(t) for t in layouts}
        counts = {t: sum(stop - start for start, stop in self._ranges(layouts[t])) for t in layouts}
        total = sum(counts[t] * row_width(attrs[t]) for t in layouts)
        with self._progress.phase("writing nodes", total, "B") as done:
            for index, (node_type, layout) in enumerate(layouts.items()):
                for part, (start, stop) in zip(self._parts, self._ranges(layout), strict=True):
                    self._write(node_path(part, index, "n_id"), layout.user_ids[start:stop], self._id_dtype)
                for name, rows in attrs.pop(node_type).items():
                    stored = self._graph.storage.nodes[node_type][name]
                    mode = self._made["normalize"] if name == "x" else "none"
                    transform = transform_for(mode, rows, stored.require_finite)
                    self._arrays |= write_rows(
                        self._folder,
                        index,
                        name,
                        rows,
                        layout,
                        self._parts,
                        transform,
                        stored,
                        self._options.memory_bytes,
                        done,
                    )

    def _edges_of_parts(self, layouts: Mapping[NodeType, NodeLayout], in_degrees: Sequence[np.ndarray]) -> list[int]:
        """Counts the edges of each stored edge type in the parts to write, before parallel edges are merged."""
        return [
            sum(int(degree[layout.user_ids[start:stop]].sum()) for start, stop in self._ranges(layout))
            for degree, layout in zip(in_degrees, (layouts[r.edge_type[2]] for r in self._stored_types), strict=True)
        ]

    def _write_edges(self, layouts: Mapping[NodeType, NodeLayout], in_degrees: list[np.ndarray]) -> None:
        """Writes the edges of all types. Removes each array from ``in_degrees``, so that it is freed as soon as its edges are
        written."""
        total = sum(int(d.sum()) for d in in_degrees) + sum(self._edges_of_parts(layouts, in_degrees))
        with self._progress.phase("writing edges", total, "edges") as done:
            for index, stored_type in enumerate(self._stored_types):
                src, _, dst = stored_type.edge_type
                job = EdgeJob(
                    index=index,
                    stored_type=stored_type,
                    edges=self._graph.edges[stored_type.source],
                    attrs=self._graph.source.edge_attrs(stored_type.source),
                    in_degree=in_degrees.pop(0),
                    sources=layouts[src],
                    destinations=layouts[dst],
                    offset=self._graph.offsets[src],
                    id_dtype=self._id_dtype,
                    edge_id_dtype=self._edge_id_dtype,
                    parts=self._parts,
                    stored=self._graph.storage.edges[stored_type.source],
                    weights=self._graph.storage.weights[stored_type.source],
                    times=None
                    if self._graph.storage.time_attr is None
                    else self._graph.storage.time_attr.times(stored_type),
                )
                self._arrays |= write_edges(self._folder, job, self._options.memory_bytes, done)

    def _write_whole(self, layouts: Mapping[NodeType, NodeLayout]) -> None:
        """Writes the arrays that belong to no part: splits of nodes and of edges, gids of nodes, the encoding of tables."""
        for name, (node_type, ids) in self._graph.splits.items():
            gids = layouts[node_type].new[ids].astype(np.int64) + self._graph.offsets[node_type]
            self._write(split_path(name), gids, np.dtype(np.int64))
        for (index, name), split in self._graph.edge_splits.items():
            for array_name, values in split.arrays.items():
                path = edge_split_path(index, name, array_name)
                with ArrayWriter(self._folder, path, values.dtype, values.shape[1:]) as writer:
                    writer.write(values)
                self._arrays[path] = writer.close()
        for index, (node_type, layout) in enumerate(layouts.items()):
            with ArrayWriter(self._folder, gid_path(index), self._id_dtype) as writer:
                for begin in range(0, len(layout.new), _PIECE):
                    writer.write(
                        layout.new[begin : begin + _PIECE] + self._id_dtype.type(self._graph.offsets[node_type])
                    )
            self._arrays[gid_path(index)] = writer.close()
            self._write_node_times(index, node_type)
        encoding: bytes | None = getattr(self._graph.source, "table_encoding", None)
        if encoding is not None:
            self._write(TABLE_ENCODING, np.frombuffer(encoding, np.uint8), np.dtype(np.uint8))

    def _write_node_times(self, index: int, node_type: NodeType) -> None:
        time_attr = self._graph.storage.time_attr
        if time_attr is None or (times := time_attr.of_nodes(node_type)) is None:
            return
        with ArrayWriter(self._folder, node_times_path(index), np.dtype(np.int64)) as writer:
            for chunk in times:
                writer.write(chunk)
        self._arrays[node_times_path(index)] = writer.close()

    def _write(self, path: str, array: np.ndarray, dtype: np.dtype) -> None:
        with ArrayWriter(self._folder, path, dtype) as writer:
            writer.write(array)
        self._arrays[path] = writer.close()


def _digest(layouts: Mapping[NodeType, NodeLayout]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for layout in layouts.values():
        # little-endian on every host: parts that several hosts write are compared by this hash
        digest.update(layout.user_ids.astype("<i8" if layout.user_ids.itemsize == 8 else "<i4", copy=False).data)
    return digest.hexdigest()


# The part of a manifest that is the same for all parts.


def manifest_head(
    graph: StoredGraph,
    layouts: Mapping[NodeType, NodeLayout],
    *,
    arrays: Mapping[str, ArrayEntry],
    made_by: Mapping[str, Any],
    hotness: Mapping[str, Any],
    id_dtype: np.dtype,
    edge_id_dtype: np.dtype,
) -> Manifest:
    """Makes the manifest without the parts, which has no edge counts.

    arrays: the arrays that belong to no part.  made_by, hotness: records of the assignment and the ranking of nodes.
    """
    source = graph.source
    return Manifest(
        schema=graph.schema,
        num_parts=graph.options.num_parts,
        num_nodes=tuple(graph.num_nodes.values()),
        num_edges=(),
        bounds=tuple(layout.bounds for layout in layouts.values()),
        id_dtype=id_dtype.name,
        edge_id_dtype=edge_id_dtype.name,
        num_classes=None if source.num_classes is None else int(source.num_classes),
        target_type=source.target_type,
        splits={name: SplitEntry(t, len(ids), seeds_hash(ids)) for name, (t, ids) in graph.splits.items()},
        edge_splits={
            edge_split_key(index, name): EdgeSplitEntry(len(split), split.digest)
            for (index, name), split in graph.edge_splits.items()
        },
        arrays=arrays,
        made_by=made_by,
        hotness=hotness,
        encodings=_encodings(graph),
        num_categories=categories_of(source),
        num_edge_categories=_edge_categories(graph),
        edge_labels=_edge_labels(graph),
        class_names=_class_names(source),
        row_order=None if graph.storage.time_attr is None else graph.storage.time_attr.row_order(graph.stored_types),
        edge_columns=graph.edge_columns,
    )


def _encodings(graph: StoredGraph) -> dict[str, EncodingEntry]:
    storage = graph.storage
    attrs = [("nodes", t, storage.nodes[node_type]) for t, node_type in enumerate(graph.num_nodes)]
    attrs += [("edges", r, storage.edges[stored_type.source]) for r, stored_type in enumerate(graph.stored_types)]
    return {
        attr_key(kind, index, name): stored.entry
        for kind, index, each in attrs
        for name, stored in each.items()
        if stored.entry is not None
    }


def _edge_categories(graph: StoredGraph) -> dict[int, tuple[int, ...]]:
    given = edge_categories_of(graph.source)
    return {r: given[each.source] for r, each in enumerate(graph.stored_types) if each.source in given}


def _edge_labels(graph: StoredGraph) -> dict[int, EdgeLabelEntry]:
    labels = graph.source.labels if isinstance(graph.source, LinkSource) else {}
    return {
        graph.schema.edge_index(e): EdgeLabelEntry(
            each.num_classes, None if each.class_names is None else tuple(each.class_names)
        )
        for e, each in labels.items()
    }


def _class_names(source: GraphSource) -> tuple[str, ...] | None:
    """Returns the class names, if the source has the optional attribute ``class_names``."""
    names = getattr(source, "class_names", None)
    return None if names is None else tuple(str(name) for name in names)
