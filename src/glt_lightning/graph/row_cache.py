"""Cached remote rows of a host: their index and their attributes. One copy for all processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from glt_lightning.graph.manifest import Manifest, node_path
from glt_lightning.graph.shared_arrays import SharedArrays
from glt_lightning.kernels import RankedSet, row_bytes


class CachedRows:
    """The cached rows of one node type. rows: attribute, as stored, or ``n_id`` -> [K, ...], in the order of the gids."""

    def __init__(self, index: RankedSet, rows: Mapping[str, np.ndarray]) -> None:
        self.rows, self._index = rows, index

    def __len__(self) -> int:
        return len(self.rows["n_id"])

    def find(self, gids: np.ndarray) -> np.ndarray:
        """Returns int32 [n]: the row of each of ``gids`` (int64 [n]), -1 for one that is not cached."""
        return self._index.find(gids)


class RowCache:
    """The cached rows of all node types: built and filled by one process of a host, opened by the other processes.

    Attributes:
        tables: For each node type its rows, or None if none are cached.
        arrays: The memory that holds them.
    """

    def __init__(self, arrays: SharedArrays, manifest: Manifest) -> None:
        self.arrays = arrays
        self.tables = [self._table(t, manifest) for t in range(len(manifest.num_nodes))]

    def _table(self, node_type: int, manifest: Manifest) -> CachedRows | None:
        arrays, prefix = self.arrays.arrays, f"rows/{node_type}/"
        if _words(node_type) not in arrays:
            return None
        index = RankedSet(arrays[_words(node_type)], manifest.offsets[node_type], manifest.num_nodes[node_type])
        rows = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        return CachedRows(index, rows)

    @classmethod
    def create(cls, manifest: Manifest, gids: Sequence[np.ndarray]) -> RowCache:
        """Makes a cache whose attributes are still to be filled in. gids: for each node type int64 [K], ascending.

        Raises MemoryError if the host has too little memory.
        """
        shapes: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        for t, nodes in enumerate(gids):
            if len(nodes):
                shapes[_words(t)] = (np.dtype(np.uint64), (RankedSet.words_for(manifest.num_nodes[t]),))
                for name, (dtype, shape) in stored_rows(manifest, t).items():
                    shapes[f"rows/{t}/{name}"] = (dtype, (len(nodes), *shape))
        arrays = SharedArrays.create(shapes, {})
        for t, nodes in enumerate(gids):
            if len(nodes):
                RankedSet.build(nodes, manifest.offsets[t], manifest.num_nodes[t], arrays.arrays[_words(t)])
        return cls(arrays, manifest)

    @classmethod
    def open(cls, path: str, manifest: Manifest) -> RowCache:
        """Maps the finished cache of another process of the host. Raises `DataError` if it is damaged."""
        return cls(SharedArrays.open(path), manifest)

    @property
    def nbytes(self) -> int:
        return self.arrays.nbytes

    def close(self) -> None:
        self.arrays.close()


def stored_rows(manifest: Manifest, node_type: int) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """Returns for ``n_id`` and the attributes of a node type the dtype and shape of one row, as stored."""
    found = {}
    for name in ("n_id", *manifest.node_attrs(node_type)):
        entry = manifest.arrays[node_path(0, node_type, name)]
        found[name] = np.dtype(entry.dtype), tuple(entry.shape[1:])
    return found


def cached_node_bytes(manifest: Manifest, node_type: int) -> int:
    """Returns the bytes of a node of a type in a cache: its user id and its attributes, as stored."""
    return sum(row_bytes(dtype, shape) for dtype, shape in stored_rows(manifest, node_type).values())


def index_bytes(manifest: Manifest, node_type: int) -> int:
    """Returns the bytes of the index by which the cached rows of a node type are found."""
    return 8 * RankedSet.words_for(manifest.num_nodes[node_type])


def _words(node_type: int) -> str:
    """Returns the name of the array with the index of a node type."""
    return f"members/{node_type}"
