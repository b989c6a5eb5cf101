"""The choice of the rows in the memory of a GPU: one that samples, or one that completes batches which the CPU sampled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import gcd
from pathlib import Path

import numpy as np

from glt_lightning.graph.cache_choice import Candidates, choose, edge_blocks, node_blocks, rank_all
from glt_lightning.graph.local_partition import LocalPartition
from glt_lightning.graph.manifest import Manifest, edge_path, node_path
from glt_lightning.graph.placement import BatchArrays
from glt_lightning.graph.shared_arrays import SharedArrays
from glt_lightning.kernels import EdgeTypeArrays, RankedSet, row_bytes


@dataclass(frozen=True)
class DeviceLists:
    """The neighbour lists on a device. rows: int64 [T, P], the number of first nodes of each type and part whose lists are there.
    all_ids, all_pointers: the user ids, and the row pointers, of every node are there, and not only those of the same nodes."""

    rows: np.ndarray
    all_ids: bool = False
    all_pointers: bool = False


@dataclass(frozen=True)
class DeviceAttributes:
    """The attributes on a device. nodes: int64 [T, P], edges: int64 [R, P], the numbers of first rows that are there."""

    nodes: np.ndarray
    edges: np.ndarray


def choose_lists(batch: BatchArrays, budget: int) -> DeviceLists:
    """Chooses the neighbour lists with the most draws per byte, up to ``budget`` bytes.

    A batch looks up the user ids of all its nodes, and a row pointer before any neighbour, and both are small in comparison
    with the lists. So all ids are taken first if they take at most half of the budget, then all pointers in the same way.
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
    """Chooses the rows with the most accesses per byte, up to ``budget`` bytes. All attributes of a node, or of an edge, are
    taken together."""
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
    """Returns the bytes of the first neighbour lists, with user ids of ``id_bytes`` each, and with row pointers or without."""
    nbytes = rows * id_bytes
    for each in lists:
        entry = sum(array.itemsize for array in (each.indices, each.sums, each.times) if array is not None)
        nbytes += each.indptr[rows] * entry
        if pointers:
            nbytes += (rows + (rows > 0)) * each.indptr.itemsize
    return nbytes


def _bytes_of(manifest: Manifest, paths: Iterable[str]) -> int:
    """Returns the bytes of a row of all these arrays."""
    return sum(row_bytes(e.dtype, e.shape[1:]) for e in (manifest.arrays[path] for path in paths))


# Which nodes have their attributes on the training device, so that batches leave these out.


class DeviceIndex:
    """The nodes of each type whose attributes are on the training device. The trainer makes it, its samplers open it by
    ``path``, and batches have the attributes of the other nodes. Close it.

    Attributes:
        tables: For each node type the set of its nodes on the device, with their rows there; None if there are none.
        path: The path at which samplers open it, until the trainer closes it.
    """

    def __init__(self, arrays: SharedArrays, manifest: Manifest) -> None:
        self._arrays, self.path = arrays, arrays.path
        self.tables: list[RankedSet | None] = []
        for t, (first, count) in enumerate(zip(manifest.offsets, manifest.num_nodes, strict=False)):
            words = arrays.arrays.get(_words(t))
            self.tables.append(None if words is None else RankedSet(words, first, count))

    @staticmethod
    def choose(partition: LocalPartition, budget: int) -> tuple[list[np.ndarray], int]:
        """Chooses the nodes whose attributes lie on the device, in at most ``budget`` bytes. Returns for each node type their
        gids, int64 [K], ascending, and the bytes that they take.

        Nodes of the mapped parts and remote nodes are ranked together, by their hotness for all parts that are mapped here.
        """
        ranked = rank_all(partition)
        sizes = [node_bytes(partition, t) for t in range(len(ranked))]
        candidates = [Candidates.alike(each.hotness, size) for each, size in zip(ranked, sizes, strict=True)]
        counts = choose(candidates, budget)
        gids = [np.sort(each.gids[:k]) for each, k in zip(ranked, counts, strict=True)]
        return gids, sum(k * size for k, size in zip(counts, sizes, strict=True))

    @classmethod
    def create(cls, manifest: Manifest, gids: Sequence[np.ndarray]) -> DeviceIndex:
        """Makes the index. gids: for each node type int64 [K], ascending; row k on the device is that of the k-th.

        Raises MemoryError if the host has too little memory.
        """
        chosen = [t for t, nodes in enumerate(gids) if len(nodes)]
        shapes = {_words(t): (np.dtype(np.uint64), (RankedSet.words_for(manifest.num_nodes[t]),)) for t in chosen}
        arrays = SharedArrays.create(shapes, {"options_hash": manifest.options_hash})
        for t in chosen:
            RankedSet.build(gids[t], manifest.offsets[t], manifest.num_nodes[t], arrays.arrays[_words(t)])
        arrays.finish()
        return cls(arrays, manifest)

    @classmethod
    def open(cls, path: str | Path, manifest: Manifest) -> DeviceIndex:
        """Maps the index that the trainer has made. Raises `DataError` if there is no index at ``path``."""
        arrays = SharedArrays.open(path)
        arrays.close()  # the map stays
        return cls(arrays, manifest)

    def close(self) -> None:
        """Closes the index: other processes can no longer open it. Its memory is freed with its last view. Safe to call twice."""
        self._arrays.close()


def node_bytes(partition: LocalPartition, node_type: int) -> int:
    """Returns the bytes of the attributes of a node in batches, 8 of them for ``n_id``."""
    shards = [partition.node_shards(node_type, name) for name in partition.manifest.node_attrs(node_type)]
    return 8 + sum(row_bytes(s.dtype, s.row_shape) for s in shards)


def _words(node_type: int) -> str:
    return f"members/{node_type}"


# How far apart rows lie in memory of the host that a GPU reads over the bus.


LINE = 128  # bytes: a GPU asks the bus for (sectors of) one line at a time, and lines begin at multiples of it


def bus_stride(row_bytes: int) -> int:
    """Returns the bytes from the beginning of a row to that of the next: ``row_bytes``, or more if padding pays.

    Padding pays if it reduces the lines that are read by a tenth, or by as large a share as the memory grows, and if the memory
    grows by at most a third, since it is page-locked, once per host. The module has a table.
    """
    # a power of two below a line divides it, so that no row lies in two
    unit = 1 << max(0, min(row_bytes, LINE) - 1).bit_length()
    padded = -(-row_bytes // unit) * unit
    padding, lines = padded - row_bytes, lines_read(row_bytes, row_bytes)
    spared = lines - lines_read(row_bytes, padded)
    pays = 10 * spared >= lines or spared * row_bytes >= padding * lines
    return padded if pays and 3 * padding <= row_bytes else row_bytes


def lines_read(row_bytes: int, stride: int) -> float:
    """Returns the mean number of lines that a row lies in, for rows ``stride`` bytes apart, the first at the start of a line."""
    if row_bytes == 0:
        return 0
    step = gcd(stride, LINE)  # rows begin at each multiple of this in a line, equally often
    return (LINE - step + -(-row_bytes // step) * step) / LINE
