"""The first layer of a GNN over what samplers have aggregated for it (``sampling.aggregate_first``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GINConv, SAGEConv

from glt_lightning.base import DataError


def aggregates_of(conv: nn.Module) -> tuple[str, ...]:
    """The aggregates, ``mean`` or ``sum``, that a convolution takes in place of its neighbours' rows."""
    if isinstance(conv, SAGEConv) and not conv.project:
        return {"mean": ("mean",), "add": ("sum",), "sum": ("sum",)}.get(str(conv.aggr), ())
    return ("sum",) if isinstance(conv, GINConv) else ()


def run_aggregated(conv: Any, x: Tensor, aggregated: Tensor) -> Tensor:
    """Outputs of a convolution from nodes' own rows, and the aggregate of their neighbours' rows."""
    if isinstance(conv, GINConv):
        return conv.nn(aggregated + (1 + conv.eps) * x)
    out = conv.lin_l(aggregated)
    if conv.root_weight:
        out = out + conv.lin_r(x)
    return functional.normalize(out, p=2.0, dim=-1) if conv.normalize else out


def take_aggregate(batch: Data, takes: Sequence[str], layers: int, *, has_hops: bool = True) -> Tensor | None:
    """What samplers have aggregated, float32 [N, D]; None where the batch has all rows.

    has_hops: whether the edges are still those of their hops.

    Raises `DataError` for an aggregate that the model does not take, of too few hops for its layers, or of other edges.
    """
    if "x_neighbors_aggr" not in batch:
        return None
    kind, hops = batch.x_neighbors_aggr, len(batch.num_sampled_nodes)
    if kind not in takes:
        raise DataError(
            f"sampling.aggregate_first: the batch has the {kind} of each node's neighbours in place of the last hop; this model "
            f"takes {' or '.join(takes) or 'no aggregate'}. Remove sampling.aggregate_first."
        )
    if hops < layers:
        raise DataError(
            f"sampling.aggregate_first: {hops} fan-outs for {layers} layers, but nodes of the last hop have no own rows. "
            f"Give {layers} fan-outs (data.num_neighbors, data.eval_num_neighbors), or the model num_layers {hops}."
        )
    if not has_hops:
        raise DataError(
            "sampling.aggregate_first: a transform has added or removed edges or nodes, and the aggregates of the neighbours are "
            "of those that were sampled. Remove sampling.aggregate_first or the transform."
        )
    return batch.x_neighbors
