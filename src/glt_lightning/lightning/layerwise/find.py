"""The layers of a module, however it offers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn.models.basic_gnn import BasicGNN

from glt_lightning.errors import OptionError
from glt_lightning.inference.pieces import HubPieces
from glt_lightning.inference.protocol import LayerwiseLayers
from glt_lightning.lightning.layerwise.convs import FamilyLayers, HomogeneousLayers, refuse_norms
from glt_lightning.lightning.layerwise.hubs import typed_pieces, types_gather
from glt_lightning.lightning.models.gnn import HeterogeneousEncoder
from glt_lightning.lightning.models.link_predictor import LinkPredictor
from glt_lightning.lightning.models.node_predictor import NodePredictor
from glt_lightning.lightning.models.sage import GraphSAGE


def find_layers(
    module: nn.Module, node_types: Sequence[str], edge_names: Mapping[Any, Sequence[str]], typed: bool
) -> LayerwiseLayers:
    """The layers of a module, with its weights as they are now. edge_names: attributes of edges, by edge type.  typed: the graph
    names its types, also where it has one.

    Raises `OptionError` for a module that offers none, or whose layers cannot be computed one after the other.
    """
    names = [] if typed else list(next(iter(edge_names.values()), ()))
    return LayerwiseLayers(_offered(module, names, typed), node_types, typed)


def _offered(module: Any, edge_names: Sequence[str], typed: bool) -> Any:
    if callable(getattr(module, "layer", None)) and isinstance(getattr(module, "num_layers", None), int):
        refuse_norms(module)
        return module
    if isinstance(module, (GraphSAGE, NodePredictor, LinkPredictor)):
        return ReadyLayers(module, edge_names)
    for given in (module, getattr(module, "gnn", None), getattr(module, "model", None)):
        if isinstance(given, BasicGNN):
            if typed:
                raise OptionError(
                    f"layer-wise inference: {type(given).__name__} is for graphs without names of node and edge types; this one "
                    "has them. Give the module num_layers, embed(batch), layer(k, h, batch) and head(hs, node_type)."
                )
            return FamilyLayers(given, edge_names)
    raise OptionError(
        f"layer-wise inference: {type(module).__name__} offers no layers. Expected num_layers and layer(k, h, batch) of its own, "
        "a model of PyG's BasicGNN family (such as torch_geometric.nn.GraphSAGE) as .gnn or .model, or one of the ready modules "
        "GraphSAGE, NodePredictor and LinkPredictor."
    )


class ReadyLayers:
    """The layers of a ready module: its encoder's, and its columns."""

    def __init__(self, module: GraphSAGE | NodePredictor | LinkPredictor, edge_names: Sequence[str]) -> None:
        self._module = module
        encoder: Any = module.gnn if isinstance(module, GraphSAGE) else module.encoder
        self._layers: Any
        if isinstance(encoder, HeterogeneousEncoder):
            self._layers = TypedLayers(encoder)
            self.output_types, self.input_types = encoder.target_types, list(encoder.encoders)
            self.targets, self.asked = self._layers.targets, (encoder, "embed")
        else:
            self.asked = encoder, "forward"
            self._layers = HomogeneousLayers(encoder, edge_names)
            self.keep, self.degrees = self._layers.keep, self._layers.degrees
            self.aggregates, self.combine = self._layers.aggregates, self._layers.combine
        self.num_layers = self._layers.num_layers
        self.embed, self.layer, self._encoder = self._layers.embed, self._layers.layer, encoder
        self.gathers, self.pieces = self._layers.gathers, self._layers.pieces

    def head(self, hs: Any, node_type: str = "node") -> dict[str, Tensor]:
        return self._columns(self._layers.outputs(hs), node_type)

    def answer(self, hs: Any) -> Any:
        """What the encoder returns."""
        return (
            {t: hs[t] for t in self.output_types} if isinstance(self._layers, TypedLayers) else self._layers.outputs(hs)
        )

    def reference(self, batch: Any) -> dict[str, Tensor]:
        if not isinstance(self._layers, TypedLayers):
            return self._columns(self._encoder(batch), "node")
        found = self._encoder.embed(batch)
        node_type = next(t for t in self.output_types if len(found[t]))
        return self._columns(found[node_type], node_type)

    def _columns(self, out: Tensor, node_type: str) -> dict[str, Tensor]:
        module: Any = self._module
        if isinstance(module, NodePredictor):
            return {"embedding": out} | module.task.predict(module.head(out))
        if isinstance(module, LinkPredictor):
            return {"embedding": module.heads[node_type](out)}
        if isinstance(self._layers, TypedLayers):
            logits = module.gnn.head(out)
            return {"embedding": out, "pred": logits.argmax(dim=-1), "logits": logits}
        return {"embedding": out, "pred": out.argmax(dim=-1)}


class TypedLayers:
    """The encoder of a ready module over a typed graph."""

    def __init__(self, encoder: HeterogeneousEncoder) -> None:
        refuse_norms(encoder)
        self._encoder, self.num_layers = encoder, len(encoder.layers)

    def targets(self, k: int) -> set[str]:
        layer: Any = self._encoder.layers[k]
        return {dst for _, _, dst in layer.edge_types}

    def embed(self, batch: Any) -> dict[str, Tensor]:
        return {t: encoder(t, batch[t]) for t, encoder in self._encoder.encoders.items()}

    def layer(self, k: int, h: dict[str, Tensor], batch: Any) -> dict[str, Tensor]:
        layer: Any = self._encoder.layers[k]
        into = {t: int(batch[t].batch_size) if "batch_size" in batch[t] else 0 for t in h}
        out = layer(h, {e: batch[e].edge_index for e in layer.edge_types}, into)
        return {t: rows.relu() if layer.activate else rows for t, rows in out.items()}

    def gathers(self, k: int, node_type: str) -> bool:
        return types_gather(self._encoder.layers[k], node_type)

    def pieces(self, k: int, own: Tensor, batch: Any, node_type: str) -> HubPieces:
        layer: Any = self._encoder.layers[k]
        edges = {e: batch[e].edge_index for e in layer.edge_types if e[2] == node_type}
        return typed_pieces(layer, node_type, own, edges)

    def outputs(self, hs: Tensor) -> Tensor:
        return hs
