"""The checks of a data module's options about its batches, before anything is read."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from glt_lightning.base import OptionError, at_least, require_fanouts
from glt_lightning.loader import LinkSpec


def check_batches(data: Any) -> None:
    """Raises `OptionError` for options of a `GLTDataModule` that no graph has a use for."""
    if data.num_neighbors != [] or data.links is None:  # those of models of pairs without layers
        require_fanouts("num_neighbors", data.num_neighbors)
    at_least("batch_size", data.batch_size, 1)
    if data.sampling.importance_neighbors is not None:
        _check_walks(data)
    elif data.sampling.weight_attr is not None and data.cache.keeps_rows:
        rank_zero_warn(
            f"cache: remote rows are ranked (cache.policy: {data.cache.policy}) as if all edges weighed the same, and neighbours "
            f"are drawn by {data.sampling.weight_attr}, so that rows which are hardly drawn may take the place of others."
        )
    if data.links is None:
        return
    LinkSpec.check_tree(
        "links.", data.links.tree, data.batches.disjoint, data.links.neg_sampling, data.sampling.time_attr
    )
    of_nodes = {"seeds.splits": data.seeds.splits, "seeds.weights": data.seeds.weights, "batches.ptr": data.batches.ptr}
    if data.links.labelled and data.seeds.weights == "balanced":
        del of_nodes["seeds.weights"]
    for name, value in of_nodes.items():
        if value:
            raise OptionError(
                f"{name}: is about nodes, and task: link predicts edges. Remove it, or give links.edge_splits."
            )


def _check_walks(data: Any) -> None:
    """Known before hours of partitioning, not after."""
    if data.evaluation.mode == "layerwise":
        raise OptionError(
            "evaluation.mode: layerwise: computes layers over the stored edges, and with sampling.importance_neighbors walks "
            "find the neighbours. Set evaluation.mode: sampled."
        )
    if data.batches.subgraph_type != "directional":
        raise OptionError(
            f"batches.subgraph_type: {data.batches.subgraph_type} and sampling.importance_neighbors exclude each other. Remove "
            "one of them."
        )
    cache = data.cache
    ranked = cache.memory_bytes is not None or cache.device is not None or cache.keeps_rows
    if ranked:
        rank_zero_warn(
            f"cache: rows are ranked (cache.policy: {cache.policy}) as if neighbours were drawn from edges, and "
            "sampling.importance_neighbors finds them by walks, which no ranking counts."
        )
    if cache.topology is not None:
        rank_zero_warn(
            "cache.topology: walks (sampling.importance_neighbors) do not read cached neighbour lists. Remove it: its bytes "
            "are then for rows."
        )
