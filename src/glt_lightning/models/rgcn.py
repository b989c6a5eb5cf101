"""RGCN over the edge types of a batch, and over the kinds of its edges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import RGCNConv

from glt_lightning.base import EdgeType, NodeType
from glt_lightning.inference import RunningSum
from glt_lightning.loader import fuse_layers, plain
from glt_lightning.models.layers import made


class EdgeKindConv(RGCNConv):  # type: ignore[misc]  # PyG has no types
    """PyG's `RGCNConv` without its masks of the edges of each kind, whose sizes depend on values, so that `torch.compile` breaks.

    Its parameters, messages and aggregation are PyG's.
    """

    def forward(self, x: tuple[Tensor, Tensor], edge_index: Tensor, edge_type: Tensor) -> Tensor:
        """x: rows of sources and of destinations. edge_type: int64 [E], the kind of each edge.

        A destination is one for each kind here. Their rows are those that PyG keeps for the gradient, and its product of each
        kind is one product of all.
        """
        (sources, rows), (src, dst), kinds = x, plain(edge_index), self.num_relations
        known = ((edge_type >= 0) & (edge_type < kinds)).all()
        torch._assert_async(
            known, f"encoder: RGCN: an edge_type is outside of 0 to {kinds - 1}. Correct num_relations ({kinds}) or it."
        )
        kept_apart = dst * kinds + edge_type
        order = kept_apart.argsort(stable=True)
        edges = torch.stack([src[order], kept_apart[order]])
        found = self.aggregated(sources, edges, len(rows) * kinds).view(len(rows), kinds, -1)
        return self.with_root(self.transformed(found, slice(None)), rows)

    def aggregated(self, sources: Tensor, edges: Tensor, destinations: int) -> Tensor:
        """[destinations, width]: what edges of one kind bring."""
        size = (len(sources), destinations)
        found: Tensor = self.propagate(edges, x=sources, edge_type_ptr=None, size=size)
        return found

    def transformed(self, found: Tensor, kinds: slice) -> Tensor:
        """[D, width]: found [D, kinds, width] times the matrix of its kind, summed."""
        if self.num_blocks is not None:
            blocks = found.unflatten(2, (self.num_blocks, -1))
            return torch.einsum("dkbi,kbio->dbo", blocks, self.weight[kinds]).flatten(1)
        weight = self.weight
        if self.num_bases is not None:
            weight, kinds = torch.einsum("kb,bio->kio", self.comp[kinds], weight), slice(None)
        return found.flatten(1) @ weight[kinds].flatten(0, 1)

    def with_root(self, out: Tensor, rows: Tensor) -> Tensor:
        """Plus what nodes bring themselves."""
        if self.root is not None:
            out = out + rows @ self.root
        return out if self.bias is None else out + self.bias

    def gathering(self, own: Tensor) -> Any:
        """The layer of one node over pieces of its edges (`glt_lightning.inference.gathering`). own: [1, D], its row."""
        return _Kinds(self, own)


class RGCNLayer(nn.Module):
    """PyG's `RGCNConv` over some edge types: a matrix for each, and one for a node itself."""

    activate = True

    def __init__(self, width: int, options: Mapping[str, Any], edge_types: list[EdgeType]) -> None:
        super().__init__()
        self.edge_types = edge_types
        self.conv: EdgeKindConv = fuse_layers(made("RGCN", EdgeKindConv, width, width, len(edge_types), **options))

    def forward(
        self, x: dict[NodeType, Tensor], edges: dict[EdgeType, Tensor], destinations: dict[NodeType, int]
    ) -> dict[NodeType, Tensor]:
        sums: dict[NodeType, Tensor] = {}
        for r, edge_type in enumerate(self.edge_types):
            src, _, dst = edge_type
            found = self.conv.aggregated(x[src], edges[edge_type], destinations[dst])
            out = self.conv.transformed(found[:, None], slice(r, r + 1))
            sums[dst] = sums[dst] + out if dst in sums else out
        return {t: self.conv.with_root(out, x[t][: destinations[t]]) for t, out in sums.items()}


class _Kinds:
    """RGCN over kinds of edges, which are the values."""

    def __init__(self, conv: EdgeKindConv, own: Tensor) -> None:
        self._conv, self._own = conv, own
        self._sums = [RunningSum(own[0], mean=conv.aggr == "mean") for _ in range(conv.num_relations)]

    def add(self, rows: Tensor, values: Tensor | None) -> None:
        assert values is not None
        for kind in values.unique().tolist():
            self._sums[kind].add(rows[values == kind])

    def end(self) -> Tensor:
        found = torch.stack([each.value() for each in self._sums])[None]
        return self._conv.with_root(self._conv.transformed(found, slice(None)), self._own)
