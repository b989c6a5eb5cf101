"""Layers of DGL that take blocks of ours, with DGL's parameters: weights of DGL's own layers can be loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from glt_lightning.base import OptionError, one_of
from glt_lightning.loader import Layer

# Scripts of DGL import the layers by a longer name, too: ``import dgl.nn.pytorch as dglnn``.
pytorch = sys.modules[f"{__name__}.pytorch"] = sys.modules[__name__]

AGGREGATORS = ("mean", "gcn", "pool")


class SAGEConv(nn.Module):
    """GraphSAGE (Hamilton et al., 2017), with the names and first values of the parameters of DGL's layer.

    Args:
        in_feats: Width of the features: of all nodes, or (of sources, of destinations).
        out_feats: Width of the output.
        aggregator_type: ``mean``, ``gcn`` or ``pool``.
        feat_drop: Dropout of the features.
        bias: Add a bias.
        norm: Applied to the output.
        activation: Applied to the output before ``norm``.

    Raises:
        OptionError: For another aggregator.

    Example:
        >>> import glt_lightning.compat.dgl as dgl
        >>> sorted(dgl.nn.SAGEConv(3, 2, "mean").state_dict())
        ['fc_neigh.weight', 'fc_self.bias', 'fc_self.weight']
    """

    def __init__(
        self,
        in_feats: int | tuple[int, int],
        out_feats: int,
        aggregator_type: str,
        feat_drop: float = 0.0,
        bias: bool = True,
        norm: Callable[[Tensor], Tensor] | None = None,
        activation: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        one_of("SAGEConv: aggregator_type", aggregator_type, AGGREGATORS)
        self._kind, self.norm, self.activation = aggregator_type, norm, activation
        of_src, of_dst = in_feats if isinstance(in_feats, tuple) else (in_feats, in_feats)
        self.feat_drop = nn.Dropout(feat_drop)
        self.fc_neigh = nn.Linear(of_src, out_feats, bias=False)
        if aggregator_type == "pool":
            self.fc_pool = nn.Linear(of_src, of_src)
        if aggregator_type == "gcn":
            self.register_parameter("bias", nn.Parameter(torch.zeros(out_feats)) if bias else None)
        else:
            self.fc_self = nn.Linear(of_dst, out_feats, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """First values: Glorot's uniform ones for weights."""
        gain = nn.init.calculate_gain("relu")
        for name in ("fc_pool", "fc_self", "fc_neigh"):
            if hasattr(self, name):
                nn.init.xavier_uniform_(getattr(self, name).weight, gain=gain)

    def forward(self, graph: Layer, feat: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """[destinations, out_feats]. feat: of the sources [sources, in_feats], or (of sources, of destinations)."""
        if not isinstance(graph, Layer) or not isinstance(graph.edge_index, Tensor):
            raise OptionError(f"SAGEConv: expected a block with one edge type, got {type(graph).__name__}.")
        if isinstance(feat, tuple):
            src, dst = map(self.feat_drop, feat)
        else:
            src = self.feat_drop(feat)
            dst = src[: graph.num_dst_nodes()]
        out = self._neighbours(graph, src, dst)
        if self._kind != "gcn":
            out = self.fc_self(dst) + out
        elif isinstance(self.bias, Tensor):
            out = out + self.bias
        out = out if self.activation is None else self.activation(out)
        return out if self.norm is None else self.norm(out)

    def _neighbours(self, graph: Layer, src: Tensor, dst: Tensor) -> Tensor:
        if self._kind == "pool":
            values: Tensor = self.fc_neigh(graph.reduce(torch.relu(self.fc_pool(src)), "max"))
            return values
        narrows = self.fc_neigh.in_features > self.fc_neigh.out_features  # aggregating narrow rows costs less
        src = self.fc_neigh(src) if narrows else src
        if self._kind == "mean":
            values = graph.reduce(src, "mean")
        else:
            own = self.fc_neigh(dst) if narrows else dst
            degrees = torch.bincount(graph.edge_index[1], minlength=len(dst))
            values = (graph.reduce(src, "sum") + own) / (degrees + 1).unsqueeze(-1).to(own.dtype)
        return values if narrows else self.fc_neigh(values)
