"""The remote cache of a host: rows and neighbour lists of parts that other hosts own. One copy for all processes of a host."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glt_lightning.base import CacheOptions, OptionError
from glt_lightning.graph.cache_choice import Candidates, Ranked, choose, rank_by_edges, rank_stored
from glt_lightning.graph.local_partition import LocalPartition
from glt_lightning.graph.manifest import Manifest, node_path
from glt_lightning.graph.overlay import GrownPartition
from glt_lightning.graph.shared_arrays import SharedArrays
from glt_lightning.graph.topology_cache import TopologyCache
from glt_lightning.kernels import RankedSet, row_bytes

_log = logging.getLogger(__name__)


class CacheChoice:
    """The choice of the nodes in the cache of a host: nodes of remote parts, ranked by a policy.

    Attributes:
        policy: The policy.
        ranked: For each node type its remote nodes, hottest first.
    """

    def __init__(self, manifest: Manifest, policy: str, ranked: Sequence[Ranked]) -> None:
        self._manifest, self.policy, self.ranked = manifest, policy, ranked

    @classmethod
    def by(cls, partition: LocalPartition, options: CacheOptions) -> CacheChoice:
        """Ranks the nodes by the policy of the options; new nodes of an overlay are not ranked. Raises `OptionError` for a policy
        that this folder does not have."""
        if isinstance(partition, GrownPartition):
            old = cls.by(partition.base, options)
            shifted = zip(old.ranked, partition.shifts, strict=True)
            ranked = [replace(each, gids=each.gids + shift) for each, shift in shifted]
            return cls(partition.manifest, old.policy, ranked)
        policy = _policy(partition, options)
        choice = cls.stored(partition, policy)
        if choice is not None and not any(len(each.gids) for each in choice.ranked):
            # The stored ranking starts from the training seeds of each part, and these parts have none.
            _log.warning(
                "cache.policy: %s: the partition ranks no remote rows for parts %s, which have no training seeds. Rows are "
                "ranked by degree instead.",
                options.policy if options.policy == policy else f"{options.policy} ({policy})",
                list(partition.parts),
            )
            policy, choice = "degree", None
        return cls(partition.manifest, policy, rank_by_edges(partition)) if choice is None else choice

    @classmethod
    def stored(cls, partition: LocalPartition, policy: str) -> CacheChoice | None:
        """Ranks the nodes by the lists of the folder; None if it has none of this policy."""
        ranked = rank_stored(partition, policy)
        return None if ranked is None else cls(partition.manifest, policy, ranked)

    def nodes(self, options: CacheOptions) -> list[np.ndarray]:
        """Chooses the nodes to cache: for each node type their gids, int64, ascending. Raises `OptionError` for an unknown node
        type."""
        budget = options.budget
        counts = self._by_ratio(options) if budget is None else self._by_bytes(budget - options.topology_bytes)
        return [np.sort(each.gids[:k]) for each, k in zip(self.ranked, counts, strict=True)]

    @staticmethod
    def rows_of_share(share: float, num_rows: int, ranked: int) -> int:
        """Returns the number of rows in a share of ``num_rows``, of which only ``ranked`` may be taken."""
        return min(int(share * num_rows), ranked)

    def _by_ratio(self, options: CacheOptions) -> list[int]:
        """Returns the number of nodes of each type for ``cache.ratio``."""
        names, ratio = self._manifest.schema.node_types, options.ratio
        if isinstance(ratio, dict):
            for name in ratio:
                if name not in names:
                    near = difflib.get_close_matches(name, names, n=1)
                    hint = f" Did you mean {near[0]}?" if near else ""
                    raise OptionError(f"cache.ratio: no node type {name!r}; the graph has {', '.join(names)}.{hint}")
            shares = [ratio.get(name, 0.0) for name in names]
        else:
            shares = [ratio or 0.0] * len(names)
        each = zip(shares, self._manifest.num_nodes, self.ranked, strict=True)
        return [self.rows_of_share(s, n, len(r.gids)) for s, n, r in each]

    def _by_bytes(self, budget: int) -> list[int]:
        """Returns the number of nodes of each type for a cache of ``budget`` bytes, its indexes included."""
        manifest, types = self._manifest, range(len(self.ranked))
        candidates = [Candidates.alike(self.ranked[t].hotness, cached_node_bytes(manifest, t)) for t in types]
        return choose(candidates, budget - sum(index_bytes(manifest, t) for t in types))


def _policy(partition: LocalPartition, options: CacheOptions) -> str:
    """Returns the policy that ranks the nodes. Raises `OptionError` for a policy that this folder does not have."""
    stored = partition.manifest.remote_policies
    if options.policy == "auto":
        return stored[0] if stored else "degree"
    if options.policy != "vip" or options.policy in stored:
        return options.policy
    has = " and ".join(stored) or "none"
    raise OptionError(
        f"cache.policy: {options.policy}, but {partition.directory} has no ranking of remote rows by {options.policy} (it has: "
        f"{has}). Choose degree, which needs no ranking, or partition with partition.hotness: vip."
    )


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


@dataclass(frozen=True)
class RemoteCache:
    """The cached rows and neighbour lists of remote parts. rows: attributes of nodes.  topology: neighbour lists. Close it."""

    rows: RowCache | None = None
    topology: TopologyCache | None = None

    @classmethod
    def reserved(cls, manifest: Manifest, gids: Sequence[np.ndarray]) -> RemoteCache:
        """Makes a cache whose rows are still to be filled in. gids: as in `RowCache.create`, and raises as that."""
        return cls(RowCache.create(manifest, gids))

    @classmethod
    def from_handle(cls, handle: Mapping[str, Any], manifest: Manifest) -> RemoteCache:
        """Maps the cache of a `handle`. Raises `DataError` for one that is damaged."""
        with ExitStack() as opened:
            rows = topology = None
            if handle["rows"] is not None:
                rows = RowCache.open(handle["rows"], manifest)
                opened.callback(rows.close)
            if handle["topology"] is not None:
                topology = TopologyCache.open(handle["topology"], manifest)
            opened.pop_all()
        return cls(rows, topology)

    @property
    def handle(self) -> dict[str, Any]:
        """The handle with which the processes of a host open the cache, as JSON values."""
        return {
            "rows": None if self.rows is None else self.rows.arrays.path,
            "topology": None if self.topology is None else self.topology.arrays.path,
        }

    def close(self) -> None:
        for each in (self.rows, self.topology):
            if each is not None:
                each.close()
