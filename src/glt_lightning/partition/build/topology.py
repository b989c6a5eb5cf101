"""The edges of a graph as rows of neighbours, by the user's ids; assigners and hotness read them any number of times.

Rows lie in working files, which are read in order, chunk by chunk, and removed once the partition is written. Nodes of all
types share one numbering: the number of a node is its user id plus the number of nodes of all earlier types.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from glt_lightning.base import EdgeType, NodeType
from glt_lightning.graph import usable_cores
from glt_lightning.kernels import NeighborRows, spread
from glt_lightning.partition.arrays import seal_array
from glt_lightning.partition.build.degrees import Degrees
from glt_lightning.partition.build.edge_types import StoredEdgeType, in_both_directions
from glt_lightning.partition.build.steps import plan_buckets, sort_edges
from glt_lightning.partition.sources.files import NpyFile
from glt_lightning.partition.tasks.job import EdgeSort
from glt_lightning.partition.tasks.run import Tasks

_ROWS = "topology"  # begins the name of each working folder
_MOST_EDGES = 1 << 22  # per chunk: 32 MiB of 64-bit neighbours
_CHECKED_EDGES = 1 << 26  # by a task


class Topology(ABC):
    """The nodes of all types under one numbering, and the rows that a sampler reads.

    Attributes:
        num_nodes: Nodes of each type, in the order of the types.
        total: Nodes of all types.
        stored_types: The stored edge types.
        degrees: Of all nodes.
        threads: Number of threads for passes over all edges that one process makes.
    """

    threads = 1

    def __init__(
        self, num_nodes: Mapping[NodeType, int], stored_types: Sequence[StoredEdgeType], degrees: Degrees
    ) -> None:
        self.num_nodes, self.stored_types, self.degrees = dict(num_nodes), list(stored_types), degrees
        self.total = sum(num_nodes.values())
        self._offsets = dict(zip(num_nodes, np.cumsum([0, *num_nodes.values()]).tolist(), strict=False))

    @abstractmethod
    def sampled(self, stored_type: StoredEdgeType) -> Iterator[NeighborRows]:
        """Yields the rows that a sampler reads: destinations with their sources."""

    def offset(self, node_type: NodeType) -> int:
        """Number of the first node of a type."""
        return int(self._offsets[node_type])

    def split(self, values: np.ndarray) -> dict[NodeType, np.ndarray]:
        """Views of [total, ...] by node type."""
        return {t: values[self._offsets[t] : self._offsets[t] + n] for t, n in self.num_nodes.items()}


class GraphTopology(Topology):
    """Rows of the stored edge types, and of all of them in both directions, sorted when they are first read.

    Attribute ``folder``: of the working files.
    """

    def __init__(self, tasks: Tasks, degrees: Degrees) -> None:
        graph = tasks.job.graph
        super().__init__(graph.num_nodes, graph.stored_types, degrees)
        self._tasks, self.folder, self._edges = tasks, tasks.job.work, graph.edges
        self._files: dict[tuple[EdgeType, bool, bool], RowFiles] = {}
        self.threads = min(tasks.job.width, usable_cores())
        self._chunk = max(1, min(_MOST_EDGES, graph.options.memory_bytes // 128))

    def sampled(self, stored_type: StoredEdgeType) -> Iterator[NeighborRows]:
        files = self._rows(stored_type)
        yield from merged([files], self._offsets[stored_type.edge_type[2]], self.total, self._chunk, 0, len(files))

    def sampled_arrays(self, stored_type: StoredEdgeType) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows of `sampled` as arrays, memory maps: indptr int64 [N + 1], neighbours int32 or int64 [E]."""
        files = self._rows(stored_type)
        return files.indptr, files.mapped()

    def neighbors(self) -> Iterator[NeighborRows]:
        """Yields each node's neighbours in all edge types and both directions. Every edge is in the rows of both its ends."""
        for node_type, offset in self._offsets.items():
            if not self.num_nodes[node_type]:
                continue
            files = [self._rows(stored_type) for stored_type in self._touching(node_type)]
            yield from merged(files, offset, self.total, self._chunk, 0, self.num_nodes[node_type])

    def count_neighbors(self) -> int:
        """Returns the number of entries in all rows of `neighbors`."""
        types = [t for t, count in self.num_nodes.items() if count]
        return sum(int(self._rows(own).indptr[-1]) for t in types for own in self._touching(t))

    @property
    def num_neighbors(self) -> int:
        """Upper bound on the number of entries in all rows of `neighbors`."""
        return 2 * sum(edges.num_edges for edges in self._edges.values())

    def _touching(self, node_type: NodeType) -> Iterator[StoredEdgeType]:
        """The user's edge types at a node type, each directed so that its rows are nodes of that type."""
        return (each for each in in_both_directions(self._edges) if each.edge_type[2] == node_type)

    def _rows(self, stored_type: StoredEdgeType) -> RowFiles:
        key = (stored_type.source, stored_type.flip, stored_type.both)
        if key not in self._files:
            self._files[key] = self._same_rows(stored_type) or self._build(stored_type, self._name(stored_type))
        return self._files[key]

    def _same_rows(self, stored_type: StoredEdgeType) -> RowFiles | None:
        """Files that already hold these rows, if the edge type is symmetric: each edge has its reverse, and none occurs twice.

        If degrees allow it, one direction is sorted first: that takes half the time and half the space of both.
        """
        source, files = stored_type.source, self._files
        one_way = files.get((source, False, False)) or files.get((source, True, False))
        if not stored_type.both:
            both = files.get((source, False, True))
            return both if both is one_way else None
        if not np.array_equal(self.degrees.into[source], self.degrees.out[source]):
            return None
        straight, name = StoredEdgeType(source, source), f"{self._name(StoredEdgeType(source, source))}.check"

        def check() -> bool:
            return self._is_symmetric(one_way or self._build(straight, name), self._offsets[source[0]])

        # In the ledger, and with a name of their own: rows that were sorted for this check alone are removed.
        if not self._tasks.once("is_symmetric", {"edge_type": source}, check):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            return None
        files[(source, False, False)] = one_way or self._build(straight, name)
        return files[(source, False, False)]

    def _is_symmetric(self, files: RowFiles, offset: int) -> bool:
        """Tells whether each edge has its reverse and none occurs twice."""
        ends = [end for _, end in self._tasks.job.pieces(int(files.indptr[-1]), at_most=_CHECKED_EDGES)]
        bounds = [0, *np.searchsorted(files.indptr, ends[:-1]).tolist(), len(files)]
        calls = [
            {"rows": files.folder.name, "offset": offset, "begin": begin, "end": end} for begin, end in pairwise(bounds)
        ]
        with self._tasks.job.graph.progress.phase("comparing directions", len(files), "rows") as done:
            found = self._tasks.run("compare_directions", calls, done, [*np.diff(bounds).tolist()])
        return None not in found and sum(found) % 2**64 == 0

    def _build(self, stored_type: StoredEdgeType, name: str) -> RowFiles:
        sort, tasks = EdgeSort(name, None, stored_type), self._tasks
        plan_buckets(tasks, sort, self.degrees.in_degree(stored_type))
        with tasks.job.graph.progress.phase("sorting edges", 2 * self.degrees.num_edges(stored_type), "edges") as done:
            arrays = sort_edges(tasks, sort, done)
        folder = tasks.job.work / sort.name
        for path, (dtype, shape) in arrays.items():
            seal_array(folder, path, dtype, shape)
        return RowFiles(folder)

    def _name(self, stored_type: StoredEdgeType) -> str:
        index = [*self._edges].index(stored_type.source)
        return f"{_ROWS}{index}{'.flip' * stored_type.flip}{'.both' * stored_type.both}"


def remove_rows(folder: Path) -> None:
    """Removes the files of the topologies in a folder, when an interrupted run will not need them again."""
    for rows in folder.glob(f"{_ROWS}*"):
        shutil.rmtree(rows)


# Files of rows of neighbours, which tasks have sorted: read chunk by chunk, and checked.


_CACHED_EDGES = 1 << 15  # per chunk that stays in a core's cache while it is read several times


class RowFiles:
    """Rows of neighbours: indptr mapped, neighbours read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.indptr = NpyFile(folder / "indptr.npy").mapped()
        self._file = NpyFile(folder / "indices.npy")

    @property
    def dtype(self) -> np.dtype:
        return self._file.dtype

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def read(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns (indptr from 0, neighbours) of the rows [begin, end)."""
        indptr = self.indptr[begin : end + 1]
        return indptr - indptr[0], self._file[int(indptr[0]) : int(indptr[-1])]

    def mapped(self) -> np.ndarray:
        return self._file.mapped()


def merged(
    files: Sequence[RowFiles], offset: int, total: int, most_edges: int, begin: int, last: int
) -> Iterator[NeighborRows]:
    """Yields chunks of the rows [begin, last); each row concatenates its neighbours in all the files.

    offset: number of the first node of the files, which have ``last`` rows if they are several.  total: number of all nodes.
    """
    ends = files[0].indptr if len(files) == 1 else sum((f.indptr for f in files), start=np.zeros(last + 1, np.int64))
    while begin < last:
        end = min(last, max(begin + 1, int(np.searchsorted(ends, ends[begin] + most_edges, side="right")) - 1))
        indptr, neighbors = _joined([f.read(begin, end) for f in files], end - begin)
        yield NeighborRows(offset + begin, indptr, neighbors, total)
        begin = end


def _joined(pieces: Sequence[tuple[np.ndarray, np.ndarray]], num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Concatenates the corresponding rows of all pieces. Returns (indptr, neighbours)."""
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return np.zeros(num_rows + 1, np.int64), np.empty(0, np.int32)
    indptr = sum((p[0] for p in pieces), start=np.zeros(num_rows + 1, np.int64))
    out = np.empty(int(indptr[-1]), max((p[1].dtype for p in pieces), key=lambda d: d.itemsize))
    first = indptr[:-1].copy()
    for own, neighbors in pieces:
        sizes = np.diff(own)
        out[spread(first, sizes)] = neighbors
        first += sizes
    return indptr, out


def asymmetry(files: RowFiles, offset: int, total: int, begin: int, end: int) -> int | None:
    """Returns the checksum of the edges of some rows minus that of their reverses: for all rows together it is 0 modulo 2^64 if
    each edge has its reverse. None: an edge occurs twice.

    offset: number of the first node of the files.  total: number of all nodes.
    """
    difference = 0
    for each in merged([files], 0, total, _CACHED_EDGES, begin, end):
        row = np.repeat(np.arange(each.first, each.first + len(each)), np.diff(each.indptr))
        src, dst = each.neighbors.astype(np.uint64) - np.uint64(offset), row.astype(np.uint64)
        if ((src[1:] == src[:-1]) & (dst[1:] == dst[:-1])).any():  # sources are sorted within a row
            return None
        difference += _checksum(src, dst) - _checksum(dst, src)
    return difference


def _checksum(src: np.ndarray, dst: np.ndarray) -> int:
    """A 64-bit sum over the edges (uint64 [E] each) that does not depend on their order; sums of chunks add up.

    The constants are those of splitmix64 (Steele, Lea, Flood 2014).
    """
    z = src * np.uint64(0x9E3779B97F4A7C15) + dst
    z ^= z >> np.uint64(32)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(29)
    return int(z.sum(dtype=np.uint64))
