"""Which nodes of parts that are not mapped here are the hottest, and how many of them fit."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from glt_lightning.data.arrays import open_array
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.manifest import Manifest, edge_path
from glt_lightning.errors import OptionError, PartitionError
from glt_lightning.ops.build import count_ids
from glt_lightning.options import CacheOptions
from glt_lightning.store.hot_lists import hot_list, stored_policies
from glt_lightning.store.row_cache import cached_node_bytes, index_bytes

_CHUNK = 1 << 22  # edges looked at together


@dataclass(frozen=True)
class Ranked:
    """Nodes of one type, hottest first. gids: int64 [K].  heat: float64 [K], how much each is wanted."""

    gids: np.ndarray
    heat: np.ndarray


def choose_policy(partition: LocalPartition, options: CacheOptions) -> str:
    """What ranks the nodes. Raises `OptionError` for a policy that this folder cannot serve."""
    stored = stored_policies(partition.manifest)
    if options.policy in ("auto", "dynamic"):
        return stored[0] if stored else "degree"
    if options.policy != "vip" or options.policy in stored:
        return options.policy
    has = " and ".join(stored) or "none"
    raise OptionError(
        f"cache.policy: {options.policy}, but {partition.directory} has no such lists of hot rows (it has: {has}). Take "
        "degree, presample or dynamic, which need none, or partition with partition.hotness: vip."
    )


def rank_stored(partition: LocalPartition, policy: str) -> list[Ranked] | None:
    """By the lists of the folder, made for the training seeds of each part; several mapped parts add up. None where the
    folder has no lists of this policy."""
    manifest = partition.manifest
    if policy not in stored_policies(manifest):
        return None
    ranked = []
    for t in range(len(manifest.num_nodes)):
        lists = [hot_list(partition, policy, part, t) for part in partition.parts]
        gids = np.concatenate([np.asarray(g, dtype=np.int64) for g, _ in lists])
        heat = np.concatenate([np.asarray(h, dtype=np.float64) for _, h in lists])
        if len(lists) > 1:
            gids, inverse = np.unique(gids, return_inverse=True)
            heat = np.bincount(inverse, heat, minlength=len(gids))
            ranked.append(_hottest_first(partition, t, gids, heat))
        else:
            ranked.append(Ranked(gids, heat))
    return ranked


def rank_by_edges(partition: LocalPartition) -> list[Ranked]:
    """By the number of edges of the mapped parts that come from each node."""
    return rank_by_counts(partition, count_edges(partition))


def count_edges(partition: LocalPartition) -> np.ndarray:
    """int64 [N]: for each node of the graph, by gid, the number of edges of the mapped parts that come from it."""
    manifest = partition.manifest
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
    return counts


def rank_by_counts(partition: LocalPartition, counts: np.ndarray) -> list[Ranked]:
    """By a number for each node of the graph, int [N] by gid; those with 0 are left out."""
    ranked = []
    for t, (begin, end) in enumerate(pairwise(partition.manifest.offsets)):
        gids = np.flatnonzero(counts[begin:end]) + begin
        ranked.append(_hottest_first(partition, t, gids, counts[gids].astype(np.float64)))
    return ranked


def _hottest_first(partition: LocalPartition, node_type: int, gids: np.ndarray, heat: np.ndarray) -> Ranked:
    """Of ascending gids those that are not mapped here."""
    manifest = partition.manifest
    bounds = np.asarray(manifest.bounds[node_type]) + manifest.offsets[node_type]
    foreign = ~np.isin(np.searchsorted(bounds, gids, side="right") - 1, partition.parts)
    gids, heat = gids[foreign], heat[foreign]
    order = np.argsort(-heat, kind="stable")
    return Ranked(gids[order], heat[order])


def within_ratio(manifest: Manifest, ranked: Sequence[Ranked], options: CacheOptions) -> list[int]:
    """How many nodes of each type make up ``options.ratio``. Raises `OptionError` for an unknown node type."""
    names, ratio = manifest.schema.node_types, options.ratio
    if isinstance(ratio, dict):
        for name in ratio:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f" Did you mean {near[0]}?" if near else ""
                raise OptionError(f"cache.ratio: no node type {name!r}; the graph has {', '.join(names)}.{hint}")
        shares = [ratio.get(name, 0.0) for name in names]
    else:
        shares = [ratio or 0.0] * len(names)
    return [min(int(s * n), len(r.gids)) for s, n, r in zip(shares, manifest.num_nodes, ranked, strict=True)]


def within_bytes(manifest: Manifest, ranked: Sequence[Ranked], budget: int) -> list[int]:
    """How many nodes of each type, so that the heat per byte is the most."""
    types = range(len(ranked))
    budget -= sum(index_bytes(manifest, t) for t in types)
    return hottest_within(ranked, [cached_node_bytes(manifest, t) for t in types], budget)


def hottest_within(ranked: Sequence[Ranked], sizes: Sequence[int], budget: int) -> list[int]:
    """The same where a row of each node type takes ``sizes`` bytes."""
    heat = np.concatenate([r.heat / size for r, size in zip(ranked, sizes, strict=True)])
    of_type = np.repeat(np.arange(len(ranked)), [len(r.gids) for r in ranked])
    order = np.argsort(-heat, kind="stable")  # keeps the order within a type
    fits = np.cumsum(np.asarray(sizes)[of_type[order]]) <= budget
    counts: list[int] = np.bincount(of_type[order[: np.count_nonzero(fits)]], minlength=len(ranked)).tolist()
    return counts
