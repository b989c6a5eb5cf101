"""Which rows of a host's own parts stay in memory when that does not hold all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from glt_lightning.data.arrays import open_array
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.manifest import ArrayEntry, edge_path, node_path
from glt_lightning.ops.disk import PAGE
from glt_lightning.ops.row_bytes import row_bytes

_BLOCKS = 1024  # of the rows of a part; those of a block count as equally hot
_DRAWN = 10  # edges that are drawn when a node is visited: the order of usual fan-outs


@dataclass(frozen=True)
class _Heat:
    """ends: int64 [B], where each block of rows ends.  each: float64 [B], expected accesses of a row in it, falling."""

    ends: np.ndarray
    each: np.ndarray


def choose_prefixes(partition: LocalPartition, budget: int) -> dict[str, int]:
    """For each array of attributes of the mapped parts, by its path, the number of its first rows to keep in ``budget``
    bytes, so that the fewest pages have to be read.

    A row that is not kept costs the pages it lies in whenever it is accessed, however narrow it is.
    """
    paths, ends, values = [], [], []
    for path, entry, heat in _arrays(partition):
        size = row_bytes(entry.dtype, entry.shape[1:])
        if size == 0:
            continue
        paths.append((path, size))
        ends.append(heat.ends)
        values.append(heat.each / min(size, PAGE))
    if not paths:
        return {}
    of = np.repeat(np.arange(len(paths)), [len(e) for e in ends])
    rows = np.concatenate([np.diff(e, prepend=0) for e in ends])
    share = np.concatenate([e / max(e[-1], 1) for e in ends])  # equally hot arrays fill up together
    order = np.lexsort((share, -np.concatenate(values)))
    nbytes = rows * np.array([size for _, size in paths])[of]
    after = np.cumsum(nbytes[order])
    whole = order[: np.searchsorted(after, budget, side="right")]
    counts = np.bincount(of[whole], rows[whole], minlength=len(paths)).astype(np.int64)
    if len(whole) < len(order):
        last = order[len(whole)]
        counts[of[last]] += (budget - nbytes[whole].sum()) // paths[of[last]][1]
    return {path: int(count) for (path, _), count in zip(paths, counts, strict=True)}


def _arrays(partition: LocalPartition) -> Iterator[tuple[str, ArrayEntry, _Heat]]:
    manifest, schema = partition.manifest, partition.schema
    for p in partition.parts:
        for t in range(len(schema.node_types)):
            if names := manifest.node_attrs(t):
                heat = _of_nodes(_hotness(partition, p, t))
                yield from ((path := node_path(p, t, n), manifest.arrays[path], heat) for n in names)
        for r, t in enumerate(schema.destination_types()):
            if names := manifest.edge_attrs(r):
                heat = _of_edges(_hotness(partition, p, t), _open(partition, edge_path(p, r, "indptr")))
                yield from ((path := edge_path(p, r, n), manifest.arrays[path], heat) for n in names)


def _hotness(partition: LocalPartition, part: int, node_type: int) -> np.ndarray:
    """Expected accesses of the nodes of a part; all the same where the folder does not say."""
    path = node_path(part, node_type, "hotness")
    if path in partition.manifest.arrays:
        return _open(partition, path)
    rows = partition.manifest.arrays[node_path(part, node_type, "n_id")].shape[0]
    return np.broadcast_to(np.float32(1), rows)


def _of_nodes(hotness: np.ndarray) -> _Heat:
    ends = _ends(len(hotness))
    return _falling(ends, np.array([hotness[b:e].sum(dtype=np.float64) for b, e in _blocks(ends)]))


def _of_edges(hotness: np.ndarray, indptr: np.ndarray) -> _Heat:
    """Edges lie in the order of their destinations."""
    ends = _ends(len(hotness))
    drawn = [
        np.dot(hotness[b:e].astype(np.float64), np.minimum(np.diff(indptr[b : e + 1]), _DRAWN))
        for b, e in _blocks(ends)
    ]
    return _falling(np.asarray(indptr[ends]), np.array(drawn))


def _ends(rows: int) -> np.ndarray:
    return np.unique(np.linspace(0, rows, min(rows, _BLOCKS) + 1).astype(np.int64))[int(rows > 0) :]


def _blocks(ends: np.ndarray) -> Iterator[tuple[int, int]]:
    return zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)


def _falling(ends: np.ndarray, accesses: np.ndarray) -> _Heat:
    each = accesses / np.maximum(np.diff(ends, prepend=0), 1)
    return _Heat(ends, np.minimum.accumulate(each))


def _open(partition: LocalPartition, path: str) -> np.ndarray:
    return open_array(partition.directory, path, partition.manifest.arrays[path])
