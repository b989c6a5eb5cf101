"""Edges, written by destination row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from glt_lightning.data.arrays import ArrayWriter
from glt_lightning.data.manifest import ArrayEntry, edge_path
from glt_lightning.partition.layout import NodeLayout
from glt_lightning.partition.relations import Relation
from glt_lightning.partition.sources.base import EdgeList, Rows


def write_edges(
    folder: Path,
    index: int,
    relation: Relation,
    edges: EdgeList,
    attrs: Mapping[str, Rows],
    layouts: tuple[NodeLayout, NodeLayout],
    offset: int,
    id_dtype: np.dtype,
    edge_id_dtype: np.dtype,
) -> dict[str, ArrayEntry]:
    """First version, all in memory."""
    src, dst = (np.concatenate(a) if a else np.zeros(0, np.int64) for a in zip(*edges.chunks(1 << 22), strict=True)) if edges.num_edges else (np.zeros(0, np.int64),) * 2
    if relation.flip:
        src, dst = dst, src
    eid = np.arange(len(src))
    if relation.both:
        src, dst, eid = np.concatenate([src, dst]), np.concatenate([dst, src]), np.arange(2 * len(src))
    rows = layouts[1].new[dst].astype(np.int64)
    order = np.lexsort((eid, src, rows))
    rows, src, eid = rows[order], src[order], eid[order]
    if relation.both:
        keep = np.ones(len(rows), bool)
        keep[1:] = (rows[1:] != rows[:-1]) | (src[1:] != src[:-1])
        rows, src, eid = rows[keep], src[keep], eid[keep]
    gid = layouts[0].new[src].astype(np.int64) + offset
    entries = {}
    bounds = layouts[1].bounds
    for part, (begin, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
        lo, hi = np.searchsorted(rows, [begin, end])
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[lo:hi] - begin, minlength=end - begin))]).astype(np.int64)
        arrays = {"indptr": indptr, "indices": gid[lo:hi].astype(id_dtype), "edge_ids": eid[lo:hi].astype(edge_id_dtype)}
        for name, values in attrs.items():
            arrays[name] = values[eid[lo:hi] % max(1, edges.num_edges)]
        for name, array in arrays.items():
            with ArrayWriter(folder, edge_path(part, index, name), array.dtype, array.shape[1:]) as writer:
                writer.write(array)
            entries[writer.path] = writer.close()
    return entries
