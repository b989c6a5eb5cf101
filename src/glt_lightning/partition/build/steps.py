"""Steps of a partition that run as tasks: counting and sorting edges, writing rows of nodes, hashing files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple
from typing import Any

import numpy as np

from glt_lightning.base import NodeType
from glt_lightning.graph import ArrayEntry, node_path
from glt_lightning.kernels import row_bytes
from glt_lightning.partition.arrays import ArrayWriter, chunk_ranges, hashed_entry, seal_array
from glt_lightning.partition.build.degrees import Degrees
from glt_lightning.partition.build.edges import EdgeBuckets, Segment, placed, ranges_within
from glt_lightning.partition.build.normalize import normalization
from glt_lightning.partition.build.rows import is_picked
from glt_lightning.partition.build.stored_graph import checked_attrs
from glt_lightning.partition.sources.base import EdgeList, RangedEdges, Rows
from glt_lightning.partition.tasks.exchange import load_array, save_array, unfinished
from glt_lightning.partition.tasks.job import EdgeSort, Job
from glt_lightning.partition.tasks.run import Tasks

_MOST_EDGES = 1 << 25  # of a piece: a run that is interrupted loses no more
_MOST_BYTES = 1 << 30  # of records that one task sorts
_NODES = 1 << 20  # whose counts are added up at once
_HASHED_BYTES = 64 << 20  # of the chunks that one task hashes

Call = dict[str, Any]  # arguments of a task
Done = Callable[[int], object]
Arrays = dict[str, tuple[np.dtype, tuple[int, ...]]]  # path -> dtype and shape


def value_checks(job: Job) -> list[Call]:
    """Returns the calls of the task that checks values."""
    return [
        {"attribute": key, "piece": piece}
        for key, each in checked_attrs(job.graph).items()
        for piece in job.pieces(len(each.rows), at_most=_MOST_EDGES)
    ]


def check_values(tasks: Tasks) -> None:
    """Checks all values that may be refused. Raises `DataError` for the first bad one."""
    graph, calls = tasks.job.graph, value_checks(tasks.job)
    units = _sizes(call["piece"] for call in calls)
    with graph.progress.phase("checking values", sum(units), "rows") as done:
        tasks.run("check_piece", calls, done, units)


def counts(job: Job) -> list[Call]:
    """Returns the calls of the task that counts edges."""
    calls: list[Call] = []
    for index, edges in enumerate(job.graph.edges.values()):
        # as few pieces as there are processes: what each of them counts is as long as all nodes
        at_most = max(1 << 20, -(-edges.num_edges // job.width))
        calls += [{"index": index, "piece": piece} for piece in _pieces(job, edges, at_most, at_most)]
    return calls


def count_edges(tasks: Tasks) -> Degrees:
    """Reads all edges once. Raises `DataError` for an edge whose node does not exist."""
    job, types, calls = tasks.job, tasks.job.graph.source.schema.edge_types, counts(tasks.job)
    units = _sizes(call["piece"] for call in calls)
    with job.graph.progress.phase("reading edges", sum(units), "edges") as done:
        tasks.run("count_piece", calls, done, units)
    for index, edge_type in enumerate(types):
        pieces = [call["piece"] for call in calls if call["index"] == index]
        for end in ("out", "into"):
            _add_up(job, index, end, pieces, job.graph.edges[edge_type].num_edges)
    return job.degrees()


def _add_up(job: Job, index: int, end: str, pieces: Sequence[tuple[int, int]], num_edges: int) -> None:
    """Adds up the counts of all pieces, a range of nodes at a time, unless an interrupted run has done it."""
    target = job.degree_file(index, end)
    if target.exists():
        return
    files = [job.degree_file(index, end, piece) for piece in pieces]
    counts, half = [load_array(file) for file in files], unfinished(target)
    dtype = np.dtype(np.int32 if num_edges < 1 << 30 else np.int64)
    with ArrayWriter(target.parent, half.name, dtype, hashed=False) as writer:
        for begin in range(0, len(counts[0]), _NODES):
            writer.write(
                sum((each[begin : begin + _NODES] for each in counts), start=np.zeros((), np.int64)).astype(dtype)
            )
    os.replace(half, target)
    for file in files:
        file.unlink()


def node_ranges(job: Job, count: int) -> tuple[list[tuple[int, int]], int]:
    """Returns the ranges of nodes that tasks distribute, and how many nodes a task sorts."""
    most = min(job.memory_bytes // 4, _MOST_BYTES) // 64  # records, keys and order
    at_once = max(1, min(most, max(_NODES, -(-count // job.width))))
    return job.pieces(count, at_most=at_once), at_once


def number_nodes(tasks: Tasks, node_type: NodeType, done: Done) -> None:
    """Numbers the nodes of a type by (part, hotness descending, degree descending, user id).

    done: called with a number of nodes, three times for each.
    """
    job, count, how = tasks.job, tasks.job.graph.num_nodes[node_type], {"node_type": node_type}
    pieces, at_once = node_ranges(job, count)
    deals = [how | {"piece": piece} for piece in pieces]
    sizes = np.sum(tasks.run("deal_nodes", deals, done, _sizes(pieces)), axis=0, dtype=np.int64)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    folder = job.numbers_folder(node_type)
    save_array(folder / "bounds.npy", bounds)
    groups = ranges_within(bounds, at_once)
    spread = {"pieces": pieces, "capacity": at_once}
    calls = [how | spread | {"low": low, "high": high} for low, high in groups]
    tasks.run("number_parts", calls, done, [int(bounds[high] - bounds[low]) for low, high in groups])
    ranges = cut_at(count, at_once) or [(0, 0)]
    places = [how | {"groups": groups, "capacity": at_once, "bucket": bucket} for bucket in range(len(ranges))]
    tasks.run("place_numbers", places, done, _sizes(ranges))
    for name in ("user_ids", "new"):
        seal_array(folder, f"{name}.npy", job.id_dtype, (count,))
    for name in ("nodes", "numbers"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _sizes(pieces: Iterable[tuple[int, int]]) -> list[int]:
    return [end - begin for begin, end in pieces]


def _pieces(job: Job, edges: EdgeList, at_least: int, at_most: int) -> list[tuple[int, int]]:
    """Ranges of edges for tasks. Edges that can only be read from the first to the last are one piece."""
    if not isinstance(edges, RangedEdges) and not job.shared:
        return [(0, edges.num_edges)]
    return job.pieces(edges.num_edges, at_least=at_least, at_most=at_most)


def dealt_pieces(job: Job, edges: EdgeList) -> list[tuple[int, int]]:
    """Ranges of edges that tasks distribute."""
    return _pieces(job, edges, 1 << 21, _MOST_EDGES)


def sorted_at_once(job: Job, num_edges: int, record_bytes: int) -> int:
    """Returns how many of ``num_edges`` edges a task sorts."""
    most = min(job.memory_bytes // 4, _MOST_BYTES) // record_bytes
    return max(1, min(most, max(1 << 20, num_edges // (8 * job.width))))


def plan_buckets(tasks: Tasks, sort: EdgeSort, in_degree: np.ndarray) -> EdgeBuckets:
    """Plans the buckets of a sort. in_degree: int [N], by user id of the destination."""
    job, edges = tasks.job, tasks.job.edge_job(sort)
    found = EdgeBuckets.of(edges.destinations, in_degree, edges.record_bytes, job.memory_bytes)
    job.save_buckets(sort, found)
    return found


def sort_edges(tasks: Tasks, sort: EdgeSort, done: Done) -> Arrays:
    """Sorts the edges of one type, whose buckets are planned, into the arrays of all parts.

    done: called with a number of edges, twice for each edge: when it is put into a bucket, and when it is written.

    Raises `DataError` if the source gives other edges than it gave when degrees were counted.
    """
    job, edges, buckets = tasks.job, tasks.job.edge_job(sort), tasks.job.buckets(sort)
    spec, ways = sort.to_json(), 2 if sort.stored_type.both else 1
    pieces = dealt_pieces(job, edges.edges)
    deals = [{"sort": spec, "piece": piece} for piece in pieces]
    groups = ranges_within(buckets.first, sorted_at_once(job, buckets.num_edges, edges.record_bytes))
    sorts = [{"sort": spec, "pieces": pieces, "low": low, "high": high} for low, high in groups]
    if not tasks.finished("sort_edges", sorts):
        tasks.run("deal_edges", deals, done, [ways * size for size in _sizes(pieces)])
    units = [int(buckets.first[high] - buckets.first[low]) for low, high in groups]
    found = [[Segment(*each) for each in result] for result in tasks.run("sort_edges", sorts, done, units)]
    segments = [each for result in found for each in result]
    shutil.rmtree(job.sort_folder(sort), ignore_errors=True)
    if sort.stored_type.both:
        to = iter(placed(segments))
        calls = [{"sort": spec, "segments": [*map(astuple, r)], "to": [next(to) for _ in r]} for r in found]
        tasks.run("place_edges", calls)
        shutil.rmtree(job.work / sort.name / "merged", ignore_errors=True)
    job.forget_edges()
    counts = np.zeros(len(buckets.bounds) - 1, np.int64)
    for each in segments:
        counts[each.part] += each.count
    arrays: Arrays = {}
    for part, count in enumerate(counts.tolist()):
        rows = buckets.bounds[part + 1] - buckets.bounds[part]
        for name, (dtype, shape) in edges.arrays.items():
            length = rows + 1 if name == "indptr" else count
            arrays[job.edge_array(sort, part, name)[1]] = dtype, (length, *shape)
    return arrays


def write_nodes(tasks: Tasks) -> Arrays:
    """Writes the attributes of all nodes."""
    graph = tasks.job.graph
    attrs = [(t, name) for t in graph.num_nodes for name in graph.source.node_attrs(t)]
    total = sum(graph.num_nodes[t] for t, _ in attrs)
    arrays: Arrays = {}
    with graph.progress.phase("writing nodes", total, "rows") as done:
        for node_type, name in attrs:
            arrays |= _write_attr(tasks, node_type, name, done)
    return arrays


def _write_attr(tasks: Tasks, node_type: NodeType, name: str, done: Done) -> Arrays:
    job = tasks.job
    rows, stored = job.graph.source.node_attrs(node_type)[name], job.graph.storage.nodes[node_type][name]
    how = {"node_type": node_type, "name": name}
    normalized = how | {"normalization": statistics(tasks, node_type, name)}
    count = len(rows)
    ranges, capacity = row_ranges(job, rows)
    if capacity is None:
        calls = [normalized | {"piece": piece} for piece in ranges]
        tasks.run("take_rows", calls, done, _sizes(ranges))
    else:
        deals = [how | {"capacity": capacity, "piece": piece} for piece in ranges]
        sizes = _sizes(cut_at(count, capacity))
        places = [normalized | {"capacity": capacity, "pieces": ranges, "bucket": b} for b in range(len(sizes))]
        if not tasks.finished("place_rows", places):
            tasks.run("deal_rows", deals)
        tasks.run("place_rows", places, done, sizes)
        shutil.rmtree(job.rows_folder(node_type, name), ignore_errors=True)
    index, bounds = job.graph.schema.node_index(node_type), job.layout(node_type).bounds
    return {
        node_path(part, index, name): (stored.dtype, (bounds[part + 1] - bounds[part], *stored.row_shape))
        for part in range(len(bounds) - 1)
    }


def statistics(tasks: Tasks, node_type: NodeType, name: str) -> dict[str, Any] | None:
    """Returns how an attribute is normalised; None if it stays as it is. The first call reads all rows."""
    graph = tasks.job.graph
    mode = graph.normalize if name == "x" else "none"

    def read() -> object:
        rows, stored = graph.source.node_attrs(node_type)[name], graph.storage.nodes[node_type][name]
        found = normalization(mode, rows, stored.require_finite)
        return None if found is None else asdict(found)

    how = {"node_type": node_type, "name": name, "mode": mode}
    found: dict[str, Any] | None = tasks.once("normalization", how, read)
    return found


def row_ranges(job: Job, rows: Rows) -> tuple[list[tuple[int, int]], int | None]:
    """Returns the ranges of an attribute's rows for tasks; and, if they are dealt out before they are placed, how many rows are
    placed at once."""
    count, width = len(rows), max(1, row_bytes(rows.dtype, rows.shape[1:]))
    at_least = (1 << 24) // width
    if is_picked(rows, job.graph.options):
        return job.pieces(count, at_least=at_least, at_most=count), None
    ranges = job.pieces(count, at_least=at_least, at_most=max(1, _MOST_BYTES // width))
    return ranges, max(1, job.memory_bytes // 4 // width)


def cut_at(count: int, size: int) -> list[tuple[int, int]]:
    return [(begin, min(begin + size, count)) for begin in range(0, count, size)]


def seal(tasks: Tasks, arrays: Mapping[str, tuple[np.dtype, tuple[int, ...]]]) -> dict[str, ArrayEntry]:
    """Completes the files of arrays that tasks wrote in pieces: writes their headers, and hashes them."""
    for path, (dtype, shape) in arrays.items():
        seal_array(tasks.job.out, path, dtype, shape)
    chunks = [
        (path, begin, end - begin)
        for path, (dtype, shape) in arrays.items()
        for begin, end in chunk_ranges(row_bytes(dtype, shape))
    ]
    begins = np.cumsum([0, *(nbytes for _, _, nbytes in chunks)])
    groups = ranges_within(begins, _HASHED_BYTES)
    calls = [{"chunks": chunks[low:high]} for low, high in groups]
    units = [int(begins[high] - begins[low]) for low, high in groups]
    with tasks.job.graph.progress.phase("hashing files", sum(units), "B") as done:
        found = tasks.run("hash_chunks", calls, done, units)
    hashes: dict[str, list[tuple[int, str]]] = {path: [] for path in arrays}
    for (path, _, _), pair in zip(chunks, (pair for result in found for pair in result), strict=True):
        hashes[path].append(tuple(pair))
    return {path: hashed_entry(*arrays[path], hashes[path]) for path in arrays}
