"""The tasks: functions of a `Job` and of JSON values that return a JSON value, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import DataError, NodeType
from glt_lightning.graph import hot_path, node_path
from glt_lightning.kernels import CHANGED, row_bytes
from glt_lightning.partition.arrays import ArrayPieces, ArrayWriter, hash_chunk, read_rows
from glt_lightning.partition.build import edges as edge_steps
from glt_lightning.partition.build.degrees import count_degrees
from glt_lightning.partition.build.edges import Segment
from glt_lightning.partition.build.normalize import Normalization, numbered_chunks
from glt_lightning.partition.build.rows import NodeLayout, node_record, number_record
from glt_lightning.partition.build.stored_graph import checked_attrs
from glt_lightning.partition.build.topology import RowFiles, asymmetry
from glt_lightning.partition.tasks.exchange import (
    Runs,
    RunWriter,
    finished_runs,
    load_array,
    load_runs,
    read_buckets,
    save_array,
)
from glt_lightning.partition.tasks.job import EdgeSort, Job

_PAIRS = 1 << 20  # rows copied at once
_CHUNK_BYTES = 2 << 20  # gathered, encoded and written while it is in the CPU cache
Piece = Sequence[int]  # begin, end


def check_piece(job: Job, attribute: str, piece: Piece) -> None:
    """Checks values of an attribute."""
    checked_attrs(job.graph)[attribute].check(*piece)


def count_piece(job: Job, index: int, piece: Piece) -> None:
    """Counts the edges of a piece by their ends, into files of the whole length."""
    found = count_degrees(job.graph, job.graph.source.schema.edge_types[index], piece)
    for end, counts in zip(("out", "into"), found, strict=True):
        save_array(job.degree_file(index, end, piece), counts)


def compare_directions(job: Job, rows: str, offset: int, begin: int, end: int) -> int | None:
    """Returns the `asymmetry` of a range of sorted rows, which lie in a working folder."""
    return asymmetry(RowFiles(job.work / rows), offset, job.graph.total_nodes, begin, end)


def deal_nodes(job: Job, node_type: NodeType, piece: Piece) -> list[int]:
    """Distributes a range of user ids over the parts. Returns the number of nodes of each part."""
    graph, (begin, end), record = job.graph, piece, node_record(job.id_dtype)
    degrees, parts, hotness = job.degrees(), load_array(job.parts_file(node_type)), load_array(job.hotness_file())
    sizes, offset = np.zeros(graph.options.num_parts, np.int64), graph.offsets[node_type]
    with _dealing(job.numbers_folder(node_type) / "nodes", piece, record.itemsize, len(sizes)) as writer:
        for first in range(begin, end, _PAIRS):
            last = min(first + _PAIRS, end)
            records, ids, owners = np.empty(last - first, record), np.arange(first, last), parts[first:last]
            records["id"], records["hotness"] = ids, hotness[owners % len(hotness), ids + offset]
            records["degree"] = degrees.occurrences(node_type, graph.stored_types, first, last)
            sizes += writer.deal(records, owners)
    return [*map(int, sizes)]


def number_parts(job: Job, node_type: NodeType, pieces: list[Piece], low: int, high: int, capacity: int) -> None:
    """Sorts the nodes of the parts [low, high), writes their user ids in the new order, and distributes their numbers over
    ranges of user ids."""
    bounds, record, dtype = job.bounds(node_type), node_record(job.id_dtype), number_record(job.id_dtype)
    data, first = read_buckets(_dealt(job.numbers_folder(node_type) / "nodes", pieces), low, high, record.itemsize)
    records = data.view(record)
    buckets = max(1, -(-bounds[-1] // capacity))
    with (
        ArrayPieces(job.numbers_folder(node_type), "user_ids.npy", job.id_dtype) as user_ids,
        _dealing(job.numbers_folder(node_type) / "numbers", (low, high), dtype.itemsize, buckets) as writer,
    ):
        for part in range(low, high):
            of_part = records[first[part - low] : first[part - low + 1]]  # by user id
            ids = of_part["id"][np.lexsort((-of_part["degree"], -of_part["hotness"]))]
            user_ids.write(bounds[part], ids)
            numbers = np.empty(len(ids), dtype)
            numbers["id"], numbers["number"] = ids, np.arange(bounds[part], bounds[part + 1], dtype=job.id_dtype)
            writer.deal(numbers, ids // capacity)


def place_numbers(job: Job, node_type: NodeType, groups: list[Piece], capacity: int, bucket: int) -> None:
    """Writes the new numbers of a range of user ids."""
    begin, dtype = bucket * capacity, number_record(job.id_dtype)
    count = min(capacity, job.graph.num_nodes[node_type] - begin)
    data, _ = read_buckets(
        _dealt(job.numbers_folder(node_type) / "numbers", groups), bucket, bucket + 1, dtype.itemsize
    )
    records, numbers = data.view(dtype), np.empty(count, job.id_dtype)
    numbers[records["id"] - begin] = records["number"]
    with ArrayPieces(job.numbers_folder(node_type), "new.npy", job.id_dtype) as new:
        new.write(begin, numbers)


def rank_part(job: Job, part: int, policy: str) -> dict[str, Any]:
    """Writes the user ids and the hotness of a part's rows, and its list of remote rows. Returns the entries of these arrays."""
    graph, hotness, found = job.graph, load_array(job.hotness_file()), dict[str, Any]()

    def write(path: str, values: np.ndarray, dtype: np.dtype) -> None:
        with ArrayWriter(job.out, path, dtype) as writer:
            writer.write(values)
        found[path] = writer.close().to_json()

    for index, (node_type, count) in enumerate(graph.num_nodes.items()):
        layout, offset = job.layout(node_type), graph.offsets[node_type]
        values = hotness[part % len(hotness), offset : offset + count]
        ids = layout.user_ids[layout.bounds[part] : layout.bounds[part + 1]]
        write(node_path(part, index, "n_id"), ids, job.id_dtype)
        write(node_path(part, index, "hotness"), values[ids], _FLOAT)
        if graph.options.num_parts > 1:
            rows, listed = hottest_remote(values, layout, part, listed_rows(count, graph.options.num_parts))
            write(hot_path(part, policy, index, "gids"), rows + offset, job.id_dtype)
            write(hot_path(part, policy, index, "hotness"), listed, _FLOAT)
    return found


def deal_edges(job: Job, sort: Any, piece: Piece) -> None:
    """Distributes a piece of the edges over buckets of destinations."""
    sort = EdgeSort.from_json(sort)
    edges, buckets = job.edge_job(sort), job.buckets(sort)
    with _dealing(job.sort_folder(sort), piece, edges.record_bytes, len(buckets)) as writer:
        edge_steps.deal(edges, buckets, (piece[0], piece[1]), writer, job.memory_bytes)


def sort_edges(job: Job, sort: Any, pieces: list[Piece], low: int, high: int) -> list[Any]:
    """Sorts the edges of some buckets and writes their rows."""
    sort = EdgeSort.from_json(sort)
    runs = _dealt(job.sort_folder(sort), pieces)
    writer = partial(_edge_writer, job, sort, sort.stored_type.both)
    return [*map(astuple, edge_steps.sort(job.edge_job(sort), job.buckets(sort), low, high, runs, writer))]


def place_edges(job: Job, sort: Any, segments: list[list[int]], to: list[int]) -> None:
    """Closes the gaps that merged edges left: moves the edges of segments to where they belong."""
    sort = EdgeSort.from_json(sort)
    for segment, target in zip((Segment(*each) for each in segments), to, strict=True):
        for name, (dtype, shape) in job.edge_job(sort).arrays.items():
            pointers = name == "indptr"
            begin, count, at = segment.at, segment.count, target
            if pointers:
                begin, count, at = segment.begin + 1, segment.end - segment.begin, segment.begin + 1
            with _edge_writer(job, sort, False, segment.part, name, dtype, shape) as writer:
                folder, path = _gappy(job, sort, segment.part, name)
                for first in range(0, count, _PAIRS):
                    size = min(_PAIRS, count - first)
                    rows = read_rows(folder, path, dtype, (size, *shape), begin + first)
                    writer.write(at + first, rows + target if pointers else rows)


def _edge_writer(
    job: Job, sort: EdgeSort, gaps: bool, part: int, name: str, dtype: np.dtype, shape: tuple[int, ...]
) -> ArrayPieces:
    where = _gappy(job, sort, part, name) if gaps else job.edge_array(sort, part, name)
    return ArrayPieces(*where, dtype, shape)


def _gappy(job: Job, sort: EdgeSort, part: int, name: str) -> tuple[Path, str]:
    return job.work / sort.name / "merged", f"{part}.{name}.npy"


def take_rows(job: Job, node_type: NodeType, name: str, normalization: Any, piece: Piece) -> None:
    """Writes a range of an attribute's rows in their new order, picked from all of them."""
    array = job.array(node_type, name)
    out = np.empty((0, *array.shape[1:]), array.dtype)  # reused: new memory costs its page faults

    def pick(first: int, ids: np.ndarray) -> np.ndarray:
        nonlocal out
        if len(out) < len(ids):
            out = np.empty((len(ids), *array.shape[1:]), array.dtype)
        # "clip" changes nothing, as all ids are in range: with the default, numpy copies through a buffer for ``out``.
        return np.take(array, ids, axis=0, out=out[: len(ids)], mode="clip")

    _write_rows(job, node_type, name, normalization, piece, pick)


def deal_rows(job: Job, node_type: NodeType, name: str, capacity: int, piece: Piece) -> None:
    """Distributes a piece of an attribute's rows over ranges of new numbers; within each, they stay in order."""
    rows, new = job.graph.source.node_attrs(node_type)[name], job.layout(node_type).new
    width = row_bytes(rows.dtype, rows.shape[1:])
    with _dealing(job.rows_folder(node_type, name), piece, width, -(-len(rows) // capacity)) as writer:
        for ids, chunk in numbered_chunks(rows, piece[0], piece[1], job.memory_bytes // 8):
            writer.deal(chunk, new[ids[0] : ids[-1] + 1] // capacity)


def place_rows(
    job: Job, node_type: NodeType, name: str, normalization: Any, capacity: int, pieces: list[Piece], bucket: int
) -> None:
    """Writes the rows of one range of new numbers, which were dealt out in order."""
    rows = job.graph.source.node_attrs(node_type)[name]
    width, begin, end = (
        row_bytes(rows.dtype, rows.shape[1:]),
        bucket * capacity,
        min((bucket + 1) * capacity, len(rows)),
    )
    data, _ = read_buckets(_dealt(job.rows_folder(node_type, name), pieces), bucket, bucket + 1, width)
    if len(data) != (end - begin) * width:
        raise DataError(CHANGED)
    dealt = data.view(rows.dtype).reshape(-1, *rows.shape[1:])
    # They come in the order of user ids, so the rank of a row's user id in the range is its place.
    place = np.empty(end - begin, np.int64)
    place[np.argsort(job.layout(node_type).user_ids[begin:end])] = np.arange(end - begin)

    def pick(first: int, ids: np.ndarray) -> np.ndarray:
        return dealt[place[first - begin : first - begin + len(ids)]]

    _write_rows(job, node_type, name, normalization, (begin, end), pick)


def _write_rows(
    job: Job,
    node_type: NodeType,
    name: str,
    normalization: Any,
    piece: Piece,
    pick: Callable[[int, np.ndarray], np.ndarray],
) -> None:
    """Writes the rows of a range of new numbers. pick: called with the first of some new numbers and their user ids; returns the
    rows.  normalization: as `build.steps.statistics` returns it."""
    index, layout = job.graph.schema.node_index(node_type), job.layout(node_type)
    stored = job.graph.storage.nodes[node_type][name]
    normalize = None if normalization is None else Normalization(**normalization)
    step = max(1, _CHUNK_BYTES // max(1, stored.bytes_per_row))
    for part, (low, high) in enumerate(pairwise(layout.bounds)):
        begin, end = max(low, piece[0]), min(high, piece[1])
        if begin >= end:
            continue
        with ArrayPieces(job.out, node_path(part, index, name), stored.dtype, stored.row_shape) as writer:
            for first in range(begin, end, step):
                ids = layout.user_ids[first : min(first + step, end)]
                rows = pick(first, ids)
                rows = rows if normalize is None else normalize.apply(rows)
                writer.write(first - low, stored.encode(rows, ids))


def hash_chunks(job: Job, chunks: list[tuple[str, int, int]]) -> list[tuple[int, str]]:
    """Returns the CRC-32 and the digest of chunks: (path of the array, first byte of its data, bytes)."""
    return [hash_chunk(job.out, *chunk) for chunk in chunks]


def _dealing(folder: Path, piece: Piece, width: int, buckets: int) -> AbstractContextManager[RunWriter]:
    return finished_runs(_dealt_file(folder, piece), width, buckets)


def _dealt(folder: Path, pieces: list[Piece]) -> list[Runs]:
    return [load_runs(_dealt_file(folder, piece)) for piece in pieces]


def _dealt_file(folder: Path, piece: Piece) -> Path:
    return folder / f"dealt.{piece[0]}-{piece[1]}"


TASKS: dict[str, Callable[..., Any]] = {
    task.__name__: task
    for task in (
        check_piece,
        count_piece,
        compare_directions,
        deal_nodes,
        number_parts,
        place_numbers,
        rank_part,
        deal_edges,
        sort_edges,
        place_edges,
        take_rows,
        deal_rows,
        place_rows,
        hash_chunks,
    )
}


# The remote rows that the batches of a part read most.


_FLOAT = np.dtype(np.float32)
_LEAST_LISTED = 1 << 20  # rows, 8 MB: small graphs have whole lists
_LISTED_PER_OWN = 4  # a host with a larger cache than four times its part would rather have larger parts
_BLOCK = 1 << 22  # rows looked at together


def listed_rows(num_nodes: int, num_parts: int) -> int:
    """Returns the largest number of remote rows of a type that a part lists. All lists together are so at most as long as
    `_LISTED_PER_OWN` times the nodes, whatever the number of parts."""
    return max(_LEAST_LISTED, _LISTED_PER_OWN * -(-num_nodes // num_parts))


def hottest_remote(hotness: np.ndarray, layout: NodeLayout, part: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of the hottest remote rows, int64 [at most ``most`` ], hottest first, equally hot ones in ascending
    order; and their hotness.

    hotness: float32 [N], by user id.  Memory is that of twice ``most`` rows and a block.
    """
    rows, values = np.empty(0, np.int64), np.empty(0, _FLOAT)
    begin, end = layout.bounds[part : part + 2]
    for low, high in ((0, begin), (end, layout.bounds[-1])):
        for first in range(low, high, _BLOCK):
            found = hotness[layout.user_ids[first : min(first + _BLOCK, high)]]
            wanted = np.flatnonzero(found > 0)
            rows, values = np.concatenate([rows, wanted + first]), np.concatenate([values, found[wanted]])
            if len(rows) > 2 * most:
                rows, values = _first(rows, values, most)
    return _first(rows, values, most)


def _first(rows: np.ndarray, values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    # Stable: those that were sorted before have smaller numbers than those behind them.
    order = np.argsort(-values, kind="stable")[:most]
    return rows[order], values[order]
