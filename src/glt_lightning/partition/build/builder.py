"""Builds the arrays of a partition in a folder of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from glt_lightning.graph import (
    ArrayEntry,
    EdgeLabelEntry,
    EdgeSplitEntry,
    EncodingEntry,
    Manifest,
    SplitEntry,
    attr_key,
    edge_split_key,
    edge_split_path,
    gid_path,
    node_times_path,
    seeds_hash,
    split_path,
)
from glt_lightning.partition.arrays import ArrayWriter
from glt_lightning.partition.assign.assigners import assign, require_countable
from glt_lightning.partition.assign.base import Assigner
from glt_lightning.partition.build.hotness import rank_nodes
from glt_lightning.partition.build.space import require_room
from glt_lightning.partition.build.steps import (
    Arrays,
    check_values,
    count_edges,
    number_nodes,
    plan_buckets,
    seal,
    sort_edges,
    statistics,
    write_nodes,
)
from glt_lightning.partition.build.stored_graph import StoredGraph
from glt_lightning.partition.build.topology import GraphTopology, remove_rows
from glt_lightning.partition.edge_splits.source import LinkSource
from glt_lightning.partition.sources.base import categories_of, edge_categories_of
from glt_lightning.partition.stored_tables import TABLE_ENCODING
from glt_lightning.partition.tasks.exchange import load_array, save_array
from glt_lightning.partition.tasks.job import EdgeSort
from glt_lightning.partition.tasks.run import Tasks

_PIECE = 1 << 22  # ids in memory at once


class Builder:
    """One run of the partitioner: makes the arrays of a folder, by tasks where many processes can work at once.

    made: the options and the hash of the data, which the manifest records.
    """

    def __init__(self, tasks: Tasks, assigner: Assigner, made: Mapping[str, Any]) -> None:
        self._tasks, self._assigner, self._made = tasks, assigner, made
        self._job, self._graph = tasks.job, tasks.job.graph

    def build(self) -> Manifest:
        graph = self._graph
        graph.check()
        require_countable(self._assigner, graph.total_nodes, graph.options)
        require_room(self._job, self._assigner)
        check_values(self._tasks)
        # Numbering is most of the memory and, unless parts are random, of the time: a run that starts again keeps it.
        numbered = self._tasks.once("number", {"memory_bytes": self._job.memory_bytes}, self._number)
        entries = self._rank(numbered["policy"])
        remove_rows(self._job.work)
        shutil.rmtree(self._job.work / "degrees", ignore_errors=True)
        arrays = write_nodes(self._tasks) | self._write_edges()
        entries |= seal(self._tasks, arrays)
        whole = self._write_whole()  # arrays that belong to no part
        head = manifest_head(
            graph,
            [self._job.bounds(t) for t in graph.num_nodes],
            arrays=whole,
            made_by=self._made,
            hotness={numbered["policy"]: numbered["made_by"]},
            id_dtype=self._job.id_dtype,
            edge_id_dtype=self._job.edge_id_dtype,
        )
        normalized = {
            t: statistics(self._tasks, name, "x")
            for t, name in enumerate(graph.num_nodes)
            if "x" in graph.source.node_attrs(name)
        }
        head = replace(head, normalization={t: each for t, each in normalized.items() if each is not None})
        return head.with_parts(entries)

    def _number(self) -> dict[str, Any]:
        """Numbers all nodes, saves the numbering and the hotness, and plans the buckets of edges."""
        graph, job, degrees = self._graph, self._job, count_edges(self._tasks)
        topology = GraphTopology(self._tasks, degrees)
        self._assign(topology)
        parts = {t: load_array(job.parts_file(t)) for t in graph.num_nodes}
        train = graph.splits.get("train")
        hotness = self._assigner.hotness(topology)
        hotness = hotness or rank_nodes(topology, parts, train, graph.options, graph.progress)
        save_array(job.hotness_file(), np.asarray(hotness.values, np.float32))
        with graph.progress.phase("numbering nodes", 3 * graph.total_nodes, "nodes") as done:
            for node_type in graph.num_nodes:
                number_nodes(self._tasks, node_type, done)
        for sort in self._sorts():
            plan_buckets(self._tasks, sort, degrees.in_degree(sort.stored_type))
        return {"policy": hotness.policy, "made_by": dict(hotness.made_by)}

    def _rank(self, policy: str) -> dict[str, ArrayEntry]:
        """Writes what each part knows of its own nodes and of its remote nodes."""
        calls = [{"part": part, "policy": policy} for part in range(self._graph.options.num_parts)]
        with self._graph.progress.phase("listing nodes", len(calls), "parts") as done:
            found = self._tasks.run("rank_part", calls, done, [1] * len(calls))
        return {path: ArrayEntry.from_json(entry) for each in found for path, entry in each.items()}

    def _assign(self, topology: GraphTopology) -> None:
        """Assigns nodes to parts. A run that starts again keeps that, unless a user's class did it, which may hold more."""

        def save() -> None:
            for node_type, parts in assign(self._assigner, self._graph, topology).items():
                save_array(self._job.parts_file(node_type), parts)

        if self._assigner.reads is None:
            save()
        else:
            self._tasks.once("assign", {}, save)

    def _sorts(self) -> list[EdgeSort]:
        return [EdgeSort(f"edges{index}", index, own) for index, own in enumerate(self._graph.stored_types)]

    def _write_edges(self) -> Arrays:
        arrays: Arrays = {}
        total = 2 * sum(self._job.buckets(sort).num_edges for sort in self._sorts())
        with self._graph.progress.phase("writing edges", total, "edges") as done:
            for sort in self._sorts():
                arrays |= sort_edges(self._tasks, sort, done)
        return arrays

    def _write_whole(self) -> dict[str, ArrayEntry]:
        """Writes the arrays that belong to no part: splits of nodes and of edges, gids of nodes, the encoding of tables."""
        graph, job = self._graph, self._job
        arrays: dict[str, ArrayEntry] = {}
        for name, (node_type, ids) in graph.splits.items():
            gids = job.layout(node_type).new[ids].astype(np.int64) + graph.offsets[node_type]
            arrays |= self._write(split_path(name), gids, np.dtype(np.int64))
        for (index, name), split in graph.edge_splits.items():
            for array_name, values in split.arrays.items():
                rows = values[:1], values[1:]  # of the two rows of edges in a file each lies whole
                arrays |= self._stream(edge_split_path(index, name, array_name), rows, values.dtype, values.shape[1:])
        for index, node_type in enumerate(graph.num_nodes):
            new, offset = job.layout(node_type).new, job.id_dtype.type(graph.offsets[node_type])
            gids_of = (new[begin : begin + _PIECE] + offset for begin in range(0, len(new), _PIECE))
            arrays |= self._stream(gid_path(index), gids_of, job.id_dtype)
            times = None if graph.storage.time_attr is None else graph.storage.time_attr.of_nodes(node_type)
            if times is not None:
                arrays |= self._stream(node_times_path(index), times, np.dtype(np.int64))
        encoding: bytes | None = getattr(graph.source, "table_encoding", None)
        if encoding is not None:
            arrays |= self._write(TABLE_ENCODING, np.frombuffer(encoding, np.uint8), np.dtype(np.uint8))
        return arrays

    def _write(self, path: str, array: np.ndarray, dtype: np.dtype) -> dict[str, ArrayEntry]:
        return self._stream(path, [array], dtype, array.shape[1:])

    def _stream(
        self, path: str, chunks: Iterable[np.ndarray], dtype: np.dtype, row_shape: tuple[int, ...] = ()
    ) -> dict[str, ArrayEntry]:
        with ArrayWriter(self._job.out, path, dtype, row_shape) as writer:
            for chunk in chunks:
                writer.write(chunk)
        return {path: writer.close()}


# The part of a manifest that is the same for all parts.


def manifest_head(
    graph: StoredGraph,
    bounds: Iterable[tuple[int, ...]],
    *,
    arrays: Mapping[str, ArrayEntry],
    made_by: Mapping[str, Any],
    hotness: Mapping[str, Any],
    id_dtype: np.dtype,
    edge_id_dtype: np.dtype,
) -> Manifest:
    """Makes the manifest without the parts, which has no edge counts.

    bounds: of the parts, by node type.  arrays: the arrays that belong to no part.  made_by, hotness: records of the assignment
    and the ranking of nodes.
    """
    source, names = graph.source, getattr(graph.source, "class_names", None)
    codes, time_attr = edge_categories_of(source), graph.storage.time_attr
    return Manifest(
        schema=graph.schema,
        num_parts=graph.options.num_parts,
        num_nodes=tuple(graph.num_nodes.values()),
        num_edges=(),
        bounds=tuple(bounds),
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
        num_edge_categories={r: codes[own.source] for r, own in enumerate(graph.stored_types) if own.source in codes},
        edge_labels=_edge_labels(graph),
        class_names=None if names is None else tuple(str(name) for name in names),
        row_order=None if time_attr is None else time_attr.row_order(graph.stored_types),
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


def _edge_labels(graph: StoredGraph) -> dict[int, EdgeLabelEntry]:
    labels = graph.source.labels if isinstance(graph.source, LinkSource) else {}
    return {
        graph.schema.edge_index(e): EdgeLabelEntry(
            each.num_classes, None if each.class_names is None else tuple(each.class_names)
        )
        for e, each in labels.items()
    }
