"""The remote rows that a cache of a part would hold, hottest first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glt_lightning.graph import LocalPartition, Manifest, node_path, remote_hotness, rows_of_share
from glt_lightning.kernels import row_bytes
from glt_lightning.sampling import node_names

PRESAMPLED = "presampled"


class RemoteRanking:
    """The remote nodes to cache for one part, per node type, hottest first.

    lists: T arrays of gids [K_t].
    """

    def __init__(self, manifest: Manifest, lists: Sequence[np.ndarray]) -> None:
        self._manifest, self._lists = manifest, lists
        self._none = np.iinfo(np.int32).max
        self._rank = []  # position of each node of a type in the list
        for n, gids, first in zip(manifest.num_nodes, lists, manifest.offsets, strict=False):
            rank = np.full(n, self._none, dtype=np.int32)
            rank[np.asarray(gids) - first] = np.arange(len(gids), dtype=np.int32)
            self._rank.append(rank)

    def cached(self, node_type: int, gids: np.ndarray, ratio: float) -> np.ndarray:
        """bool [n]: whether nodes of a type are in a cache with this share of the nodes of each type."""
        ranks = self._rank[node_type][gids - self._manifest.offsets[node_type]]
        found: np.ndarray = ranks < self.sizes(ratio)[node_type]
        return found

    def sizes(self, ratio: float) -> list[int]:
        """Number of nodes of each type in such a cache: fewer than the share if the list is shorter."""
        return [
            rows_of_share(ratio, n, len(gids)) for n, gids in zip(self._manifest.num_nodes, self._lists, strict=True)
        ]


def stored_lists(partition: LocalPartition, policy: str, part: int) -> RemoteRanking:
    """The lists that the partitioner wrote."""
    types = range(len(partition.manifest.num_nodes))
    return RemoteRanking(partition.manifest, [remote_hotness(partition, policy, part, t)[0] for t in types])


def presampled_lists(manifest: Manifest, part: int, counts: Sequence[np.ndarray], ratio: float) -> RemoteRanking:
    """Ranks the nodes of other parts by how many batches they were in, then as their parts rank them.

    counts: T arrays int32 [N_t], batches by number in the type.  ratio: the lists are long enough for such a cache.
    """
    lists = []
    for seen, bounds, offset in zip(counts, manifest.bounds, manifest.offsets, strict=False):
        nodes = np.arange(len(seen), dtype=np.int64)
        row = nodes - np.repeat(bounds[:-1], np.diff(bounds))  # the hottest of a part come first
        remote = np.delete(nodes, slice(bounds[part], bounds[part + 1]))
        hottest = np.lexsort((row[remote], -seen[remote]))[: rows_of_share(ratio, len(seen), len(remote))]
        lists.append(remote[hottest] + offset)
    return RemoteRanking(manifest, lists)


def cached_widths(manifest: Manifest) -> list[int]:
    """Bytes of a node's row in such a cache, by type: its id and attributes."""
    widths = []
    for t, names in enumerate(node_names(manifest)):
        entries = [manifest.arrays[node_path(0, t, name)] for name in ("n_id", *names)]
        widths.append(sum(row_bytes(entry.dtype, entry.shape[1:]) for entry in entries))
    return widths
