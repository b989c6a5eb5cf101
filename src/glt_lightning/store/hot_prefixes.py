"""How many of the first, hottest rows of each part a GPU keeps in its own memory; it reads the others from the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from glt_lightning.data.arrays import open_array
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.manifest import Manifest, edge_path, node_path
from glt_lightning.ops.graph import EdgeTypeArrays
from glt_lightning.ops.row_bytes import row_bytes

_BLOCKS = 1024  # of the rows of a part; one cut goes through all blocks by their heat, and then into one of them
_DRAWN = 10  # edges that are drawn when a node is visited: the order of usual fan-outs


@dataclass(frozen=True)
class HotLists:
    """rows: int64 [T, P], nodes whose neighbour lists are on the device.  all_ids, all_pointers: so are the user ids, and the
    row pointers, of all nodes; else those of the same nodes."""

    rows: np.ndarray
    all_ids: bool = False
    all_pointers: bool = False


@dataclass(frozen=True)
class HotAttributes:
    """nodes: int64 [T, P], edges: int64 [R, P]: rows whose attributes are on the device."""

    nodes: np.ndarray
    edges: np.ndarray


@dataclass(frozen=True)
class _Range:
    """Rows of a part. ends: int64 [B], where each block of them ends.  accesses: float64 [B], expected, of each block.

    bytes_of: numbers of first rows, int64 [n] -> their bytes.
    """

    ends: np.ndarray
    accesses: np.ndarray
    bytes_of: Callable[[np.ndarray], np.ndarray]


def hot_lists_within(partition: LocalPartition, budget: int) -> HotLists:
    """The neighbour lists that are drawn from most for each of ``budget`` bytes.

    A batch looks up the user ids of all its nodes, and a row pointer before any neighbour, and both are small beside the
    lists. So all ids come first where they take at most half of the budget, and then all pointers in the same way.
    """
    manifest, view = partition.manifest, partition.view
    types = range(len(manifest.num_nodes))
    lists = {
        (t, p): [view.arrays(r, p) for r, of in enumerate(view.dst_types.tolist()) if of == t]
        for t in types
        for p in partition.parts
    }
    ids = view.id_bytes * sum(manifest.rows(p, t) for t, p in lists)
    all_ids = 2 * ids <= budget
    budget -= ids if all_ids else 0
    pointers = sum(each.indptr.nbytes for edge_types in lists.values() for each in edge_types if each is not None)
    all_pointers = 2 * pointers <= budget
    budget -= pointers if all_pointers else 0
    ranges = []
    for (t, p), edge_types in lists.items():
        ends, accesses = _accesses(partition, p, t)
        here = [each for each in edge_types if each is not None]
        each_row = 0 if all_ids else view.id_bytes
        ranges.append(_Range(ends, accesses, partial(_list_bytes, here, each_row, not all_pointers)))
    rows = np.zeros((len(types), manifest.num_parts), dtype=np.int64)
    for at, count in zip(lists, _cut(ranges, budget), strict=True):
        rows[at] = count
    return HotLists(rows, all_ids, all_pointers)


def hot_attributes_within(partition: LocalPartition, with_edge: bool, budget: int) -> HotAttributes:
    """The rows that are gathered most for each of ``budget`` bytes. A node's attributes go together, and so do an edge's.

    with_edge: those of edges, and their ids, are gathered at all. Edges lie as their destinations do.
    """
    manifest, schema = partition.manifest, partition.schema
    nodes = np.zeros((len(schema.node_types), manifest.num_parts), dtype=np.int64)
    edges = np.zeros((len(schema.edge_types), manifest.num_parts), dtype=np.int64)
    slots, ranges = [], []
    for p in partition.parts:
        found = [_accesses(partition, p, t) for t in range(len(schema.node_types))]
        for t, (ends, accesses) in enumerate(found):
            size = _bytes_of(manifest, (node_path(p, t, name) for name in manifest.node_attrs(t)))
            slots.append(nodes[t, p : p + 1])
            ranges.append(_Range(ends, accesses, partial(np.multiply, size)))
        for r, t in enumerate(schema.destination_types() if with_edge else ()):
            names = ("edge_ids", *manifest.edge_attrs(r))
            size = _bytes_of(manifest, (edge_path(p, r, name) for name in names))
            ends, accesses = found[t]
            arrays = partition.view.arrays(r, p)
            assert arrays is not None
            slots.append(edges[r, p : p + 1])
            ranges.append(_of_edges(ends, accesses, arrays.indptr, size))
    for slot, count in zip(slots, _cut(ranges, budget), strict=True):
        slot[0] = count
    return HotAttributes(nodes, edges)


def _bytes_of(manifest: Manifest, paths: Iterable[str]) -> int:
    """Bytes of a row of all these arrays."""
    return sum(row_bytes(e.dtype, e.shape[1:]) for e in (manifest.arrays[path] for path in paths))


def _cut(ranges: Sequence[_Range], budget: int) -> list[int]:
    """For each range, how many of its first rows to take: by accesses for each byte, until the budget is spent."""
    of = np.repeat(np.arange(len(ranges)), [len(r.ends) for r in ranges])
    ends = np.concatenate([r.ends for r in ranges])
    nbytes = np.concatenate([np.diff(r.bytes_of(r.ends), prepend=0) for r in ranges])
    heat = [np.minimum.accumulate(r.accesses / np.maximum(np.diff(r.bytes_of(r.ends), prepend=0), 1)) for r in ranges]
    share = np.concatenate(
        [r.ends / max(r.ends.max(initial=0), 1) for r in ranges]
    )  # equally hot ranges fill up together
    order = np.lexsort((share, -np.concatenate(heat)))
    whole = order[: np.searchsorted(np.cumsum(nbytes[order]), budget, side="right")]
    counts = np.zeros(len(ranges), dtype=np.int64)
    np.maximum.at(counts, of[whole], ends[whole])
    if len(whole) < len(order):
        last = order[len(whole)]
        counts[of[last]] += _rows_within(
            ranges[of[last]], int(counts[of[last]]), int(ends[last]), budget - int(nbytes[whole].sum())
        )
    return counts.tolist()


def _rows_within(of: _Range, begin: int, end: int, room: int) -> int:
    """How many rows from ``begin`` on take at most ``room`` bytes."""
    taken = of.bytes_of(np.arange(begin, end + 1))
    return max(0, int(np.searchsorted(taken, (taken[0] + room), side="right")) - 1)


def _list_bytes(lists: Sequence[EdgeTypeArrays], id_bytes: int, pointers: bool, rows: np.ndarray) -> np.ndarray:
    """Of the first neighbour lists, with user ids of ``id_bytes``, and with row pointers or without."""
    nbytes = rows * id_bytes
    for each in lists:
        nbytes += each.indptr[rows] * each.indices.itemsize
        if pointers:
            nbytes += (rows + (rows > 0)) * each.indptr.itemsize
    return nbytes


def _of_edges(ends: np.ndarray, accesses: np.ndarray, indptr: np.ndarray, size: int) -> _Range:
    last = np.asarray(indptr[ends])
    degree = np.diff(last, prepend=0) / np.maximum(np.diff(ends, prepend=0), 1)
    return _Range(last, accesses * np.minimum(degree, _DRAWN), partial(np.multiply, size))


def _accesses(partition: LocalPartition, part: int, node_type: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of the nodes of a part: (ends, expected accesses); all nodes the same where the folder does not say."""
    rows = partition.manifest.rows(part, node_type)
    ends = np.linspace(0, rows, min(rows, _BLOCKS) + 1).astype(np.int64)[1:]
    path = node_path(part, node_type, "hotness")
    if rows == 0 or path not in partition.manifest.arrays:
        return ends, np.diff(ends, prepend=0).astype(np.float64)
    hotness = open_array(partition.directory, path, partition.manifest.arrays[path])
    return ends, np.add.reduceat(hotness, np.append(0, ends[:-1]), dtype=np.float64)
