"""The checks of a data module's options about its batches, before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from glt_lightning.base import EDGE_FORMATS, OptionError, one_of, parse_fanouts
from glt_lightning.loader import check_ptr, check_subgraph, check_tree

_SPLITS = ("train", "val", "test")


def check_batches(data: Any) -> None:
    """Raises `OptionError` for options of a `GLTDataModule` that no graph has a use for."""
    one_of("edge_format", data.edge_format, EDGE_FORMATS)
    if not isinstance(data.disjoint, bool):
        raise OptionError(f"disjoint: expected true or false, got {data.disjoint!r:.80}.")
    one_of("eval", data.eval, ("sampled", "layerwise"))
    if data.sampling.importance_neighbors is not None:
        _check_walks(data)
    elif data.sampling.weight_attr is not None and data.cache.keeps_rows:
        rank_zero_warn(
            f"cache: remote rows are ranked (cache.policy: {data.cache.policy}) as if all edges weighed the same, and neighbours "
            f"are drawn by {data.sampling.weight_attr}, so that rows which are hardly drawn may take the place of others."
        )
    check_subgraph("", data)
    check_ptr("", data)
    negatives = None if data.links is None else data.links.neg_sampling
    check_tree("", data.tree, data.disjoint, negatives, data.sampling.time_attr)
    if data.tree == "example" and data.links is None:
        raise OptionError("tree: example: is about the two ends of an edge. Set task: link, or remove it.")
    _check_sizes(data)
    if unknown := set(data.splits) - set(_SPLITS):
        raise OptionError(f"splits: expected any of {', '.join(_SPLITS)}; got {', '.join(sorted(unknown))}.")
    if data.predict_split not in ("all", *_SPLITS):
        raise OptionError(f"predict_split: expected all, train, val or test; got {data.predict_split!r}.")
    for name in ("splits", "seed_weights", "ptr") if data.links is not None else ():
        if getattr(data, name):
            raise OptionError(f"{name}: is about nodes, and task: link predicts edges. Remove it, or give edge_splits.")


def _check_walks(data: Any) -> None:
    """Known before hours of partitioning, not after."""
    if data.eval == "layerwise":
        raise OptionError(
            "eval: layerwise: computes layers over the stored edges, and with sampling.importance_neighbors walks find the "
            "neighbours. Set eval: sampled."
        )
    if data.subgraph_type != "directional":
        raise OptionError(
            f"subgraph_type: {data.subgraph_type} and sampling.importance_neighbors exclude each other. Remove one of them."
        )
    cache = data.cache
    ranked = cache.memory is not None or cache.device is not None or cache.keeps_rows
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


def _check_sizes(data: Any) -> None:
    for name in ("batch_size", "eval_batch_size"):
        size = getattr(data, name)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise OptionError(f"{name}: expected an integer >= 1, got {size!r}.")
    for name in ("num_neighbors", "eval_num_neighbors"):
        given = getattr(data, name)
        if given is None and name == "eval_num_neighbors":
            continue
        for key, fanouts in given.items() if isinstance(given, Mapping) else [(None, given)]:
            parse_fanouts(fanouts, name if key is None else f"{name}[{key}]")
