"""The layers of a module, however it offers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch_geometric.nn.models.basic_gnn import BasicGNN

from glt_lightning.base import OptionError
from glt_lightning.inference.convs import FamilyLayers, refuse_norms
from glt_lightning.inference.protocol import LayerwiseLayers


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
    if callable(getattr(module, "layerwise_layers", None)):
        return module.layerwise_layers(edge_names)
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
