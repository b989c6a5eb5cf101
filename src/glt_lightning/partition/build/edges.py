"""Edges as CSC per part, in bounded memory.

An external bucket sort: all edges of a type are first distributed over buckets, each a range of destination rows whose
edges fit the CPU cache; then one bucket after the other is sorted and appended to the arrays of its part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.graph import TIMES, ArrayEntry, ArrayWriter, cum_name, edge_path
from glt_lightning.kernels import CHANGED, Buckets, RowBuffers, build_rows
from glt_lightning.partition.build.edge_types import StoredEdgeType
from glt_lightning.partition.build.layout import NodeLayout
from glt_lightning.partition.build.rows import Scratch, StoredAs
from glt_lightning.partition.build.times import EdgeTimes, WeightSums, by_time
from glt_lightning.partition.edge_splits.read import user_columns
from glt_lightning.partition.sources.base import EdgeList, Rows

# Edges of a bucket: records, keys and results of 2^18 edges take 7 MB, which stays in the last-level cache.
_BUCKET_EDGES = 1 << 18
# Distributing edges writes to this many places at a time; larger graphs get larger buckets rather than more.
_MAX_BUCKETS = 4096
# Edges read from the source at once: ids and records of 2^21 edges take 56 MiB, 80 MiB with 64-bit ids.
_MAX_CHUNK = 1 << 21


@dataclass(frozen=True)
class EdgeJob:
    """A stored edge type with everything that is needed to write it.

    Attributes:
        index: Index of the stored type.
        edges, attrs: The user's edges and their attributes.
        in_degree: int64 [N], number of edges by user id of the destination, before parallel edges are merged.
        sources, destinations: Numbering of the two node types.
        offset: First gid of the source type.
        parts: The parts to write, ascending.
        stored: Dtype and encoding in which each attribute is stored.
        weights: Attributes whose prefix sums are stored, too.
        times: The times that rows are ordered by; None: the canonical order. With times, parallel edges of different times are
            not merged.
        structure_only: Leave out edge ids and attributes.
    """

    index: int
    stored_type: StoredEdgeType
    edges: EdgeList
    attrs: Mapping[str, Rows]
    in_degree: np.ndarray
    sources: NodeLayout
    destinations: NodeLayout
    offset: int
    id_dtype: np.dtype
    edge_id_dtype: np.dtype
    parts: Sequence[int]
    stored: Mapping[str, StoredAs] = field(default_factory=dict)
    weights: Mapping[str, WeightSums] = field(default_factory=dict)
    times: EdgeTimes | None = None
    structure_only: bool = False

    @property
    def record_bytes(self) -> int:
        return 12 if self.id_dtype.itemsize == 4 and self.edge_id_dtype.itemsize == 4 else 24


class RowWriter(Protocol):
    """The interface of writers of one array, row block by row block: `ArrayWriter`, or a writer into memory."""

    path: str

    def write(self, rows: np.ndarray) -> None: ...

    def close(self) -> ArrayEntry: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


# Opens one: of a folder, the path of an array below it, its dtype and the shape of a row.
OpenWriter = Callable[[Path, str, np.dtype, tuple[int, ...]], RowWriter]


def write_edges(
    folder: Path,
    job: EdgeJob,
    memory_bytes: int,
    done: Callable[[int], object],
    open_writer: OpenWriter = ArrayWriter,
) -> dict[str, ArrayEntry]:
    """Writes the arrays of one edge type for the parts.

    done: called with a number of edges, twice for each edge: when it is put into a bucket, and when it is written.

    Raises `DataError` if the source gives other edges than it gave when degrees were counted.
    """
    ends = np.cumsum(job.in_degree[job.destinations.user_ids])  # edges before the end of each row
    starts = bucket_starts(
        job.destinations.bounds, ends, bucket_capacity(int(job.in_degree.sum()), job.record_bytes, memory_bytes)
    )
    wanted = _wanted(job, starts)
    sizes = np.diff(np.where(starts > 0, ends[starts - 1], 0)) * wanted if len(ends) else np.zeros(0, np.int64)
    del ends
    first = np.concatenate([[0], np.cumsum(sizes)])  # first record of each bucket
    buckets = Buckets(job.destinations.new, starts, job.record_bytes)
    # The remaining quarter is for a chunk of the user's edges, its sorted copy, and the bucket that is being written.
    with Scratch(int(first[-1]) * job.record_bytes, folder, memory_bytes // 4 * 3) as records:
        _distribute(job, buckets, wanted, first, records, memory_bytes // 8, done)
        return _write_parts(folder, job, starts, first, records, done, open_writer)


def _wanted(job: EdgeJob, starts: np.ndarray) -> np.ndarray:
    """Returns bool [B]: True for buckets of a part that is written."""
    wanted = np.zeros(len(starts) - 1, bool)
    for part in job.parts:
        low, high = np.searchsorted(starts, job.destinations.bounds[part : part + 2])
        wanted[low:high] = True
    return wanted


def bucket_capacity(num_edges: int, record_bytes: int, memory_bytes: int) -> int:
    """Returns the number of edges of a bucket: at most as many as fit the CPU cache, unless that makes more than `_MAX_BUCKETS`
    buckets; and at most a quarter of the memory, unless that makes more than four times as many buckets."""
    by_memory = memory_bytes // 4 // (3 * record_bytes)
    wanted = min(by_memory, max(_BUCKET_EDGES, num_edges // _MAX_BUCKETS))
    return max(1, wanted, num_edges // (4 * _MAX_BUCKETS))


def bucket_starts(bounds: tuple[int, ...], ends: np.ndarray, capacity: int) -> np.ndarray:
    """Returns int64 [B + 1]: splits each part's rows into ranges of at most ``capacity`` edges; a row with more is a range
    alone."""
    starts = [0]
    for begin, end in pairwise(bounds):
        while begin < end:
            before = int(ends[begin - 1]) if begin else 0
            begin = min(end, max(begin + 1, int(np.searchsorted(ends, before + capacity, side="right"))))
            starts.append(begin)
    return np.array(starts, np.int64)


def _directed(job: EdgeJob, size: int) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Chunks (sources, destinations, id of the first edge) of all edges to store, before parallel edges are merged."""
    at = 0
    for src, dst in job.edges.chunks(size):
        yield (dst, src, at) if job.stored_type.flip else (src, dst, at)
        if job.stored_type.both:
            yield dst, src, at
        at += len(src)


def _distribute(
    job: EdgeJob,
    buckets: Buckets,
    wanted: np.ndarray,
    first: np.ndarray,
    records: Scratch,
    memory_bytes: int,
    done: Callable[[int], object],
) -> None:
    size = min(_MAX_CHUNK, max(1, memory_bytes // (16 + job.record_bytes)))
    # In memory, records go straight to their buckets. To a file they go by way of ``staged``: one write for each bucket of a
    # chunk, and not one for each record.
    at_once = records.memory if wanted.all() else None
    staged = np.empty(0 if at_once is not None else size * job.record_bytes, np.uint8)
    cursor = first[:-1].copy()
    for src, dst, first_edge_id in _directed(job, size):
        if at_once is not None:
            buckets.scatter(src, dst, len(job.sources.new), first_edge_id, cursor, first[1:], at_once)
        else:
            sizes = _group(job, buckets, src, dst, first_edge_id, staged)
            _append(sizes, wanted, first, cursor, staged, records, job.record_bytes)
        done(len(src))
    if not np.array_equal(cursor, first[1:]):  # fewer edges than were counted: the arrays would have unset entries
        raise DataError(CHANGED)


def _group(
    job: EdgeJob, buckets: Buckets, src: np.ndarray, dst: np.ndarray, first_edge_id: int, staged: np.ndarray
) -> np.ndarray:
    """Puts the records of a chunk into ``staged``, bucket after bucket. Returns int64 [B]: number of records of each."""
    sizes = buckets.sizes(dst)
    ends = np.cumsum(sizes)
    buckets.scatter(src, dst, len(job.sources.new), first_edge_id, ends - sizes, ends, staged)
    return sizes


def _append(
    sizes: np.ndarray,
    wanted: np.ndarray,
    first: np.ndarray,
    cursor: np.ndarray,
    staged: np.ndarray,
    records: Scratch,
    width: int,
) -> None:
    """Appends each staged group of a wanted bucket to the bucket's region of ``records``, and advances ``cursor``."""
    ends = np.cumsum(sizes)
    sizes = sizes * wanted
    if (cursor + sizes > first[1:]).any():  # more edges than were counted: they would overwrite the next bucket's
        raise DataError(CHANGED)
    for b in np.flatnonzero(sizes).tolist():
        end, size = int(ends[b]), int(sizes[b])
        records.write(int(cursor[b]) * width, staged[(end - size) * width : end * width])
    cursor += sizes


def _write_parts(
    folder: Path,
    job: EdgeJob,
    starts: np.ndarray,
    first: np.ndarray,
    records: Scratch,
    done: Callable[[int], object],
    open_writer: OpenWriter,
) -> dict[str, ArrayEntry]:
    most_rows, most_edges = int(np.diff(starts).max(initial=0)), int(np.diff(first).max(initial=0))
    buffers = RowBuffers.allocate(most_rows, most_edges, job.id_dtype, job.edge_id_dtype, job.record_bytes)
    entries: dict[str, ArrayEntry] = {}
    bounds = job.destinations.bounds
    for part in job.parts:
        low, high = np.searchsorted(starts, bounds[part : part + 2])
        with _PartWriter(folder, part, job, open_writer) as writer:
            for b in range(int(low), int(high)):
                bucket = records.read(int(first[b]) * job.record_bytes, int(first[b + 1]) * job.record_bytes)
                writer.write(bucket, job.destinations.user_ids[starts[b] : starts[b + 1]], buffers)
                done(int(first[b + 1] - first[b]))
        entries |= writer.entries
    return entries


class _PartWriter:
    """The arrays of one edge type in one part, appended bucket by bucket."""

    def __init__(self, folder: Path, part: int, job: EdgeJob, open_writer: OpenWriter) -> None:
        self.entries: dict[str, ArrayEntry] = {}
        self._job = job
        self._num_edges = 0
        self._stack = ExitStack()
        kinds: dict[str, tuple[np.dtype, tuple[int, ...]]] = {
            "indptr": (np.dtype(np.int64), ()),
            "indices": (job.id_dtype, ()),
        }
        if not job.structure_only:
            kinds |= {"edge_ids": (job.edge_id_dtype, ())}
            kinds |= {name: (job.stored[name].dtype, job.stored[name].row_shape) for name in job.attrs}
            kinds |= {cum_name(name): (np.dtype(np.int32), ()) for name in job.weights}
            kinds |= {} if job.times is None else {TIMES: (np.dtype(np.int64), ())}
        with self._stack:  # closes the files opened so far if a later one cannot be opened
            self._writers = {
                name: self._stack.enter_context(open_writer(folder, edge_path(part, job.index, name), dtype, shape))
                for name, (dtype, shape) in kinds.items()
            }
            self._writers["indptr"].write(np.zeros(1, np.int64))
            self._stack = self._stack.pop_all()

    def write(self, records: np.ndarray, nodes: np.ndarray, buffers: RowBuffers) -> None:
        """Appends the rows of a bucket. nodes: user ids of the rows."""
        job, num_rows = self._job, len(nodes)
        # Parallel edges are merged where reverses were added, of which many exist already; with times `by_time` merges them.
        coalesce = job.stored_type.both and job.times is None
        indptr, indices, edge_ids = build_rows(
            records, num_rows, coalesce, job.sources.new, job.offset, job.record_bytes, buffers
        )
        if job.times is not None:
            indptr, indices, edge_ids = self._order(job.times, indptr, indices, edge_ids)
        self._writers["indptr"].write(indptr[1:] + self._num_edges)
        self._writers["indices"].write(indices)
        self._num_edges += len(indices)
        if job.structure_only:
            return
        self._writers["edge_ids"].write(user_columns(job.edges, edge_ids))
        if job.attrs and len(edge_ids):
            columns = edge_ids  # an added reverse edge has the id and the attributes of its edge
            for name, rows in job.attrs.items():
                values = rows[columns]
                if name in job.weights:
                    sums = job.weights[name].prefix_sums(values, indptr, user_columns(job.edges, columns), nodes)
                    self._writers[cum_name(name)].write(sums)
                self._writers[name].write(job.stored[name].encode(values, columns))

    def _order(
        self, times: EdgeTimes, indptr: np.ndarray, indices: np.ndarray, edge_ids: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sorts rows by the times of their entries, and writes the times."""
        job = self._job
        found = times(edge_ids, user_columns(job.edges, edge_ids), job.sources.user_ids[indices - job.offset])
        order, indptr = by_time(found, indptr, indices, job.stored_type.both)
        self._writers[TIMES].write(found[order])
        return indptr, indices[order], edge_ids[order]

    def __enter__(self) -> _PartWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(*error)  # type: ignore[arg-type]
        if error[0] is None:
            self.entries = {w.path: w.close() for w in self._writers.values()}
