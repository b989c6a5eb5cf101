"""Encoders: modules that embed a batch's seeds, made by the name of a GNN of PyG."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch_geometric.data import Data

from glt_lightning.base import EDGE, DataError, EdgeType, OptionError
from glt_lightning.loader import TrimmedConvs, fuse_layers, relu_dropout
from glt_lightning.models.code_embedding import NumCategories, categories_of
from glt_lightning.models.edges import EdgeInput, edge_inputs
from glt_lightning.models.gnn import (
    FAMILY,
    EdgeTypeLayer,
    HeterogeneousEncoder,
    HomogeneousGNN,
    Metadata,
    NodeEncoder,
    edge_type_conv,
    errors_of_pyg,
    num_seeds,
    trimmed,
)
from glt_lightning.models.layers import EdgeKindConv, HGTLayer, RGCNLayer, conv_names, made, make_conv

NO_ENCODER = "none"  # its outputs are the inputs of what would be the first layer
_TYPED = ("HGT", "RGCN")
_DEVIATION = 0.1  # of learned embeddings that no layer follows: large scores at the start hinder training
_FOR_TWO_TYPES = ("EdgeCNN", "GAT", "GIN", "GraphSAGE")


@dataclass(frozen=True, kw_only=True)
class EncoderShape:
    """The arguments that every encoder takes.

    in_channels: width of ``x``, None for nodes without it; per node type in a heterogeneous graph, as is ``num_nodes``.
    metadata: node and edge types of a heterogeneous graph.  target_type: node type of its seeds, or several.
    num_categories: number of codes of each column of ``x_codes``, per node type in a heterogeneous graph.
    node_embedding: as in `NodeEncoder`.  edge_facts, edge_features: as in `edge_inputs`.
    """

    in_channels: Any
    hidden_channels: int
    num_layers: int
    dropout: float
    metadata: Metadata | None = None
    num_nodes: Any = None
    target_type: str | tuple[str, ...] | None = None
    num_categories: NumCategories = None
    node_embedding: str = "dense"
    edge_facts: Mapping[str, Any] | None = None
    edge_features: Sequence[str] | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any], target_type: str | tuple[str, ...] | None) -> EncoderShape:
        """Takes the arguments of a module that have the names of these."""
        named = {each.name: given[each.name] for each in fields(cls) if each.name in given}
        return cls(**named | {"target_type": target_type})

    def edges(self, name: str) -> dict[EdgeType, EdgeInput]:
        """Returns what the layers of an encoder read, for the edge types that have it."""
        types = None if self.metadata is None else self.metadata[1]
        return edge_inputs(name, self.edge_facts, self.edge_features, types, self.hidden_channels)

    def __post_init__(self) -> None:
        for name in ("hidden_channels", "num_layers"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OptionError(f"{name}: expected an integer >= 1, got {value!r}.")
        if not 0 <= self.dropout < 1:
            raise OptionError(f"dropout: expected a number from 0 to below 1, got {self.dropout!r}.")
        per_type = isinstance(self.in_channels, dict), isinstance(self.num_nodes, dict)
        if self.metadata is None:
            if any(per_type) or isinstance(self.num_categories, dict):
                raise OptionError(
                    "metadata: needed when in_channels, num_nodes or num_categories are given per node type; got None."
                )
            return
        if isinstance(self.num_categories, list):
            raise OptionError(
                f"num_categories: expected an entry per node type {self.metadata[0]}; got {self.num_categories}."
            )
        if not all(per_type):
            raise OptionError(
                f"in_channels, num_nodes: expected one entry per node type {self.metadata[0]}; got {self.in_channels}, "
                f"{self.num_nodes}."
            )
        targets = self.target_type if isinstance(self.target_type, tuple) else (self.target_type,)
        if not set(targets) <= set(self.metadata[0]):
            raise OptionError(f"target_type: expected one of {', '.join(self.metadata[0])}; got {self.target_type!r}.")


def make_encoder(name: str, options: Mapping[str, Any], shape: EncoderShape) -> nn.Module:
    """Makes a module that maps a batch to embeddings [S, hidden_channels] of its S seeds. Raises `OptionError` for an unknown
    name, or options that do not fit."""
    known = [*sorted(FAMILY), *_TYPED, NO_ENCODER, *conv_names()]
    name = f"{name}Conv" if name not in known and f"{name}Conv" in known else name
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=2, cutoff=0.5)
        raise OptionError(
            f"encoder: expected one of {', '.join([*sorted(FAMILY), *_TYPED, NO_ENCODER])}, or a convolution of PyG such as "
            f"GATv2Conv; got {name!r}." + (f" Did you mean {' or '.join(near)}?" if near else "")
        )
    with errors_of_pyg(f"encoder: {name} with encoder_kwargs {dict(options)}"):
        return _homogeneous(name, options, shape) if shape.metadata is None else _heterogeneous(name, options, shape)


def _homogeneous(name: str, options: Mapping[str, Any], shape: EncoderShape) -> nn.Module:
    if name == NO_ENCODER:
        return ConvStack([], shape)
    if name == "HGT":
        raise OptionError("encoder: HGT is for graphs with several node or edge types; this one has one of each.")
    if name in FAMILY:
        return FamilyEncoder(name, options, shape)
    if name == "RGCN":
        count = options.get("num_relations")
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise OptionError(
                "encoder: RGCN in a graph of one edge type reads the edge attribute edge_type; give the number of "
                f"kinds as encoder_kwargs: {{num_relations: 26}}; got {count!r}."
            )
        shape.edges(name)  # for what it does not read
        convs = [made(name, EdgeKindConv, *[shape.hidden_channels] * 2, **options) for _ in range(shape.num_layers)]
        return ConvStack(convs, shape, with_type=True)
    edges = shape.edges(name).get(EDGE)
    convs = [
        make_conv(name, shape.hidden_channels, options, two_types=False, edges=edges) for _ in range(shape.num_layers)
    ]
    return ConvStack(convs, shape, edges)


def _heterogeneous(name: str, options: Mapping[str, Any], shape: EncoderShape) -> nn.Module:
    width, edges, none = shape.hidden_channels, shape.edges(name), name == NO_ENCODER
    assert shape.metadata is not None
    assert shape.target_type is not None
    if name == "HGT" or none:
        make_layer: Any = partial(HGTLayer, width, options)
    elif name == "RGCN":
        make_layer = partial(RGCNLayer, width, options)
    elif name in FAMILY:
        if name not in _FOR_TWO_TYPES:
            raise OptionError(
                f"encoder: {name} does not support edges between two node types; use {', '.join(_FOR_TWO_TYPES)}, "
                "HGT, RGCN, or a convolution such as GATv2Conv."
            )
        make_layer = partial(EdgeTypeLayer, lambda e: edge_type_conv(name, width, shape.dropout, options, edges.get(e)))
    else:
        make_layer = partial(
            EdgeTypeLayer, lambda e: make_conv(name, width, options, two_types=True, edges=edges.get(e))
        )
    return HeterogeneousEncoder(
        make_layer,
        shape.in_channels,
        width,
        0 if none else shape.num_layers,
        dropout=shape.dropout,
        metadata=shape.metadata,
        num_nodes=shape.num_nodes,
        target_type=shape.target_type,
        num_categories=shape.num_categories,
        node_embedding=shape.node_embedding,
        edges=edges,
        deviation=_DEVIATION if none else 1.0,
    )


class FamilyEncoder(HomogeneousGNN):
    """The encoder of a model of PyG's `BasicGNN` family."""

    def __init__(self, name: str, options: Mapping[str, Any], shape: EncoderShape) -> None:
        width = shape.hidden_channels
        super().__init__(
            name,
            shape.in_channels,
            width,
            shape.num_layers,
            width,
            dropout=shape.dropout,
            num_nodes=shape.num_nodes,
            options=options,
            num_categories=shape.num_categories,
            node_embedding=shape.node_embedding,
            edges=shape.edges(name).get(EDGE),
        )
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, batch: Data) -> Tensor:
        return relu_dropout(super().forward(batch), self.dropout.p, self.training)


class ConvStack(nn.Module):
    """The encoder of a stack of convolutions, which may be empty. edges: what they read of edges.  with_type: they take the edge
    attribute ``edge_type``."""

    def __init__(
        self, convs: list[nn.Module], shape: EncoderShape, edges: EdgeInput | None = None, *, with_type: bool = False
    ) -> None:
        super().__init__()
        codes = categories_of(shape.num_categories, "node")
        given: dict[str, Any] = {"num_categories": codes, "node_embedding": shape.node_embedding}
        given["deviation"] = 1.0 if convs else _DEVIATION
        self.encoder = NodeEncoder(shape.in_channels, shape.num_nodes, shape.hidden_channels, **given)
        self.convs = fuse_layers(nn.ModuleList(convs))
        self.dropout = nn.Dropout(shape.dropout)
        self.with_type, self.edges = with_type, None if edges is None else edges.make_encoder()
        widths = [shape.hidden_channels] * len(convs)
        # RGCN wants a type for each edge; it takes a pair, and a node's output depends on the edges into it alone
        name = type(convs[0]).__name__ if convs else NO_ENCODER
        self.trimmed = (
            TrimmedConvs(self.convs, ["pair"] * len(convs))
            if with_type
            else trimmed(name, self.convs, widths, {}, edges)
        )

    def forward(self, batch: Data) -> Tensor:
        x = self.encoder("node", batch)
        x = self.trimmed.run(x, batch, self.values(batch), self._activate)
        return (self._activate(x) if len(self.convs) else x)[: num_seeds(batch)]

    def _activate(self, x: Tensor) -> Tensor:
        return relu_dropout(x, self.dropout.p, self.training)

    def values(self, batch: Data) -> list[Tensor]:
        """Returns what convolutions read of edges, in the order of the batch: one tensor, or none."""
        if self.with_type:
            if "edge_type" not in batch:
                raise DataError(
                    "encoder: RGCN: the edges have no attribute edge_type, from which RGCN reads their kinds."
                )
            return [batch.edge_type.long()]
        return [] if self.edges is None else [self.edges(batch)]
