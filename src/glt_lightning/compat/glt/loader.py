"""GLT's `loader`: loaders of one machine."""

from __future__ import annotations

from glt_lightning.base import lazy_names

_SAMPLER = "{name}: {kind}(data, num_neighbors, ..., neighbor_sampler=sampler) takes the options of a sampler."
_FIELDS = "{name}: loaders give batches with features and labels; of a sample, take the rows of its nodes."
_REFUSED = {
    "LinkLoader": _SAMPLER.replace("{kind}", "LinkNeighborLoader"),
    "NodeLoader": _SAMPLER.replace("{kind}", "NeighborLoader"),
    "SubGraphLoader": "{name}: glt.distributed.DistSubGraphLoader, or NeighborSampler(...).subgraph(seeds).",
    "get_edge_label_index": "{name}: LinkNeighborLoader takes an edge type, for all its edges, or (edge type, edges).",
    "to_data": _FIELDS,
    "to_hetero_data": _FIELDS,
}
_HOMES = {
    "LinkNeighborLoader": "glt_lightning.compat.glt.loaders",
    "NeighborLoader": "glt_lightning.compat.glt.loaders",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, _REFUSED)
