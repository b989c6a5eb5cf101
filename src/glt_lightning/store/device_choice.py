"""Which nodes' rows the training device keeps: the hottest of all that this process's batches may contain."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from glt_lightning.data.arrays import open_array
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.manifest import node_path
from glt_lightning.ops.row_bytes import row_bytes
from glt_lightning.store.cache_choice import Ranked, count_edges, hottest_within
from glt_lightning.store.hot_lists import hot_list, stored_policies


def choose_rows(partition: LocalPartition, budget: int) -> list[np.ndarray]:
    """For each node type gids, int64 [K], ascending, whose rows take at most ``budget`` bytes on the device together.

    They rank by the hotness that the folder has, own nodes and those of other parts together, each counted for all parts
    that are mapped here; by edges where it has none.
    """
    ranked = _rank_all(partition)
    sizes = [device_node_bytes(partition, t) for t in range(len(ranked))]
    counts = hottest_within(ranked, sizes, budget)
    return [np.sort(each.gids[:k]) for each, k in zip(ranked, counts, strict=True)]


def device_node_bytes(partition: LocalPartition, node_type: int) -> int:
    """Bytes of the attributes of a node as batches have them, ``n_id`` in 8."""
    shards = [partition.node_shards(node_type, name) for name in partition.manifest.node_attrs(node_type)]
    return 8 + sum(row_bytes(s.dtype, s.row_shape) for s in shards)


def _rank_all(partition: LocalPartition) -> Sequence[Ranked]:
    """Own nodes, and of the others those that batches may want at all."""
    manifest = partition.manifest
    by_edges = None if _has_hotness(partition) else count_edges(partition)
    ranked = []
    for t, (begin, end) in enumerate(pairwise(manifest.offsets)):
        heat = _stored_heat(partition, t) if by_edges is None else by_edges[begin:end].astype(np.float64)
        may_come = heat > 0
        for p in partition.parts:
            may_come[slice(*manifest.bounds[t][p : p + 2])] = True
        rows = np.flatnonzero(may_come)
        rows = rows[np.argsort(-heat[rows], kind="stable")]
        ranked.append(Ranked(rows + begin, heat[rows]))
    return ranked


def _has_hotness(partition: LocalPartition) -> bool:
    """Whether the folder tells of all nodes how much the mapped parts want them, by one ranking."""
    manifest = partition.manifest
    stored = next(iter(manifest.hotness), "") in stored_policies(manifest)
    return node_path(0, 0, "hotness") in manifest.arrays and (manifest.num_parts == 1 or stored)


def _stored_heat(partition: LocalPartition, node_type: int) -> np.ndarray:
    """float64 [nodes of the type]: expected accesses by a batch of each mapped part, added up."""
    manifest, bounds = partition.manifest, partition.manifest.bounds[node_type]
    heat = np.zeros(manifest.num_nodes[node_type])
    for part in partition.parts:
        path = node_path(part, node_type, "hotness")
        heat[bounds[part] : bounds[part + 1]] += open_array(partition.directory, path, manifest.arrays[path])
        gids, theirs = hot_list(partition, next(iter(manifest.hotness), ""), part, node_type)
        heat[np.asarray(gids, dtype=np.int64) - manifest.offsets[node_type]] += theirs
    return heat
