"""Fan-outs beside the layers of a model: a hop too few loses accuracy without a word, one too many costs time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import nn

from glt_lightning.base import Fanouts, OptionError

_NAMES = ("num_layers", "n_layers", "num_hops")


def layers_of(model: nn.Module) -> int | None:
    """Message-passing layers of a model where it tells: an attribute or hyperparameter, else that of a model inside it."""
    hparams = getattr(model, "hparams", {})
    told = [getattr(model, name, None) for name in _NAMES]
    told += [hparams.get(name) for name in _NAMES] if isinstance(hparams, Mapping) else []
    told += [getattr(child, name, None) for child in model.children() for name in _NAMES]
    return next((count for count in told if _is_count(count)), None)


def warn_of_hops(name: str, num_neighbors: Fanouts | None, model: nn.Module) -> None:
    """Says where the fan-outs of option ``name`` are fewer or more than the layers of the model, if that tells them."""
    layers = layers_of(model)
    if layers is None or num_neighbors is None:
        return
    each = num_neighbors.values() if isinstance(num_neighbors, Mapping) else [num_neighbors]
    hops = max(map(len, each))
    harm = (
        "nodes of the last hop come without neighbours, which costs accuracy"
        if hops < layers
        else "neighbours of the further hops never reach the seeds, which costs time"
    )
    if hops != layers:
        rank_zero_warn(
            f"data.{name} has {_many(hops, 'hop')} and the model {_many(layers, 'layer')}: {harm}. Give {layers} fan-outs, or "
            f"the model num_layers {hops}."
        )


def require_taken(aggregate: str | None, model: nn.Module) -> None:
    """Raises `OptionError` for ``sampling.aggregate_first`` and a module that does not declare that it takes it."""
    takes = tuple(getattr(model, "takes_aggregates", ()))
    if aggregate is None or aggregate in takes:
        return
    raise OptionError(
        f"sampling.aggregate_first: {aggregate!r}: {type(model).__name__} takes {' or '.join(takes) or 'no aggregates'}. A "
        "module that takes them says so with an attribute takes_aggregates, such as ('mean',), and reads batch.x_neighbors; "
        "of the ready models GraphSAGE (mean or sum) and GIN (sum) do, where nodes have x and no x_codes. Remove "
        "sampling.aggregate_first, or choose such a model."
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"
