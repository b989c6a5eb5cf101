"""Builds the arrays and the manifest of one partition in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.data.arrays import ArrayWriter
from glt_lightning.data.manifest import ArrayEntry, Manifest, SplitEntry, edge_path, hot_path, node_path, split_path
from glt_lightning.options import PartitionOptions
from glt_lightning.partition.assign import Assigner, GraphToPartition, checked
from glt_lightning.partition.checks import check_graph
from glt_lightning.partition.degrees import Degrees, count_degrees
from glt_lightning.partition.edges import EdgeJob, write_edges
from glt_lightning.partition.hotness import Hotness, rank_nodes
from glt_lightning.partition.layout import NodeLayout, number_nodes
from glt_lightning.partition.normalize import transform_for
from glt_lightning.partition.progress import Progress
from glt_lightning.partition.relations import stored_relations
from glt_lightning.partition.rows import write_rows
from glt_lightning.partition.sources.base import GraphSource
from glt_lightning.partition.space import require_space, rows_bytes
from glt_lightning.partition.topology import Topology
from glt_lightning.types import NodeType

_INT32_MAX = 2**31 - 1
ResolvedSplits = Mapping[str, tuple[NodeType, np.ndarray]]


class Builder:
    """One run of the partitioner; ``made`` is the record that goes into the manifest."""

    def __init__(
        self,
        source: GraphSource,
        folder: Path,
        options: PartitionOptions,
        assigner: Assigner,
        made: Mapping[str, Any],
        progress: Progress,
    ) -> None:
        self._source, self._folder, self._options, self._made, self._progress = source, folder, options, made, progress
        self._assigner = assigner
        self._schema, self._relations = stored_relations(source.schema, made["undirected"])
        self._edges = {edge_type: source.edges(edge_type) for edge_type in source.schema.edge_types}
        self._num_nodes = {t: int(source.num_nodes[t]) for t in self._schema.node_types}
        most = max((self._edges[r.source].num_edges * (2 if r.both else 1) for r in self._relations), default=0)
        self._id_dtype = self._dtype(sum(self._num_nodes.values()))
        self._edge_id_dtype = self._dtype(most)
        self._arrays: dict[str, ArrayEntry] = {}
        # First gid of each node type.
        self._offsets = dict(zip(self._num_nodes, np.cumsum([0, *self._num_nodes.values()]).tolist(), strict=False))

    def build(self, splits: ResolvedSplits) -> Manifest:
        check_graph(self._source, self._edges, self._made["normalize"])
        require_space(self._folder, self._least_bytes())
        degrees = self._count()
        with self._topology(degrees) as topology:
            parts = self._assign(topology, splits)
            hotness = self._assigner.hotness(topology) or rank_nodes(
                topology, parts, splits.get("train"), self._options, self._folder, self._progress
            )
            layouts = self._number(topology, parts, hotness)
            self._write_hotness(topology, layouts, hotness)
        self._write_nodes(layouts)
        self._write_edges(layouts, degrees)
        for name, (node_type, ids) in splits.items():
            gids = layouts[node_type].new[ids].astype(np.int64) + self._offsets[node_type]
            self._write(split_path(name), gids, np.dtype(np.int64))
        manifest = self._manifest(layouts, splits, hotness)
        manifest.save(self._folder)
        return manifest

    def _dtype(self, count: int) -> np.dtype:
        return np.dtype(np.int64 if self._made["wide_ids"] or count > _INT32_MAX else np.int32)

    def _least_bytes(self) -> Iterator[int]:
        """Sizes of the arrays whose length is known; merging may leave any number of the edges it runs over."""
        yield from (n * self._id_dtype.itemsize for n in self._num_nodes.values())
        yield from (rows_bytes(self._source.node_attrs(t)) for t in self._num_nodes)
        per_edge = self._id_dtype.itemsize + self._edge_id_dtype.itemsize
        for r in self._relations:
            if not r.both:
                yield self._edges[r.source].num_edges * per_edge + rows_bytes(self._source.edge_attrs(r.source))

    def _count(self) -> Degrees:
        total = sum(e.num_edges for e in self._edges.values())
        with self._progress.phase("reading edges", total, "edges") as done:
            return count_degrees(self._edges, self._num_nodes, done)

    def _topology(self, degrees: Degrees) -> Topology:
        return Topology(
            self._folder,
            self._edges,
            self._relations,
            self._num_nodes,
            degrees,
            self._options.memory_bytes,
            self._progress,
        )

    def _assign(self, topology: Topology, splits: ResolvedSplits) -> dict[NodeType, np.ndarray]:
        """Node type -> int32 [N], the part of each node."""
        if self._options.num_parts == 1:
            return {t: np.zeros(n, np.int32) for t, n in self._num_nodes.items()}
        graph = GraphToPartition(self._source, topology, splits, self._options, self._progress)
        return checked(self._assigner.assign(graph), graph, self._options.algorithm_name)

    def _number(
        self, topology: Topology, parts: Mapping[NodeType, np.ndarray], hotness: Hotness
    ) -> dict[NodeType, NodeLayout]:
        own = topology.split(hotness.of_owner(np.concatenate([*parts.values()])))
        degree = topology.degrees.occurrences(self._relations, self._num_nodes)
        return {
            t: number_nodes(parts[t], own[t], degree[t], self._options.num_parts, self._id_dtype)
            for t in self._num_nodes
        }

    def _write_hotness(self, topology: Topology, layouts: Mapping[NodeType, NodeLayout], hotness: Hotness) -> None:
        """For each part: how hot its rows are, and which rows of other parts it wants, hottest first."""
        for part in range(self._options.num_parts):
            by_type = topology.split(hotness.of_part(part))
            for index, (node_type, layout) in enumerate(layouts.items()):
                values = by_type[node_type][layout.user_ids]
                begin, end = layout.bounds[part : part + 2]
                self._write(node_path(part, index, "hotness"), values[begin:end], np.dtype(np.float32))
                if self._options.num_parts == 1:
                    continue
                values[begin:end] = 0
                wanted = np.flatnonzero(values > 0)
                wanted = wanted[np.argsort(-values[wanted], kind="stable")]
                gids = wanted + self._offsets[node_type]
                self._write(hot_path(part, hotness.policy, index, "gids"), gids, self._id_dtype)
                self._write(hot_path(part, hotness.policy, index, "hotness"), values[wanted], np.dtype(np.float32))

    def _write_nodes(self, layouts: Mapping[NodeType, NodeLayout]) -> None:
        attrs = {t: self._source.node_attrs(t) for t in self._num_nodes}
        total = sum(map(rows_bytes, attrs.values()))
        with self._progress.phase("writing nodes", total, "B") as done:
            for index, (node_type, layout) in enumerate(layouts.items()):
                for part, (begin, end) in enumerate(pairwise(layout.bounds)):
                    self._write(node_path(part, index, "n_id"), layout.user_ids[begin:end], self._id_dtype)
                for name, rows in attrs.pop(node_type).items():
                    transform = transform_for(self._made["normalize"], rows) if name == "x" else None
                    self._arrays |= write_rows(
                        self._folder, index, name, rows, layout, transform, self._options.memory_bytes, done
                    )

    def _write_edges(self, layouts: Mapping[NodeType, NodeLayout], degrees: Degrees) -> None:
        total = sum(2 * degrees.num_edges(relation) for relation in self._relations)
        with self._progress.phase("writing edges", total, "edges") as done:
            for index, relation in enumerate(self._relations):
                src, _, dst = relation.edge_type
                job = EdgeJob(
                    index=index,
                    relation=relation,
                    edges=self._edges[relation.source],
                    attrs=self._source.edge_attrs(relation.source),
                    in_degree=degrees.in_degree(relation),
                    sources=layouts[src],
                    destinations=layouts[dst],
                    offset=self._offsets[src],
                    id_dtype=self._id_dtype,
                    edge_id_dtype=self._edge_id_dtype,
                )
                self._arrays |= write_edges(self._folder, job, self._options.memory_bytes, done)

    def _write(self, path: str, array: np.ndarray, dtype: np.dtype) -> None:
        with ArrayWriter(self._folder, path, dtype) as writer:
            writer.write(array)
        self._arrays[path] = writer.close()

    def _manifest(self, layouts: Mapping[NodeType, NodeLayout], splits: ResolvedSplits, hotness: Hotness) -> Manifest:
        parts = range(self._options.num_parts)
        return Manifest(
            schema=self._schema,
            num_parts=self._options.num_parts,
            num_nodes=tuple(self._num_nodes.values()),
            num_edges=tuple(
                sum(self._arrays[edge_path(p, r, "indices")].shape[0] for p in parts)
                for r in range(len(self._relations))
            ),
            bounds=tuple(layout.bounds for layout in layouts.values()),
            id_dtype=self._id_dtype.name,
            edge_id_dtype=self._edge_id_dtype.name,
            num_classes=None if self._source.num_classes is None else int(self._source.num_classes),
            target_type=self._source.target_type,
            splits={name: SplitEntry(t, len(ids)) for name, (t, ids) in splits.items()},
            arrays=self._arrays,
            made_by=self._made,
            hotness={hotness.policy: hotness.made_by},
        )
