"""Which remote rows lie in the cache of a host, and how its budget is divided between attributes and neighbour lists."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import numpy as np

from glt_lightning.base import CacheOptions, OptionError
from glt_lightning.graph.arrays import open_array
from glt_lightning.graph.cache_choice import Candidates, choose, rows_of_share
from glt_lightning.graph.hotness import Ranked, stored_policies
from glt_lightning.graph.local_partition import LocalPartition
from glt_lightning.graph.manifest import Manifest, edge_path
from glt_lightning.graph.row_cache import cached_node_bytes, index_bytes

_LIST_BYTES = 16  # of a cached neighbour list beside its entries, for each edge type


def choose_policy(partition: LocalPartition, options: CacheOptions) -> str:
    """What ranks the nodes. Raises `OptionError` for a policy that this folder cannot serve."""
    stored = stored_policies(partition.manifest)
    if options.policy in ("auto", "dynamic"):
        return stored[0] if stored else "degree"
    if options.policy != "vip" or options.policy in stored:
        return options.policy
    has = " and ".join(stored) or "none"
    raise OptionError(
        f"cache.policy: {options.policy}, but {partition.directory} has no ranking of remote rows by {options.policy} (it has: "
        f"{has}). Choose degree, presample or dynamic, which need no ranking, or partition with partition.hotness: vip."
    )


def rows_by_ratio(manifest: Manifest, ranked: Sequence[Ranked], options: CacheOptions) -> list[int]:
    """How many nodes of each type make up ``cache.ratio``. Raises `OptionError` for an unknown node type."""
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
    return [rows_of_share(s, n, len(r.gids)) for s, n, r in zip(shares, manifest.num_nodes, ranked, strict=True)]


def rows_by_bytes(manifest: Manifest, ranked: Sequence[Ranked], budget: int) -> list[int]:
    """How many nodes of each type lie in a cache of ``budget`` bytes, its indexes included."""
    types = range(len(ranked))
    candidates = [Candidates.alike(ranked[t].hotness, cached_node_bytes(manifest, t)) for t in types]
    return choose(candidates, budget - sum(index_bytes(manifest, t) for t in types))


def bytes_for_lists(
    partition: LocalPartition,
    rows: Sequence[Ranked],
    frontier: Sequence[Ranked],
    in_frontier: np.ndarray,
    picks: float,
    id_bytes: int,
    budget: int,
) -> int:
    """Bytes for neighbour lists out of ``budget``, so that attributes and lists together save the most traffic.

    rows, frontier: remote nodes by how often batches read their attributes, and drew from their neighbours.  in_frontier: int
    [N] by gid, the latter of all nodes.  picks: neighbours drawn for a node, on average.  id_bytes: of an id in a message.
    A remote list is taken to be as long as those that are mapped here and drawn from as often.
    """
    manifest, candidates, sizes = partition.manifest, [], []
    dst = manifest.schema.destination_types()
    for t in range(len(rows)):
        row = cached_node_bytes(manifest, t)
        candidates.append(Candidates.alike(rows[t].hotness, row, row + id_bytes))
        sizes.append(id_bytes * (1 + _list_length(partition, t, in_frontier)) + _LIST_BYTES * dst.count(t))
        saved = id_bytes * (1 + dst.count(t) + picks)
        candidates.append(Candidates.alike(frontier[t].hotness, sizes[t], saved))
    lists = choose(candidates, budget)[1::2]
    return int(sum(count * size for count, size in zip(lists, sizes, strict=True)))


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
