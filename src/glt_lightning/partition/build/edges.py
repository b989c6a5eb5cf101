"""Edges as CSC per part, in bounded memory.

An external bucket sort in tasks. `deal` distributes a piece of the user's edges over buckets, each a range of destination
rows whose edges fit the CPU cache; `sort` takes consecutive buckets, sorts each, and writes its rows where they belong in
the arrays of its part. Rows are sorted by a total order, so neither pieces nor the order of tasks change a byte.

Where parallel edges are merged, it is known only afterwards how many are left of each bucket: there `sort` writes to a
working folder, with gaps, and `place` closes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np

from glt_lightning.base import DataError, NodeType
from glt_lightning.graph import TIMES, cum_name
from glt_lightning.kernels import CHANGED, Buckets, RowBuffers, build_rows, row_bytes
from glt_lightning.partition.build.edge_types import StoredEdgeType
from glt_lightning.partition.build.rows import NodeLayout
from glt_lightning.partition.build.times import TimeAttr, by_time
from glt_lightning.partition.edge_splits.read import user_columns
from glt_lightning.partition.sources.base import read_edges
from glt_lightning.partition.tasks.exchange import Runs, RunWriter, read_buckets

if TYPE_CHECKING:
    from glt_lightning.partition.build.stored_graph import StoredGraph

# Edges of a bucket: records, keys and results of 2^18 edges take 7 MB, which stays in the last-level cache.
_BUCKET_EDGES = 1 << 18
# Distributing edges writes to this many places at a time; larger graphs get larger buckets rather than more.
_MAX_BUCKETS = 4096
_ROWS = 1 << 20  # whose edges are looked up at once
# Edges read from the source at once: ids and records of 2^21 edges take 56 MiB, 80 MiB with 64-bit ids.
_MAX_CHUNK = 1 << 21


class EdgeJob:
    """A stored edge type with everything that is needed to write it.

    layout: returns the numbering of a node type.  structure_only: leave out edge ids and attributes.

    Attributes:
        edges, attrs: The user's edges and their attributes.
        sources, destinations: Numbering of the two node types.
        offset: First gid of the source type.
        stored: Dtype and encoding in which each attribute is stored.
        weights: Attributes whose prefix sums are stored, too.
        arrays: Dtype and shape of a row of each array that is written.
        times: The times that rows are ordered by; None: the canonical order. With times, parallel edges of different times are
            not merged.
    """

    def __init__(
        self,
        graph: StoredGraph,
        stored_type: StoredEdgeType,
        layout: Callable[[NodeType], NodeLayout],
        id_dtype: np.dtype,
        edge_id_dtype: np.dtype,
        structure_only: bool = False,
    ) -> None:
        (src, _, dst), source, storage = stored_type.edge_type, stored_type.source, graph.storage
        self.stored_type, self.structure_only = stored_type, structure_only
        self.id_dtype, self.edge_id_dtype = id_dtype, edge_id_dtype
        self.edges, self.attrs = graph.edges[source], graph.source.edge_attrs(source)
        self.sources, self.destinations, self.offset = layout(src), layout(dst), graph.offsets[src]
        self.stored, self.weights = storage.edges[source], storage.weights[source]
        time_attr = None if structure_only else storage.time_attr
        self.times = time_attr if time_attr is not None and time_attr.orders(stored_type) else None
        self.arrays = stored_arrays(graph, stored_type, id_dtype, edge_id_dtype)
        if structure_only:
            self.arrays = {name: self.arrays[name] for name in ("indptr", "indices")}

    @property
    def record_bytes(self) -> int:
        return record_bytes(self.id_dtype, self.edge_id_dtype)


def stored_arrays(
    graph: StoredGraph, own: StoredEdgeType, id_dtype: np.dtype, edge_id_dtype: np.dtype
) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """Returns the dtype and the shape of a row of each array of a stored edge type."""
    storage = graph.storage
    found: dict[str, tuple[np.dtype, tuple[int, ...]]] = {
        "indptr": (np.dtype(np.int64), ()),
        "indices": (id_dtype, ()),
        "edge_ids": (edge_id_dtype, ()),
    }
    found |= {name: (each.dtype, each.row_shape) for name, each in storage.edges[own.source].items()}
    found |= {cum_name(name): (np.dtype(np.int32), ()) for name in storage.weights[own.source]}
    timed = storage.time_attr is not None and storage.time_attr.orders(own)
    return found | ({TIMES: (np.dtype(np.int64), ())} if timed else {})


def entry_bytes(graph: StoredGraph, own: StoredEdgeType, id_dtype: np.dtype, edge_id_dtype: np.dtype) -> int:
    """Returns the bytes of an edge in all arrays of a stored edge type."""
    arrays = stored_arrays(graph, own, id_dtype, edge_id_dtype)
    return sum(row_bytes(*how) for name, how in arrays.items() if name != "indptr")


def record_bytes(id_dtype: np.dtype, edge_id_dtype: np.dtype) -> int:
    return 12 if id_dtype.itemsize == edge_id_dtype.itemsize == 4 else 24


@dataclass(frozen=True)
class EdgeBuckets:
    """The buckets of one stored edge type.

    Attributes:
        bounds: P + 1 numbers, the rows of each part.
        starts: int64 [B + 1], first row of each bucket, and the number of rows. No bucket has rows of two parts.
        first: int64 [B + 1], number of edges, before any are merged, of all earlier buckets.
    """

    bounds: Sequence[int]
    starts: np.ndarray
    first: np.ndarray

    @classmethod
    def of(cls, layout: NodeLayout, in_degree: np.ndarray, width: int, memory_bytes: int) -> EdgeBuckets:
        """in_degree: int [N], number of edges by user id of the destination.  width: bytes of a record."""
        ends = np.empty(len(layout.user_ids), np.int64)  # edges before the end of each row
        for begin in range(0, len(ends), _ROWS):
            ends[begin : begin + _ROWS] = in_degree[layout.user_ids[begin : begin + _ROWS]]
        np.cumsum(ends, out=ends)
        total = int(ends[-1]) if len(ends) else 0
        starts = bucket_starts(layout.bounds, ends, bucket_capacity(total, width, memory_bytes))
        first = np.where(starts > 0, ends[starts - 1], 0) if len(ends) else np.zeros(len(starts), np.int64)
        return cls(layout.bounds, starts, first)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def num_edges(self) -> int:
        return int(self.first[-1])

    def of_part(self, part: int) -> tuple[int, int]:
        """Returns the range of the buckets of one part."""
        low, high = np.searchsorted(self.starts, self.bounds[part : part + 2])
        return int(low), int(high)


def ranges_within(first: np.ndarray, most: int) -> list[tuple[int, int]]:
    """Splits buckets into ranges of at most ``most`` records each; a bucket with more is a range alone. first: int64 [B + 1], the
    number of records of all earlier buckets."""
    found, low, count = [], 0, len(first) - 1
    while low < count:
        high = min(max(int(np.searchsorted(first, first[low] + most, side="right")) - 1, low + 1), count)
        found.append((low, high))
        low = high
    return found


def bucket_capacity(num_edges: int, record_bytes: int, memory_bytes: int) -> int:
    """Returns the number of edges of a bucket: at most as many as fit the CPU cache, unless that makes more than `_MAX_BUCKETS`
    buckets; and at most a quarter of the memory, unless that makes more than four times as many buckets."""
    by_memory = memory_bytes // 4 // (3 * record_bytes)
    wanted = min(by_memory, max(_BUCKET_EDGES, num_edges // _MAX_BUCKETS))
    return max(1, wanted, num_edges // (4 * _MAX_BUCKETS))


def bucket_starts(bounds: Sequence[int], ends: np.ndarray, capacity: int) -> np.ndarray:
    """Returns int64 [B + 1]: splits each part's rows into ranges of at most ``capacity`` edges; a row with more is a range
    alone."""
    starts = [0]
    for begin, end in pairwise(bounds):
        while begin < end:
            before = int(ends[begin - 1]) if begin else 0
            begin = min(end, max(begin + 1, int(np.searchsorted(ends, before + capacity, side="right"))))
            starts.append(begin)
    return np.array(starts, np.int64)


def deal(job: EdgeJob, buckets: EdgeBuckets, piece: tuple[int, int], writer: RunWriter, memory_bytes: int) -> None:
    """Distributes the edges [begin, end) of the user over the buckets.

    Raises `DataError` if they are not those that were counted.
    """
    size = min(_MAX_CHUNK, max(1, memory_bytes // 8 // (16 + job.record_bytes)))
    staged = np.empty(min(size, piece[1] - piece[0]) * job.record_bytes, np.uint8)
    native = Buckets(job.destinations.new, buckets.starts, job.record_bytes)
    for src, dst, first_edge_id in _directed(job, size, *piece):
        sizes = native.sizes(dst)
        ends = np.cumsum(sizes)
        native.scatter(src, dst, len(job.sources.new), first_edge_id, ends - sizes, ends, staged)
        writer.add(staged[: len(dst) * job.record_bytes], sizes)


def _directed(job: EdgeJob, size: int, begin: int, end: int) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Chunks (sources, destinations, id of the first edge) of the edges to store, before parallel edges are merged."""
    for src, dst in read_edges(job.edges, size, begin, end):
        if len(src) > end - begin:  # a user's edges may be more than they were
            raise DataError(CHANGED)
        yield (dst, src, begin) if job.stored_type.flip else (src, dst, begin)
        if job.stored_type.both:
            yield dst, src, begin
        begin += len(src)


class RangeWriter(Protocol):
    """Writes ranges of rows of one array: `ArrayPieces`, or a writer into memory. Rows that are not written are zero."""

    def write(self, first: int, rows: np.ndarray) -> None: ...

    def close(self) -> None: ...


# Opens one: the part, the name of the array, its dtype and the shape of a row.
OpenWriter = Callable[[int, str, np.dtype, tuple[int, ...]], RangeWriter]


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of a part that one task has sorted. Row and edge numbers count from the first of the part.

    Attributes:
        begin, end: The rows.
        at: Where their edges were written.
        count: How many there are.
    """

    part: int
    begin: int
    end: int
    at: int
    count: int


def sort(
    job: EdgeJob, buckets: EdgeBuckets, low: int, high: int, runs: Sequence[Runs], open_writer: OpenWriter
) -> list[Segment]:
    """Sorts the edges of the buckets [low, high) and writes their rows. Where edges are merged, row pointers count from the
    first edge of their segment.

    Raises `DataError` if the source gave other edges than it gave when degrees were counted.
    """
    records, first = read_buckets(runs, low, high, job.record_bytes)
    if not np.array_equal(first, buckets.first[low : high + 1] - buckets.first[low]):
        raise DataError(CHANGED)
    rows, edges = np.diff(buckets.starts[low : high + 1]), np.diff(first)
    buffers = RowBuffers.allocate(
        int(rows.max(initial=0)), int(edges.max(initial=0)), job.id_dtype, job.edge_id_dtype, job.record_bytes
    )
    found = []
    for part in range(len(buckets.bounds) - 1):
        begin, end = (min(max(b, low), high) for b in buckets.of_part(part))
        if begin == end:
            continue
        at = int(buckets.first[begin] - buckets.first[buckets.of_part(part)[0]])
        with ExitStack() as stack:
            opened = ((name, open_writer(part, name, *how)) for name, how in job.arrays.items())
            writer = _PartWriter(job, at, {name: stack.enter_context(closing(each)) for name, each in opened})
            for b in range(begin, end):
                record_range = first[b - low : b - low + 2] * job.record_bytes
                nodes = job.destinations.user_ids[buckets.starts[b] : buckets.starts[b + 1]]
                row = int(buckets.starts[b]) - buckets.bounds[part]
                writer.write(records[slice(*record_range.tolist())], row, nodes, buffers)
        first_row, last_row = (int(buckets.starts[b]) - buckets.bounds[part] for b in (begin, end))
        found.append(Segment(part, first_row, last_row, at, writer.count))
    return found


class _PartWriter:
    """The arrays of one edge type in one part, bucket by bucket. at: the position of the first edge."""

    def __init__(self, job: EdgeJob, at: int, writers: Mapping[str, RangeWriter]) -> None:
        self.count = 0
        self._job, self._at, self._writers = job, at, writers
        self._pointers = 0 if job.stored_type.both else at

    def write(self, records: np.ndarray, row: int, nodes: np.ndarray, buffers: RowBuffers) -> None:
        """Writes the rows of a bucket. row: the first of them.  nodes: user ids of the rows."""
        job = self._job
        # Parallel edges are merged where reverses were added, of which many exist already; with times `by_time` merges them.
        coalesce = job.stored_type.both and job.times is None
        indptr, indices, edge_ids = build_rows(
            records, len(nodes), coalesce, job.sources.new, job.offset, job.record_bytes, buffers
        )
        times = None
        if job.times is not None:
            times, indptr, indices, edge_ids = self._by_time(job.times, indptr, indices, edge_ids)
        self._writers["indptr"].write(row + 1, indptr[1:] + (self._pointers + self.count))
        self._write("indices", indices)
        if not job.structure_only:
            columns = user_columns(job.edges, edge_ids)
            self._write("edge_ids", columns)
            if times is not None:
                self._write(TIMES, times)
            for name, rows in job.attrs.items() if len(edge_ids) else ():
                values = rows[edge_ids]  # an added reverse edge has the id and the attributes of its edge
                if name in job.weights:
                    self._write(cum_name(name), job.weights[name].prefix_sums(values, indptr, columns, nodes))
                self._write(name, job.stored[name].encode(values, columns))
        self.count += len(indices)

    def _write(self, name: str, rows: np.ndarray) -> None:
        self._writers[name].write(self._at + self.count, rows)

    def _by_time(
        self, times: TimeAttr, indptr: np.ndarray, indices: np.ndarray, edge_ids: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Sorts rows by the times of their entries. Returns the times, and the rows."""
        job = self._job
        columns, sources = user_columns(job.edges, edge_ids), job.sources.user_ids[indices - job.offset]
        found = times.of_edges(job.stored_type, edge_ids, columns, sources)
        order, indptr = by_time(found, indptr, indices, job.stored_type.both)
        return found[order], indptr, indices[order], edge_ids[order]


def placed(segments: Sequence[Segment]) -> list[int]:
    """Returns where the edges of each segment belong when the gaps before them are closed. segments: in order."""
    at: dict[int, int] = {}
    found = []
    for each in segments:
        found.append(at.get(each.part, 0))
        at[each.part] = found[-1] + each.count
    return found
