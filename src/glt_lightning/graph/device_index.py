"""Which nodes have their attributes on the training device, so that batches leave these out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from glt_lightning.graph.manifest import Manifest
from glt_lightning.graph.shared_arrays import SharedArrays
from glt_lightning.kernels import RankedSet


class DeviceIndex:
    """The nodes of each type whose attributes are on the training device. The trainer makes it, its samplers open it by
    ``path``, and batches bring the attributes of the other nodes. Close it.

    Attributes:
        tables: For each node type a set that tells the row on the device, or None where there is none.
        path: Where samplers open it, while its maker has not closed it.
    """

    def __init__(self, arrays: SharedArrays, manifest: Manifest) -> None:
        self._arrays, self.path = arrays, arrays.path
        self.tables: list[RankedSet | None] = []
        for t, (first, count) in enumerate(zip(manifest.offsets, manifest.num_nodes, strict=False)):
            words = arrays.arrays.get(_words(t))
            self.tables.append(None if words is None else RankedSet(words, first, count))

    @classmethod
    def create(cls, manifest: Manifest, gids: Sequence[np.ndarray]) -> DeviceIndex:
        """Of these nodes, int64 [K], ascending, for each node type; row k on the device is that of the k-th.

        Raises MemoryError where the host has too little memory.
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
        """Maps what the trainer has made. Raises `DataError` where that is not what ``path`` is."""
        arrays = SharedArrays.open(path)
        arrays.close()  # the map stays
        return cls(arrays, manifest)

    def close(self) -> None:
        """Other processes can no longer open it; its memory goes with its last view. Safe to call twice."""
        self._arrays.close()


def _words(node_type: int) -> str:
    return f"members/{node_type}"
