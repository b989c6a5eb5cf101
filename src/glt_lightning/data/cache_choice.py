"""Which rows of parts that are not mapped here are worth keeping."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from glt_lightning.data.arrays import open_array
from glt_lightning.data.hot_lists import hot_list, stored_policies
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.manifest import edge_path
from glt_lightning.data.row_cache import index_bytes, row_bytes
from glt_lightning.errors import OptionError, PartitionError
from glt_lightning.ops.build import count_ids
from glt_lightning.options import CacheOptions

_CHUNK = 1 << 22  # edges looked at together

Ranked = Sequence[tuple[np.ndarray, np.ndarray]]  # for each node type: gids, and how hot each is


@dataclass(frozen=True)
class CacheChoice:
    """policy: that ranked them.  gids: for each node type those to keep, int64, ascending."""

    policy: str
    gids: Sequence[np.ndarray]

    @property
    def rows(self) -> int:
        return sum(len(gids) for gids in self.gids)


def choose_rows(partition: LocalPartition, options: CacheOptions) -> CacheChoice:
    """The hottest rows of other parts, as many as the options have room for.

    The ranking is the folder's, made for the seeds of each part; several mapped parts add up. ``degree`` without a list
    in the folder counts the edges of the mapped parts that come from each node.

    Raises `OptionError` for a policy that the folder has no lists of, or a node type that the graph does not have.
    """
    policy = _policy(partition, options)
    stored = policy in stored_policies(partition.manifest)
    ranked = _from_lists(partition, policy) if stored else _from_edges(partition)
    if options.budget is not None:
        counts = _within_bytes(partition, ranked, options.budget)
    else:
        counts = _within_ratio(partition, ranked, options)
    return CacheChoice(policy, [np.sort(gids[:k]) for (gids, _), k in zip(ranked, counts, strict=True)])


def _policy(partition: LocalPartition, options: CacheOptions) -> str:
    stored = stored_policies(partition.manifest)
    if options.policy == "auto":
        return stored[0] if stored else "degree"
    if options.policy in stored or options.policy == "degree":
        return options.policy
    has = " and ".join(stored) or "none"
    raise OptionError(
        f"cache.policy: {options.policy}, but {partition.directory} has no such lists of hot rows (it has: {has}). Take "
        f"{', '.join([*stored, 'degree', 'dynamic'])}, or partition with partition.hotness: {options.policy}."
    )


def _from_lists(partition: LocalPartition, policy: str) -> Ranked:
    manifest, ranked = partition.manifest, []
    for t in range(len(manifest.num_nodes)):
        lists = [hot_list(partition, policy, part, t) for part in partition.parts]
        gids = np.concatenate([np.asarray(g, dtype=np.int64) for g, _ in lists])
        values = np.concatenate([np.asarray(h, dtype=np.float64) for _, h in lists])
        if len(lists) > 1:
            gids, inverse = np.unique(gids, return_inverse=True)
            values = np.bincount(inverse, values, minlength=len(gids))
            foreign = ~_mapped(partition, t, gids)
            gids, values = gids[foreign], values[foreign]
            order = np.argsort(-values, kind="stable")
            gids, values = gids[order], values[order]
        ranked.append((gids, values))
    return ranked


def _from_edges(partition: LocalPartition) -> Ranked:
    """By the number of edges of the mapped parts that come from each node."""
    manifest, offsets = partition.manifest, partition.manifest.offsets
    counts = np.zeros(manifest.total_nodes, dtype=np.int64)
    for part in partition.parts:
        for r in range(len(manifest.schema.edge_types)):
            path = edge_path(part, r, "indices")
            indices = open_array(partition.directory, path, manifest.arrays[path])
            for first in range(0, len(indices), _CHUNK):
                bad = count_ids(indices[first : first + _CHUNK].astype(np.int64), counts)
                if bad is not None:
                    raise PartitionError(
                        f"{partition.directory / path}: damaged: entry {first + bad} is no node. Delete the partition "
                        "folder and partition again."
                    )
    ranked = []
    for t, (begin, end) in enumerate(pairwise(offsets)):
        gids = np.flatnonzero(counts[begin:end]) + begin
        gids = gids[~_mapped(partition, t, gids)]
        gids = gids[np.argsort(-counts[gids], kind="stable")]
        ranked.append((gids, counts[gids].astype(np.float64)))
    return ranked


def _mapped(partition: LocalPartition, node_type: int, gids: np.ndarray) -> np.ndarray:
    """bool [n]: whether a node's part is mapped here."""
    manifest = partition.manifest
    bounds = np.asarray(manifest.bounds[node_type]) + manifest.offsets[node_type]
    part = np.searchsorted(bounds, gids, side="right") - 1
    return np.isin(part, partition.parts)


def _within_ratio(partition: LocalPartition, ranked: Ranked, options: CacheOptions) -> list[int]:
    names, ratio = partition.schema.node_types, options.ratio
    if isinstance(ratio, dict):
        for name in ratio:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f" Did you mean {near[0]}?" if near else ""
                raise OptionError(f"cache.ratio: no node type {name!r}; the graph has {', '.join(names)}.{hint}")
        shares = [ratio.get(name, 0.0) for name in names]
    else:
        shares = [ratio or 0.0] * len(names)
    counts = partition.manifest.num_nodes
    return [min(int(s * n), len(gids)) for s, n, (gids, _) in zip(shares, counts, ranked, strict=True)]


def _within_bytes(partition: LocalPartition, ranked: Ranked, budget: int) -> list[int]:
    """How many rows of each type, so that the heat per byte is the most."""
    sizes = [row_bytes(partition.manifest, t) for t in range(len(ranked))]
    budget -= sum(index_bytes(partition.manifest, t) for t in range(len(ranked)))
    heat = np.concatenate([values / size for (_, values), size in zip(ranked, sizes, strict=True)])
    of_type = np.repeat(np.arange(len(ranked)), [len(gids) for gids, _ in ranked])
    order = np.argsort(-heat, kind="stable")  # keeps the order within a type
    fits = np.cumsum(np.asarray(sizes)[of_type[order]]) <= budget
    return np.bincount(of_type[order[: np.count_nonzero(fits)]], minlength=len(ranked)).tolist()
