"""The choice of the remote rows in the cache of a host."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from glt_lightning.base import CacheOptions, OptionError
from glt_lightning.graph.cache_choice import Candidates, Ranked, choose, rows_of_share, stored_policies
from glt_lightning.graph.local_partition import LocalPartition
from glt_lightning.graph.manifest import Manifest
from glt_lightning.graph.row_cache import cached_node_bytes, index_bytes


def choose_policy(partition: LocalPartition, options: CacheOptions) -> str:
    """Returns the policy that ranks the nodes. Raises `OptionError` for a policy that this folder does not have."""
    stored = stored_policies(partition.manifest)
    if options.policy == "auto":
        return stored[0] if stored else "degree"
    if options.policy != "vip" or options.policy in stored:
        return options.policy
    has = " and ".join(stored) or "none"
    raise OptionError(
        f"cache.policy: {options.policy}, but {partition.directory} has no ranking of remote rows by {options.policy} (it has: "
        f"{has}). Choose degree, which needs no ranking, or partition with partition.hotness: vip."
    )


def rows_by_ratio(manifest: Manifest, ranked: Sequence[Ranked], options: CacheOptions) -> list[int]:
    """Returns the number of nodes of each type for ``cache.ratio``. Raises `OptionError` for an unknown node type."""
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
    """Returns the number of nodes of each type for a cache of ``budget`` bytes, its indexes included."""
    types = range(len(ranked))
    candidates = [Candidates.alike(ranked[t].hotness, cached_node_bytes(manifest, t)) for t in types]
    return choose(candidates, budget - sum(index_bytes(manifest, t) for t in types))
