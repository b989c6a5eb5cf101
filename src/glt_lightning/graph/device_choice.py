"""Which rows lie in the memory of a GPU: of one that samples, and of one that completes batches which the CPU sampled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from glt_lightning.graph.cache_choice import Candidates, choose
from glt_lightning.graph.hotness import edge_blocks, node_blocks, rank_all
from glt_lightning.graph.local_partition import LocalPartition
from glt_lightning.graph.manifest import Manifest, edge_path, node_path
from glt_lightning.graph.placement import BatchArrays
from glt_lightning.kernels import EdgeTypeArrays, row_bytes


@dataclass(frozen=True)
class DeviceLists:
    """rows: int64 [T, P], of how many first nodes of each type and part the neighbour lists are on the device.  all_ids,
    all_pointers: whether the user ids, and the row pointers, of every node are on the device, or only those of the same nodes."""

    rows: np.ndarray
    all_ids: bool = False
    all_pointers: bool = False


@dataclass(frozen=True)
class DeviceAttributes:
    """nodes: int64 [T, P], edges: int64 [R, P]: how many first rows have their attributes on the device."""

    nodes: np.ndarray
    edges: np.ndarray


def choose_nodes(partition: LocalPartition, budget: int) -> list[np.ndarray]:
    """For each node type gids, int64 [K], ascending, whose attributes take at most ``budget`` bytes on the device together.

    Nodes of the mapped parts and remote ones rank together, by what they are for all parts that are mapped here.
    """
    ranked = rank_all(partition)
    candidates = [Candidates.alike(each.hotness, device_node_bytes(partition, t)) for t, each in enumerate(ranked)]
    return [np.sort(each.gids[:k]) for each, k in zip(ranked, choose(candidates, budget), strict=True)]


def device_node_bytes(partition: LocalPartition, node_type: int) -> int:
    """Bytes of the attributes of a node as batches have them, ``n_id`` in 8."""
    shards = [partition.node_shards(node_type, name) for name in partition.manifest.node_attrs(node_type)]
    return 8 + sum(row_bytes(s.dtype, s.row_shape) for s in shards)


def choose_lists(batch: BatchArrays, budget: int) -> DeviceLists:
    """The neighbour lists that are drawn from most for each of ``budget`` bytes.

    A batch looks up the user ids of all its nodes, and a row pointer before any neighbour, and both are small beside the
    lists. So all ids come first where they take at most half of the budget, and then all pointers in the same way.
    """
    partition, view = batch.partition, batch.view()
    manifest = partition.manifest
    types = range(len(manifest.num_nodes))
    lists: dict[tuple[int, int], list[EdgeTypeArrays]] = {}
    for t in types:
        for p in partition.parts:
            arrays = [view.arrays(r, p) for r, of in enumerate(view.dst_types.tolist()) if of == t]
            lists[t, p] = [each for each in arrays if each is not None]
    ids = view.id_bytes * sum(manifest.rows(p, t) for t, p in lists)
    all_ids = 2 * ids <= budget
    budget -= ids if all_ids else 0
    pointers = sum(each.indptr.nbytes for arrays in lists.values() for each in arrays)
    all_pointers = 2 * pointers <= budget
    budget -= pointers if all_pointers else 0
    candidates = []
    for (t, p), here in lists.items():
        blocks, each_row = node_blocks(partition, p, t), 0 if all_ids else view.id_bytes
        nbytes = partial(_list_bytes, here, each_row, not all_pointers)
        candidates.append(Candidates(blocks.ends, blocks.accesses, nbytes))
    rows = np.zeros((len(types), manifest.num_parts), dtype=np.int64)
    for at, count in zip(lists, choose(candidates, budget), strict=True):
        rows[at] = count
    return DeviceLists(rows, all_ids, all_pointers)


def choose_attributes(batch: BatchArrays, budget: int) -> DeviceAttributes:
    """The rows that are gathered most for each of ``budget`` bytes. A node's attributes go together, and so do an edge's."""
    partition = batch.partition
    manifest, schema = partition.manifest, partition.schema
    nodes = np.zeros((len(schema.node_types), manifest.num_parts), dtype=np.int64)
    edges = np.zeros((len(schema.edge_types), manifest.num_parts), dtype=np.int64)
    slots, candidates = [], []
    for p in partition.parts:
        for t in range(len(nodes)):
            slots.append(nodes[t, p : p + 1])
            blocks = node_blocks(partition, p, t)
            size = _bytes_of(manifest, (node_path(p, t, name) for name in manifest.node_attrs(t)))
            candidates.append(Candidates(blocks.ends, blocks.accesses, partial(np.multiply, size)))
        for r in range(len(edges) if batch.edges else 0):
            slots.append(edges[r, p : p + 1])
            blocks = edge_blocks(partition, p, r)
            size = _bytes_of(manifest, (edge_path(p, r, name) for name in batch.edge_names(r)))
            candidates.append(Candidates(blocks.ends, blocks.accesses, partial(np.multiply, size)))
    for slot, count in zip(slots, choose(candidates, budget), strict=True):
        slot[0] = count
    return DeviceAttributes(nodes, edges)


def _list_bytes(lists: Sequence[EdgeTypeArrays], id_bytes: int, pointers: bool, rows: np.ndarray) -> np.ndarray:
    """Of the first neighbour lists, with user ids of ``id_bytes``, and with row pointers or without."""
    nbytes = rows * id_bytes
    for each in lists:
        entry = sum(array.itemsize for array in (each.indices, each.sums, each.times) if array is not None)
        nbytes += each.indptr[rows] * entry
        if pointers:
            nbytes += (rows + (rows > 0)) * each.indptr.itemsize
    return nbytes


def _bytes_of(manifest: Manifest, paths: Iterable[str]) -> int:
    """Bytes of a row of all these arrays."""
    return sum(row_bytes(e.dtype, e.shape[1:]) for e in (manifest.arrays[path] for path in paths))
