"""Layer-wise inference of the ready modules: their layers, their columns, and the ranking of their test edges."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.nn import HGTConv

from glt_lightning.base import SPLITS, EdgeType, edge_type_str
from glt_lightning.inference import (
    ConvLayers,
    Embedded,
    HubPieces,
    HubTypes,
    Ranking,
    RankMetric,
    RunningSoftmax,
    RunningSum,
    Sources,
    after_conv,
    after_layers,
    gathering,
    gathers,
    refuse_norms,
)
from glt_lightning.models.encoders import ConvStack, FamilyEncoder
from glt_lightning.models.gnn import HeterogeneousEncoder, HomogeneousGNN
from glt_lightning.models.layers import NO_VALUES, HGTLayer, RGCNLayer

if TYPE_CHECKING:
    from glt_lightning.inference import LayerwiseRun
    from glt_lightning.lightning import GLTDataModule


class ReadyLayers:
    """The layers of a ready module's encoder, and its columns. columns(out, node_type): makes columns of outputs [n, D] of the
    encoder."""

    def __init__(
        self, encoder: Any, edge_names: Sequence[str], columns: Callable[[Tensor, str], dict[str, Tensor]]
    ) -> None:
        self._columns = columns
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
        """Returns the result of the encoder's forward pass from known outputs of its layers."""
        return (
            {t: hs[t] for t in self.output_types} if isinstance(self._layers, TypedLayers) else self._layers.outputs(hs)
        )

    def reference(self, batch: Any) -> dict[str, Tensor]:
        if not isinstance(self._layers, TypedLayers):
            return self._columns(self._encoder(batch), "node")
        found = self._encoder.embed(batch)
        node_type = next(t for t in self.output_types if len(found[t]))
        return self._columns(found[node_type], node_type)


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
        out = layer(h, {e: batch[e].edge_index for e in layer.edge_types}, into, self._encoder.edge_values(batch))
        return {t: rows.relu() if layer.activate else rows for t, rows in out.items()}

    def gathers(self, k: int, node_type: str) -> bool:
        return types_gather(self._encoder.layers[k], node_type)

    def pieces(self, k: int, own: Tensor, batch: Any, node_type: str) -> HubPieces:
        layer: Any = self._encoder.layers[k]
        edges = {e: batch[e].edge_index for e in layer.edge_types if e[2] == node_type}
        return typed_pieces(layer, node_type, own, edges, self._encoder.edge_values(batch))

    def outputs(self, hs: Tensor) -> Tensor:
        return hs


class HomogeneousLayers:
    """The encoder of a ready module over a homogeneous graph."""

    def __init__(self, encoder: HomogeneousGNN | ConvStack, edge_names: Sequence[str]) -> None:
        refuse_norms(encoder)
        self.encoder = encoder
        stack = isinstance(encoder, ConvStack)
        convs: Any = encoder.convs if stack else encoder.gnn.convs  # type: ignore[union-attr]
        weight = None if encoder.edges is None or encoder.gcn_loops is None else encoder.edges.input.name
        self._convs = ConvLayers(convs, encoder.forms, encoder.gcn_loops, encoder.loops, weight)
        self.num_layers, self.degrees = self._convs.num_layers, self._convs.degrees
        self.aggregates = self._convs.aggregates
        self.keep = "last" if stack or not hasattr(encoder.gnn, "jk") else "all"

    def embed(self, batch: Any) -> Tensor:
        found: Tensor = self.encoder.encoder("node", batch)
        return found

    def layer(self, k: int, h: Tensor, batch: Any) -> Tensor:
        values = self._values(batch)
        return self._after(k, self._convs.run(k, h, batch, {} if values is None else {"edges": values}))

    def _values(self, batch: Any) -> Tensor | None:
        if self._with_type:
            kinds: Tensor = batch.edge_type.long()
            return kinds
        return None if self.encoder.edges is None else self.encoder.edges(batch)

    @property
    def _with_type(self) -> bool:
        return isinstance(self.encoder, ConvStack) and self.encoder.with_type

    def gathers(self, k: int, node_type: str) -> bool:
        return self._convs.gathers(k)

    def pieces(self, k: int, own: Tensor, batch: Any, node_type: str) -> HubPieces:
        return self._convs.pieces(k, own, batch, self._values(batch), partial(self._after, k))

    def combine(self, k: int, h: Tensor, aggregated: Tensor) -> Tensor:
        return self._after(k, self._convs.combine(k, h, aggregated))

    def _after(self, k: int, x: Tensor) -> Tensor:
        return x.relu() if isinstance(self.encoder, ConvStack) else after_conv(self.encoder.gnn, k, x)

    def outputs(self, hs: Any) -> Tensor:
        """Computes the encoder's result for some nodes from the outputs of its layers."""
        encoder: Any = self.encoder
        if isinstance(encoder, ConvStack):
            return hs
        found = after_layers(encoder.gnn, hs)
        return found.relu() if isinstance(encoder, FamilyEncoder) else found


def types_gather(layer: Any, node_type: str) -> bool:
    """Tells whether `typed_pieces` supports a layer of `HeterogeneousEncoder` for the nodes of a type."""
    if isinstance(layer, (HGTLayer, RGCNLayer)):
        return True
    convs = [conv for e, conv in zip(layer.edge_types, layer.convs, strict=True) if e[2] == node_type]
    return all(gathers(conv) and not getattr(conv, "add_self_loops", False) for conv in convs)


def typed_pieces(
    layer: Any,
    node_type: str,
    own: Tensor,
    edges: Mapping[EdgeType, Tensor],
    values: Mapping[EdgeType, Tensor] = NO_VALUES,
) -> HubPieces:
    """Computes a layer of one node, with its ReLU, from some edges at a time. own: [1, D], its row.  edges: int64 [2, E] into
    it, by edge type.  values: what the layer reads of edges, for the edge types that have it."""
    numbers = [number for number, e in enumerate(layer.edge_types) if e[2] == node_type]
    sources = [Sources(layer.edge_types[n][0], edges[layer.edge_types[n]][0]) for n in numbers]
    if isinstance(layer, HGTLayer):
        attention = _HGTNode(layer, node_type, own)
        return HubTypes(sources, [_HGTEdges(attention, layer.edge_types[n]) for n in numbers], attention.end)
    if isinstance(layer, RGCNLayer):
        sums = [RunningSum(own[0], mean=layer.conv.aggr == "mean") for _ in numbers]

        def end() -> Tensor:
            found = [
                layer.conv.transformed(each.value()[None, None], slice(n, n + 1))
                for n, each in zip(numbers, sums, strict=True)
            ]
            return layer.conv.with_root(torch.stack(found).sum(0), own).relu()

        return HubTypes(sources, [_Plain(each) for each in sums], end)
    each = [gathering(layer.convs[n], own) for n in numbers]
    weights = [values.get(layer.edge_types[n]) for n in numbers]
    return HubTypes(sources, each, lambda: torch.stack([one.end() for one in each]).sum(0).relu(), weights)


class _Plain:
    def __init__(self, found: RunningSum) -> None:
        self._found = found

    def add(self, rows: Tensor, values: Tensor | None) -> None:
        self._found.add(rows)


class _HGTNode:
    """The attention of a node over the edges of all types into it."""

    def __init__(self, layer: HGTLayer, node_type: str, own: Tensor) -> None:
        self.layer, self._type, self._own = layer, node_type, own
        conv: HGTConv = layer.conv
        self._width = conv.out_channels // conv.heads
        self._query = self.heads(layer.queries(node_type, own))
        self._sum = RunningSoftmax(conv.heads, own.new_empty(self._width))

    def heads(self, rows: Tensor) -> Tensor:
        return rows.view(-1, self.layer.conv.heads, self._width)

    def add(self, keys: Tensor, values: Tensor) -> None:
        scores = (self._query * self.heads(keys)).sum(-1) / math.sqrt(self._width)
        self._sum.add(scores, self.heads(values))

    def end(self) -> Tensor:
        return self.layer.mixed(self._type, self._sum.value().flatten()[None], self._own)


class _HGTEdges:
    def __init__(self, node: _HGTNode, edge_type: EdgeType) -> None:
        self._node, self._edge_type = node, edge_type

    def add(self, rows: Tensor, values: Tensor | None) -> None:
        self._node.add(*self._node.layer.keys_and_values(self._edge_type, rows))


def rank_test_edges(module: Any, data: GLTDataModule, run: LayerwiseRun) -> None:
    """Updates the metrics of a `LinkPredictor` with the edges of the test split, ranked by the outputs of a run among all nodes:
    without the edges of training, and where they are filtered without those of all splits. Each rank ranks a share."""
    graph = data.dist_graph
    for edge_type in graph.edge_types if module.edge_type is None else module.edge_types:
        assert edge_type is not None
        metrics = [
            m for name, m in module.test_ranking.items() if name.partition("/")[2] in ("", edge_type_str(edge_type))
        ]
        src, _, dst = edge_type
        source, destination = (Embedded(partial(_embeddings, module, run, t), graph.num_nodes(t)) for t in (src, dst))
        if not metrics:
            continue
        edges = {split: _rows(data, split, edge_type) for split in SPLITS}
        for relation in np.unique(edges["test"][2]):
            test, train, val = (edges[split][:2, edges[split][2] == relation] for split in ("test", "train", "val"))
            mine = test[:, np.isin(test[0], np.unique(test[0])[graph.rank :: graph.world_size])]
            kinds = {} if module.num_relations is None else {"relation": int(relation)}
            ranking = Ranking(source, destination, partial(module.decoder_of(edge_type).all_pairs, **kinds))
            ranking.update([m for m in metrics if not isinstance(m, RankMetric)], np.unique(mine, axis=1), train)
            known = np.concatenate([test, train, val], axis=1)
            known = np.concatenate([known, known[::-1]], axis=1) if data.undirected and src == dst else known
            ranking.update([m for m in metrics if isinstance(m, RankMetric)], mine, known)


def _rows(data: GLTDataModule, split: str, edge_type: EdgeType) -> np.ndarray:
    """Returns int64 [3, E]: rows of the ends of a split's edges, and the relation of each, 0 if they have none."""
    graph, found = data.dist_graph, data.edges_of(split, edge_type)
    if found is None:
        return np.empty((3, 0), np.int64)
    named = zip(found, (edge_type[0], edge_type[2]), strict=True)
    ends = [graph.rows_of(torch.from_numpy(ids), t).numpy() for ids, t in named]
    relation = data.relations_of(split, edge_type)
    return np.stack([*ends, np.zeros(len(ends[0]), np.int64) if relation is None else relation])


def _embeddings(module: Any, run: LayerwiseRun, node_type: str, rows: np.ndarray) -> Tensor:
    found = run.outputs(torch.from_numpy(rows).to(module.device), node_type)
    return run.module.head(found, node_type)["embedding"].float()
