"""How a budget is best divided between attributes and neighbour lists: by the traffic that each byte saves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glt_lightning.cluster.presample import Presampled
from glt_lightning.data.arrays import open_array
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.manifest import edge_path
from glt_lightning.sampler.source import wire_dtype
from glt_lightning.store.cache_choice import Ranked
from glt_lightning.store.row_cache import cached_node_bytes

_ROW = 16  # bytes of a kept neighbour list beside its entries, for each edge type


def divide(
    partition: LocalPartition, rows: Sequence[Ranked], frontier: Sequence[Ranked], counted: Presampled, budget: int
) -> int:
    """Bytes for neighbour lists, out of ``budget``.

    rows, frontier: nodes of others by how often batches had their attributes, and drew from their neighbours. A list is
    taken to be as long as those that are mapped here and drawn from as often.
    """
    manifest = partition.manifest
    id_bytes, dst = wire_dtype(manifest).itemsize, manifest.schema.destination_types()
    gains: list[np.ndarray] = []
    sizes: list[np.ndarray] = []
    is_list: list[np.ndarray] = []
    for t in range(len(rows)):
        edge_types = dst.count(t)
        each = cached_node_bytes(manifest, t)
        gains.append(rows[t].heat * (each + id_bytes))
        sizes.append(np.full(len(rows[t].gids), float(each)))
        is_list.append(np.zeros(len(rows[t].gids), dtype=bool))
        length = _list_length(partition, t, counted.in_frontier)
        gains.append(frontier[t].heat * id_bytes * (1 + edge_types + counted.picks))
        sizes.append(np.full(len(frontier[t].gids), id_bytes * (1 + length) + _ROW * edge_types))
        is_list.append(np.ones(len(frontier[t].gids), dtype=bool))
    gain, size, lists = np.concatenate(gains), np.concatenate(sizes), np.concatenate(is_list)
    order = np.argsort(-gain / size, kind="stable")
    fits = np.cumsum(size[order]) <= budget
    return int(size[order][fits & lists[order]].sum())


def _list_length(partition: LocalPartition, node_type: int, in_frontier: np.ndarray) -> float:
    """Neighbours of a mapped node of the type, over all edge types, on average over those that are drawn from."""
    manifest, total, weight = partition.manifest, 0.0, 0
    offset, view = manifest.offsets[node_type], partition.view
    for part in partition.parts:
        begin, end = (offset + b for b in manifest.bounds[node_type][part : part + 2])
        counts = in_frontier[begin:end].astype(np.int64)
        weight += int(counts.sum())
        for r, t in enumerate(view.dst_types.tolist()):
            if t == node_type:
                path = edge_path(part, r, "indptr")
                indptr = open_array(partition.directory, path, manifest.arrays[path])
                total += float((np.diff(indptr) * counts).sum())
    return total / max(1, weight)
