"""Layers of a module that are computed one at a time, over batches of one hop: of one convolution each, of PyG's `BasicGNN`
family, and over several edge types."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv
from torch_geometric.nn.models.basic_gnn import BasicGNN

from glt_lightning.base import OptionError
from glt_lightning.inference.pieces import HubPieces, HubTypes, Sources, gathering, gathers
from glt_lightning.inference.protocol import DegreeSpec, LayerwiseLayers
from glt_lightning.loader import TrimmedConvs, aggregates_of, fuse_layers, plain, run_aggregated

_OVER_BATCH = ("DiffGroupNorm", "GraphNorm", "GraphSizeNorm", "InstanceNorm", "MeanSubtractionNorm", "PairNorm")
_WEIGHT = "edge_weight"


def _refuse_norms(module: nn.Module) -> None:
    """Raises `OptionError` for norms over all nodes of a batch: they have other values in each batch."""
    for each in module.modules():
        name = type(each).__name__
        over_batch = name in _OVER_BATCH or (name == "LayerNorm" and getattr(each, "mode", "node") == "graph")
        if over_batch or (name == "BatchNorm1d" and not getattr(each, "track_running_stats", True)):
            mode = " with mode graph" if name == "LayerNorm" else ""
            raise OptionError(
                f"layer-wise inference: {name}{mode} averages over all nodes of a batch, so outputs depend on which nodes "
                "are computed with it. Use trainer.predict, or a norm of each node alone: BatchNorm, LayerNorm with mode node."
            )


class ConvLayers:
    """Layers of one convolution each, in a graph without names of types. A base: others say what lies between the convolutions.

    GCN's normalisation is computed here, from degrees in the whole graph: in a batch of one hop the degrees of neighbours are
    wrong. module: has the convolutions.  weight: the edge attribute that weighs edges; None: all weigh 1.
    """

    keep = "last"

    def __init__(self, module: nn.Module, convs: TrimmedConvs, weight: str | None) -> None:
        _refuse_norms(module)
        self._convs, self.num_layers = convs, len(convs.convs)
        improved = any(getattr(conv, "improved", False) for conv in convs.convs)
        own_degrees = convs.gcn_loops is not None
        self.degrees = DegreeSpec(weight, bool(convs.gcn_loops), 2.0 if improved else 1.0) if own_degrees else None
        sums = [() if own_degrees or convs.loops else aggregates_of(conv) for conv in convs.convs]
        self.aggregates = [each[0] if each else None for each in sums]

    def values(self, batch: Any) -> Sequence[Tensor]:
        """Returns what convolutions read of edges, [E, ...]; not for GCN."""
        return ()

    def after(self, k: int, x: Tensor) -> Tensor:
        """Applies what follows convolution ``k``."""
        return x

    def answer(self, hs: Any) -> Tensor:
        """Computes the result for some nodes from the outputs of the last layer, or of all where these are kept."""
        found: Tensor = hs
        return found

    def layer(self, k: int, h: Tensor, batch: Any) -> Tensor:
        seeds = int(batch.batch_size)
        if self.degrees is None:
            return self.after(k, self._convs.run_one(k, h, seeds, batch.edge_index, *self.values(batch)))
        edges, weights = _gcn_edges(batch, self.degrees)
        return self.after(k, self._convs.convs[k](h, edges, weights.to(h.dtype))[:seeds])

    def combine(self, k: int, h: Tensor, aggregated: Tensor) -> Tensor:
        return self.after(k, run_aggregated(self._convs.convs[k], h, aggregated))

    def gathers(self, k: int, node_type: str) -> bool:
        return gathers(self._convs.convs[k])

    def pieces(self, k: int, own: Tensor, batch: Any, node_type: str) -> HubPieces:
        conv, found = self._convs.convs[k], gathering(self._convs.convs[k], own)
        if self.degrees is not None:
            (at, _), value = _gcn_edges(batch, self.degrees)
            values: Tensor | None = value
        else:
            at, values = plain(batch.edge_index)[0], next(iter(self.values(batch)), None)
            if self._convs.loops or (isinstance(conv, (GATConv, GATv2Conv)) and conv.add_self_loops):
                at = torch.cat(
                    [at[at != 0], at.new_zeros(1)]
                )  # position 0 is the seed: one self-loop in place of its own
        return HubTypes([Sources("", at)], [found], lambda: self.after(k, found.end()), [values])


def _gcn_edges(batch: Any, degrees: DegreeSpec) -> tuple[Tensor, Tensor]:
    """Returns int64 [2, E], edges into the seeds sorted by seed, and float32 [E], GCN's factors from the degrees in the whole
    graph (``batch.in_degree``)."""
    (row, col), seeds = batch.edge_index, int(batch.batch_size)
    weights = torch.ones_like(row, dtype=torch.float32)
    fill = 1.0  # PyG ignores `improved` for edges without weights
    if degrees.weight is not None:
        weights, fill = batch[degrees.weight].flatten().float(), degrees.fill
    if degrees.loops:
        loop, nodes = row == col, torch.arange(seeds, device=row.device)
        of_loops = torch.full((seeds,), fill, device=row.device)
        if degrees.weight is not None:
            of_loops[col[loop]] = weights[loop]
        row, col = torch.cat([row[~loop], nodes]), torch.cat([col[~loop], nodes])
        weights = torch.cat([weights[~loop], of_loops])
        order = torch.argsort(col, stable=True)
        row, col, weights = row[order], col[order], weights[order]
    factors = batch.in_degree.float().pow(-0.5)
    factors = factors.masked_fill(torch.isinf(factors), 0.0)
    return torch.stack([row, col]), factors[row] * weights * factors[col]


class GNNLayers(ConvLayers):
    """Layers of a model of PyG's `BasicGNN` family, ``gnn``, whose convolutions are given. A base, as `ConvLayers`."""

    def __init__(self, module: nn.Module, gnn: Any, convs: TrimmedConvs, weight: str | None) -> None:
        super().__init__(module, convs, weight)
        self._gnn, self.keep = gnn, "all" if hasattr(gnn, "jk") else "last"

    def after(self, k: int, x: Tensor) -> Tensor:
        """Applies the activation and the norm that follow convolution ``k``."""
        gnn = self._gnn
        if k == gnn.num_layers - 1 and gnn.jk_mode is None:
            return x
        if gnn.act is not None and gnn.act_first:
            x = gnn.act(x)
        x = gnn.norms[k](x)
        if gnn.act is not None and not gnn.act_first:
            x = gnn.act(x)
        return x

    def answer(self, hs: Any) -> Tensor:
        """Applies jumping knowledge and the last linear layer."""
        x = self._gnn.jk(hs) if hasattr(self._gnn, "jk") else hs
        found: Tensor = self._gnn.lin(x) if hasattr(self._gnn, "lin") else x
        return found


class FamilyLayers(GNNLayers):
    """A model of PyG's `BasicGNN` family. gnn: with weights as they are when this is made.  edge_names: attributes of edges."""

    def __init__(self, gnn: BasicGNN, edge_names: Sequence[str]) -> None:
        own = fuse_layers(copy.deepcopy(gnn)).eval()
        weighted = gnn.supports_edge_weight and _WEIGHT in edge_names
        names = [_WEIGHT] * weighted + ["edge_attr"] * (gnn.supports_edge_attr and "edge_attr" in edge_names)
        gcn = _take_gcn(own.convs)
        widths = [gnn.in_channels] + [gnn.hidden_channels] * (gnn.num_layers - 1)
        if gcn is None and len(names) < 2:
            convs = TrimmedConvs.as_given(own.convs, widths)
        else:
            convs = TrimmedConvs(own.convs, None, gcn_loops=gcn)
        super().__init__(own, own, convs, _WEIGHT if weighted else None)
        self.given, self._names, self.asked = gnn, names, (gnn, "forward")

    def embed(self, batch: Any) -> Tensor:
        x: Tensor = batch.x
        return x.to(next(self.given.parameters()).dtype)  # features may be stored as float16

    def values(self, batch: Any) -> Sequence[Tensor]:
        return [batch[name] for name in self._names]

    def gathers(self, k: int, node_type: str) -> bool:
        return super().gathers(k, node_type) and (self.degrees is not None or not self._names)

    def head(self, hs: Any) -> Tensor:
        return self.answer(hs)

    def check_call(self, batch: Any, arguments: Sequence[Any]) -> None:
        x, own = arguments[0], self.embed(batch)
        if x.shape != own.shape or not torch.equal(x.to(own.dtype), own):
            raise OptionError(
                f"layer-wise inference: the module calls {type(self.given).__name__} with something else than batch.x, which is "
                "what all outputs were computed from. Give the module num_layers, embed(batch) and layer(k, h, batch)."
            )

    def reference(self, batch: Any) -> Tensor:
        values = {name: batch[name] for name in self._names}
        found: Tensor = self.given.eval()(self.embed(batch), batch.edge_index, **values)
        return found[: batch.batch_size]


def _take_gcn(convs: Sequence[Any]) -> bool | None:
    """Turns GCN's normalisation off in copies of convolutions. Returns True if it adds self-loops, False if it does not, None if
    no convolution has it."""
    found = [conv for conv in convs if isinstance(conv, GCNConv) and conv.normalize]
    if not found:
        return None
    if len(found) < len(convs) or any(conv.flow != "source_to_target" for conv in found):
        raise OptionError(
            "layer-wise inference: GCN's normalisation is computed once for all layers; expected GCNConv with normalize and "
            "flow source_to_target in each of them. Give the module its own layer()."
        )
    for conv in found:
        conv.normalize = False
    return bool(found[0].add_self_loops)


class TypedLayers:
    """Layers over the edge types of a graph. A base: others say what goes into the first of them.

    layers: each has ``edge_types``; ``activate``, whether its outputs pass a ReLU; and maps (rows by node type, edge_index by
    edge type, number of destination nodes by node type, what it reads of edges by edge type) to outputs by node type. A node may
    have any number of edges in a layer that has either of

    * ``convs``: a convolution for each edge type, whose outputs are summed.
    * ``gathering(node_type, own)``: returns an accumulator for each edge type into the node, whose ``add`` takes rows of the
      sources of some edges and what is read of them; and a function that returns the output [1, D]. own: [1, D], its row.
    """

    def __init__(self, module: nn.Module, layers: Sequence[Any]) -> None:
        _refuse_norms(module)
        self._layers, self.num_layers = layers, len(layers)

    def values(self, batch: Any) -> Mapping[Any, Tensor]:
        """Returns what layers read of edges, [E, ...] by edge type."""
        return {}

    def targets(self, k: int) -> set[str]:
        return {dst for _, _, dst in self._layers[k].edge_types}

    def layer(self, k: int, h: dict[str, Tensor], batch: Any) -> dict[str, Tensor]:
        layer = self._layers[k]
        into = {t: int(batch[t].batch_size) if "batch_size" in batch[t] else 0 for t in h}
        out = layer(h, {e: batch[e].edge_index for e in layer.edge_types}, into, self.values(batch))
        return {t: rows.relu() if layer.activate else rows for t, rows in out.items()}

    def gathers(self, k: int, node_type: str) -> bool:
        layer = self._layers[k]
        return hasattr(layer, "gathering") or all(
            gathers(conv) and not getattr(conv, "add_self_loops", False)
            for edge_type, conv in zip(layer.edge_types, layer.convs, strict=True)
            if edge_type[2] == node_type
        )

    def pieces(self, k: int, own: Tensor, batch: Any, node_type: str) -> HubPieces:
        layer, values = self._layers[k], self.values(batch)
        into = [e for e in layer.edge_types if e[2] == node_type]
        sources = [Sources(e[0], batch[e].edge_index[0]) for e in into]
        own_way = getattr(layer, "gathering", None)
        found, end = _summed(layer, node_type, own) if own_way is None else own_way(node_type, own)
        return HubTypes(sources, found, end, [values.get(e) for e in into])


def _summed(layer: Any, node_type: str, own: Tensor) -> tuple[list[Any], Callable[[], Tensor]]:
    each = [
        gathering(conv, own)
        for edge_type, conv in zip(layer.edge_types, layer.convs, strict=True)
        if edge_type[2] == node_type
    ]
    return each, lambda: torch.stack([one.end() for one in each]).sum(0).relu()


# The layers of a module, however it offers them.


def find_layers(
    module: nn.Module, node_types: Sequence[str], edge_names: Mapping[Any, Sequence[str]], typed: bool
) -> LayerwiseLayers:
    """Finds the layers of a module, with its weights as they are now. edge_names: attributes of edges, by edge type.
    typed: batches are by type, also in a graph with one node type.

    Raises `OptionError` for a module that offers none, or whose layers cannot be computed one after the other.
    """
    names = [] if typed else list(next(iter(edge_names.values()), ()))
    return LayerwiseLayers(_offered(module, names, typed), node_types, typed, edge_names)


def _offered(module: Any, edge_names: Sequence[str], typed: bool) -> Any:
    if callable(getattr(module, "layer", None)) and isinstance(getattr(module, "num_layers", None), int):
        _refuse_norms(module)
        return module
    if callable(getattr(module, "layerwise_layers", None)):
        return module.layerwise_layers()
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
        "GraphSAGE, NodePredictor, EdgePredictor and LinkPredictor."
    )
