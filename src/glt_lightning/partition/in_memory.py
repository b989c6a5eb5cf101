"""Makes a partition in the memory of this host, without a folder: one part, with its nodes in the user's order."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import NodeType, PartitionOptions, Progress
from glt_lightning.graph import (
    ArrayEntry,
    LocalPartition,
    Manifest,
    SharedArrays,
    edge_path,
    gid_path,
    node_path,
    node_times_path,
)
from glt_lightning.partition.build.builder import manifest_head
from glt_lightning.partition.build.degrees import Degrees, count_degrees
from glt_lightning.partition.build.edge_types import StoredEdgeType
from glt_lightning.partition.build.edges import EdgeBuckets, EdgeJob, deal, sort, stored_arrays
from glt_lightning.partition.build.rows import NodeLayout
from glt_lightning.partition.build.stored_graph import StoredGraph
from glt_lightning.partition.sources.base import GraphSource
from glt_lightning.partition.tasks.exchange import RunWriter
from glt_lightning.partition.tasks.job import narrowest

_log = logging.getLogger(__name__)

_ANY_VALUE = ["nonfinite_features", "nonfinite_labels"]
_ALL_MEMORY = 1 << 40  # bytes: buckets are as large as the processor's cache wants them

_Shapes = dict[str, tuple[np.dtype, tuple[int, ...]]]


def partition_in_memory(
    source: GraphSource,
    *,
    weights: Sequence[str] = (),
    time_attr: str | None = None,
    made_by: Mapping[str, Any] | None = None,
) -> LocalPartition:
    """Loads the graph of a source as a partition, from which loaders draw the same neighbours as from a folder. Its arrays are
    copies, whose size is logged; they are freed with the last object that views them.

    weights, time_attr: as in `PartitionOptions`.  made_by: further entries of the manifest.

    Raises `DataError` for edges of nodes that do not exist and for invalid weights and times; `OptionError` for names of
    attributes that the graph does not have; MemoryError if the host has too little memory.

    Example:
        >>> partition = partition_in_memory(open_source("graph.npz", "data"))
        >>> partition.manifest.num_nodes, partition.manifest.num_edges, partition.parts
        ((10,), (20,), (0,))
    """
    options = PartitionOptions(num_parts=1, weights=list(weights), time_attr=time_attr, allow=_ANY_VALUE)
    made = {"undirected": False, "normalize": "none"}
    graph = StoredGraph(source, options, {}, made, Progress(False))
    return _InMemory(graph, {**made, "in_memory": True, **(made_by or {})}).partition()


class _InMemory:
    """Copies the arrays of a graph into memory."""

    def __init__(self, graph: StoredGraph, made_by: Mapping[str, Any]) -> None:
        self._graph, self._storage = graph, graph.storage
        self._id_dtype = narrowest(graph.total_nodes)
        self._edge_id_dtype = narrowest(graph.most_edge_ids)
        counts = {e: count_degrees(graph, e, (0, edges.num_edges)) for e, edges in graph.edges.items()}
        self._degrees = Degrees(*({e: found[end] for e, found in counts.items()} for end in (0, 1)))
        self._arrays = SharedArrays.create(shapes := self._shapes(), self._manifest(shapes, made_by).to_json())

    def partition(self) -> LocalPartition:
        try:
            layouts = {name: self._write_nodes(t, name) for t, name in enumerate(self._graph.num_nodes)}
            for r, edge_type in enumerate(self._graph.stored_types):
                self._write_edges(r, edge_type, layouts)
            self._arrays.finish()
        except BaseException:
            self._arrays.close()
            raise
        _log.info("graph in memory: %s bytes for topology and copies of attributes", f"{self._arrays.nbytes:,}")
        return LocalPartition.in_memory(self._arrays)

    def _shapes(self) -> _Shapes:
        graph, storage, int64 = self._graph, self._storage, np.dtype(np.int64)
        shapes: _Shapes = {}
        for t, (node_type, count) in enumerate(graph.num_nodes.items()):
            shapes |= {node_path(0, t, "n_id"): (self._id_dtype, (count,)), gid_path(t): (self._id_dtype, (count,))}
            for name, stored in storage.nodes[node_type].items():
                shapes[node_path(0, t, name)] = (stored.dtype, (count, *stored.row_shape))
            if storage.time_attr is not None and storage.time_attr.of_nodes(node_type) is not None:
                shapes[node_times_path(t)] = (int64, (count,))
        for r, own in enumerate(graph.stored_types):
            count, rows = graph.edges[own.source].num_edges, graph.num_nodes[own.edge_type[2]]
            for name, (dtype, shape) in stored_arrays(graph, own, self._id_dtype, self._edge_id_dtype).items():
                shapes[edge_path(0, r, name)] = dtype, (rows + 1 if name == "indptr" else count, *shape)
        return shapes

    def _manifest(self, shapes: _Shapes, made_by: Mapping[str, Any]) -> Manifest:
        head = manifest_head(
            self._graph,
            [(0, count) for count in self._graph.num_nodes.values()],
            arrays={},
            made_by=made_by,
            hotness={},
            id_dtype=self._id_dtype,
            edge_id_dtype=self._edge_id_dtype,
        )
        return head.with_parts({path: _entry(dtype, shape) for path, (dtype, shape) in shapes.items()})

    def _write_nodes(self, index: int, node_type: str) -> NodeLayout:
        arrays, count = self._arrays.arrays, self._graph.num_nodes[node_type]
        ids = arrays[node_path(0, index, "n_id")]
        ids[:] = np.arange(count, dtype=self._id_dtype)
        np.add(ids, self._id_dtype.type(self._graph.offsets[node_type]), out=arrays[gid_path(index)])
        for name, rows in self._graph.source.node_attrs(node_type).items():
            stored = self._storage.nodes[node_type][name]
            arrays[node_path(0, index, name)][:] = stored.encode(rows[0:count], ids)
        if (times := arrays.get(node_times_path(index))) is not None:
            assert self._storage.time_attr is not None
            chunks = self._storage.time_attr.of_nodes(node_type)
            times[:] = np.concatenate([times[:0], *(chunks or ())])
        return NodeLayout((0, count), ids, ids)

    def _write_edges(self, index: int, edge_type: StoredEdgeType, layouts: Mapping[NodeType, NodeLayout]) -> None:
        job = EdgeJob(self._graph, edge_type, layouts.__getitem__, self._id_dtype, self._edge_id_dtype)
        buckets = EdgeBuckets.of(job.destinations, self._degrees.in_degree(edge_type), job.record_bytes, _ALL_MEMORY)
        memory = os.memfd_create("glt-edges", os.MFD_CLOEXEC)  # freed by the kernel however this process ends
        try:
            with RunWriter(Path(f"/proc/self/fd/{memory}"), job.record_bytes, len(buckets)) as writer:
                deal(job, buckets, (0, job.edges.num_edges), writer, _ALL_MEMORY)
            arrays = self._arrays.arrays
            sort(
                job,
                buckets,
                0,
                len(buckets),
                [writer.runs],
                lambda _, name, *__: _Rows(arrays[edge_path(0, index, name)]),
            )
        finally:
            os.close(memory)


class _Rows:
    """Writes ranges of rows of an array in memory."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def write(self, first: int, rows: np.ndarray) -> None:
        self._array[first : first + len(rows)] = rows

    def close(self) -> None:
        pass


def _entry(dtype: np.dtype, shape: tuple[int, ...]) -> ArrayEntry:
    return ArrayEntry(np.dtype(dtype).str, shape, int(np.dtype(dtype).itemsize * np.prod(shape)), crc32=0)
