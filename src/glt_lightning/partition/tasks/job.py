"""What the tasks of one partition work on: the graph, the new numbers of its nodes, and the folders of their files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import NodeType, PartitionOptions, Progress
from glt_lightning.graph import edge_path
from glt_lightning.partition.build.degrees import Degrees
from glt_lightning.partition.build.edge_types import StoredEdgeType
from glt_lightning.partition.build.edges import EdgeBuckets, EdgeJob
from glt_lightning.partition.build.rows import NodeLayout
from glt_lightning.partition.build.stored_graph import StoredGraph
from glt_lightning.partition.sources.files import NpyFile
from glt_lightning.partition.tasks.exchange import cut, load_array, save_array, save_text
from glt_lightning.partition.tasks.shared_source import SharedSource, describe

JOB = "job.json"  # file of the folder of a run
_SMALLEST = 1 << 20  # edges: a smaller piece takes less time than to start a process
# Options that decide what tasks write.
_OPTIONS = ("num_parts", "storage", "weights", "time_attr", "allow")


@dataclass(frozen=True)
class EdgeSort:
    """A sort of the edges of one type. Tasks get it as JSON.

    Attributes:
        name: Name of the working folder.
        index: Index of the stored type in the partition; None: rows for assigners, by user ids, without edge ids and attributes.
        stored_type: The type, and the user's type it comes from.
    """

    name: str
    index: int | None
    stored_type: StoredEdgeType

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> EdgeSort:
        of = raw["stored_type"]
        own = StoredEdgeType(tuple(of["edge_type"]), tuple(of["source"]), of["flip"], of["both"])
        return cls(raw["name"], raw["index"], own)


class Job:
    """One partition that is being made.

    Attributes:
        graph: The user's graph and its stored form.
        folder: Folder of the whole run, on the file system of the partition.
        out, work: The partition that will be renamed, and the files between tasks.
        memory_bytes: Working memory of one task.
        width: Number of tasks that run at a time.
        shared: Whether other processes read the user's data, too.
    """

    def __init__(
        self, graph: StoredGraph, folder: Path, memory_bytes: int, wide_ids: bool, width: int = 1, shared: bool = False
    ) -> None:
        self.graph, self.folder, self.memory_bytes, self._wide = graph, folder, memory_bytes, wide_ids
        self.width, self.shared = width, shared
        self.out, self.work = folder / "partition", folder / "work"
        self.id_dtype, self.edge_id_dtype = self._dtype(graph.total_nodes), self._dtype(graph.most_edge_ids)
        self._layouts: dict[NodeType, NodeLayout] = {}
        self._last_edges: tuple[EdgeSort, EdgeJob] | None = None
        self._last_array: tuple[tuple[NodeType, str], np.ndarray] | None = None

    def _dtype(self, count: int) -> np.dtype:
        return np.dtype(np.int64) if self._wide else narrowest(count)

    def save(self) -> str:
        """Writes what other processes open the job by, and returns a nonce for them. Copies what is not in files."""
        graph, nonce = self.graph, os.urandom(8).hex()
        options = {name: getattr(graph.options, name) for name in _OPTIONS}
        text = {
            "nonce": nonce,
            "source": describe(graph.source, self.work / "source"),
            "options": options | {"memory_bytes": max(1 << 20, self.memory_bytes)},
            "made": {"undirected": graph.undirected, "normalize": graph.normalize},
            "memory_bytes": self.memory_bytes,
            "wide_ids": self._wide,
        }
        save_text(self.folder / JOB, json.dumps(text))
        return nonce

    @classmethod
    def opened(cls, raw: Mapping[str, Any], folder: Path) -> Job:
        """Opens a job in another process. raw: as `save` wrote it."""
        source, options = SharedSource.opened(raw["source"]), PartitionOptions(**raw["options"])
        graph = StoredGraph(source, options, {}, raw["made"], Progress(False))
        return cls(graph, folder, raw["memory_bytes"], raw["wide_ids"])

    @property
    def tasks(self) -> Mapping[str, Callable[..., Any]]:
        from glt_lightning.partition.tasks.table import TASKS  # which knows the jobs

        return TASKS

    def pieces(self, count: int, *, at_most: int, at_least: int = _SMALLEST) -> list[tuple[int, int]]:
        """Splits ``count`` things into ranges for tasks: some for each process, within these sizes."""
        return cut(count, max(1, min(at_most, max(at_least, -(-count // (2 * self.width))))))

    # The new numbers of the nodes.

    def parts_file(self, node_type: NodeType) -> Path:
        """File of the part of each node of a type, int32 [N] by user id."""
        return self.work / "parts" / f"{self.graph.schema.node_index(node_type)}.npy"

    def hotness_file(self) -> Path:
        """File of expected accesses, float32 [parts, or 1 for all of them; nodes of all types]."""
        return self.work / "hotness.npy"

    def degree_file(self, index: int, end: str, piece: Sequence[int] | None = None) -> Path:
        """File of degrees in the user's edge type of an index, by all edges or by those of a piece. end: ``out`` or ``into``."""
        of = "" if piece is None else f".{piece[0]}-{piece[1]}"
        return self.work / "degrees" / f"{index}{of}.{end}.npy"

    def degrees(self) -> Degrees:
        """The degrees, when edges have been counted; maps of files."""
        types = self.graph.source.schema.edge_types
        return Degrees(
            *({e: load_array(self.degree_file(i, end)) for i, e in enumerate(types)} for end in ("out", "into"))
        )

    def numbers_folder(self, node_type: NodeType) -> Path:
        return self.work / "numbers" / str(self.graph.schema.node_index(node_type))

    def bounds(self, node_type: NodeType) -> tuple[int, ...]:
        return tuple(load_array(self.numbers_folder(node_type) / "bounds.npy").tolist())

    def layout(self, node_type: NodeType) -> NodeLayout:
        if node_type not in self._layouts:
            new, user_ids = (load_array(self.numbers_folder(node_type) / f"{name}.npy") for name in ("new", "user_ids"))
            self._layouts[node_type] = NodeLayout(self.bounds(node_type), user_ids, new)
        return self._layouts[node_type]

    # What a task needs of one edge type, or of one node attribute.

    def edge_job(self, sort: EdgeSort) -> EdgeJob:
        if self._last_edges is None or self._last_edges[0] != sort:
            self._last_edges = sort, self._make_edge_job(sort)
        return self._last_edges[1]

    def _make_edge_job(self, sort: EdgeSort) -> EdgeJob:
        if sort.index is not None:
            return EdgeJob(self.graph, sort.stored_type, self.layout, self.id_dtype, self.edge_id_dtype)
        nodes, dtype = self.graph.num_nodes, narrowest(self.graph.total_nodes)
        # ids of edges are not stored, so they may overflow: records of over 2^31 edges stay half as wide
        return EdgeJob(
            self.graph,
            sort.stored_type,
            lambda node_type: as_they_are(nodes[node_type], dtype),
            dtype,
            np.dtype(np.int32),
            structure_only=True,
        )

    def forget_edges(self) -> None:
        """Frees what `edge_job` keeps between tasks, such as times and numbers of all nodes."""
        self._last_edges = None

    def sort_folder(self, sort: EdgeSort) -> Path:
        """Folder of the records between the tasks of a sort."""
        return self.work / sort.name / "dealt"

    def rows_folder(self, node_type: NodeType, name: str) -> Path:
        """Folder of an attribute's rows between the tasks that deal them out and those that place them."""
        return self.work / f"rows.{self.graph.schema.node_index(node_type)}.{name}"

    def save_buckets(self, sort: EdgeSort, buckets: EdgeBuckets) -> None:
        for name in ("starts", "first"):
            save_array(self.work / sort.name / f"{name}.npy", getattr(buckets, name))

    def buckets(self, sort: EdgeSort) -> EdgeBuckets:
        folder, job = self.work / sort.name, self.edge_job(sort)
        return EdgeBuckets(
            job.destinations.bounds, *(np.array(load_array(folder / f"{n}.npy")) for n in ("starts", "first"))
        )

    def edge_array(self, sort: EdgeSort, part: int, name: str) -> tuple[Path, str]:
        """Folder and path below it of an array of sorted edges."""
        if sort.index is None:
            return self.work / sort.name, f"{name}.npy"
        return self.out, edge_path(part, sort.index, name)

    def array(self, node_type: NodeType, name: str) -> np.ndarray:
        """An attribute as one array: mapped, or read whole and kept until another one is asked for."""
        rows = self.graph.source.node_attrs(node_type)[name]
        if isinstance(rows, NpyFile):
            return rows.mapped()
        if self._last_array is None or self._last_array[0] != (node_type, name):
            self._last_array = (node_type, name), rows[: len(rows)]
        return self._last_array[1]


def narrowest(count: int) -> np.dtype:
    return np.dtype(np.int32 if count < 2**31 else np.int64)


def as_they_are(count: int, dtype: np.dtype) -> NodeLayout:
    """The identity numbering."""
    numbers = np.arange(count, dtype=dtype)
    return NodeLayout((0, count), numbers, numbers)
