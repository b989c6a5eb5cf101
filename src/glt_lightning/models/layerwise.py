"""Layer-wise inference of the ready modules: their layers, their columns, and the ranking of their test edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import SPLITS, EdgeType, edge_type_str
from glt_lightning.inference import Candidates, ConvLayers, GNNLayers, Ranking, TypedLayers
from glt_lightning.models.encoders import ConvStack, FamilyEncoder
from glt_lightning.models.gnn import HeterogeneousEncoder, HomogeneousGNN

if TYPE_CHECKING:
    from glt_lightning.inference import LayerwiseRun
    from glt_lightning.lightning import GLTDataModule
    from glt_lightning.tensors import DistGraph


class ReadyLayers:
    """The layers of a ready module's encoder, and its columns. columns(out, node_type): makes columns of outputs [n, D] of the
    encoder."""

    def __init__(self, encoder: Any, columns: Callable[[Tensor, str], dict[str, Tensor]]) -> None:
        self._encoder, self._columns, self._typed = encoder, columns, isinstance(encoder, HeterogeneousEncoder)
        layers: Any = (_Typed if self._typed else _Stack if isinstance(encoder, ConvStack) else _Family)(encoder)
        if self._typed:
            self.output_types, self.input_types = encoder.target_types, list(encoder.encoders)
            self.targets, self.asked = layers.targets, (encoder, "embed")
        else:
            self.asked, self._answer = (encoder, "forward"), layers.answer
            self.keep, self.degrees = layers.keep, layers.degrees
            self.aggregates, self.combine = layers.aggregates, layers.combine
        self.num_layers, self.embed, self.layer = layers.num_layers, layers.embed, layers.layer
        self.gathers, self.pieces = layers.gathers, layers.pieces

    def head(self, hs: Any, node_type: str = "node") -> dict[str, Tensor]:
        return self._columns(hs if self._typed else self._answer(hs), node_type)

    def answer(self, hs: Any) -> Any:
        """Returns the result of the encoder's forward pass from known outputs of its layers."""
        return {t: hs[t] for t in self.output_types} if self._typed else self._answer(hs)

    def reference(self, batch: Any) -> dict[str, Tensor]:
        if not self._typed:
            return self._columns(self._encoder(batch), "node")
        found = self._encoder.embed(batch)
        node_type = next(t for t in self.output_types if len(found[t]))
        return self._columns(found[node_type], node_type)


class _Typed(TypedLayers):
    """The encoder of a ready module over a typed graph."""

    def __init__(self, encoder: HeterogeneousEncoder) -> None:
        super().__init__(encoder, list(encoder.layers))
        self._encoder = encoder

    def embed(self, batch: Any) -> dict[str, Tensor]:
        return {t: encoder(t, batch[t]) for t, encoder in self._encoder.encoders.items()}

    def values(self, batch: Any) -> dict[EdgeType, Tensor]:
        return self._encoder.edge_values(batch)


class _Stack(ConvLayers):
    """The encoder of a ready module over a homogeneous graph: a stack of convolutions."""

    def __init__(self, encoder: ConvStack) -> None:
        super().__init__(encoder, encoder.trimmed, _weight(encoder))
        self.embed, self._encoder = partial(encoder.encoder, "node"), encoder

    def values(self, batch: Any) -> list[Tensor]:
        return self._encoder.values(batch)

    def after(self, k: int, x: Tensor) -> Tensor:
        return x.relu()


class _Family(GNNLayers):
    """The encoder of a ready module over a homogeneous graph: a model of PyG."""

    def __init__(self, encoder: HomogeneousGNN) -> None:
        super().__init__(encoder, encoder.gnn, encoder.trimmed, _weight(encoder))
        self.embed, self._encoder = partial(encoder.encoder, "node"), encoder

    def values(self, batch: Any) -> list[Tensor]:
        return self._encoder.values(batch)

    def answer(self, hs: Any) -> Tensor:
        found = super().answer(hs)
        return found.relu() if isinstance(self._encoder, FamilyEncoder) else found


def _weight(encoder: HomogeneousGNN | ConvStack) -> str | None:
    """Returns the name of the edge attribute by which GCN weighs edges."""
    return None if encoder.edges is None or encoder.trimmed.gcn_loops is None else encoder.edges.input.name


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
        if not metrics:
            continue
        ends = _candidates(graph, src), _candidates(graph, dst)
        source, destination = (partial(_embeddings, module, run, t, c) for t, c in zip((src, dst), ends, strict=True))
        counts = len(ends[0]), len(ends[1])
        edges = {split: _rows(data, split, edge_type, ends) for split in SPLITS}
        for relation in np.unique(edges["test"][2]):
            test, train, val = (edges[split][:2, edges[split][2] == relation] for split in ("test", "train", "val"))
            mine = test[:, np.isin(test[0], np.unique(test[0])[graph.rank :: graph.world_size])]
            kinds = {} if module.num_relations is None else {"relation": int(relation)}
            known = np.concatenate([test, train, val], axis=1)
            known = np.concatenate([known, known[::-1]], axis=1) if data.undirected and src == dst else known
            scores = partial(module.decoder_of(edge_type).all_pairs, **kinds)
            Ranking(source, destination, counts, scores).update(metrics, mine, train, filtered=known)


def _candidates(graph: DistGraph, node_type: str) -> Candidates:
    """Returns the nodes of a type that are ranked, by their rows in place of their ids."""
    found = Candidates.of(graph, node_type)
    return found if found.ids is None else replace(found, ids=np.sort(graph.rows_of(found.ids, node_type).numpy()))


def _rows(data: GLTDataModule, split: str, edge_type: EdgeType, nodes: Sequence[Candidates]) -> np.ndarray:
    """Returns int64 [3, E]: positions of the ends of a split's edges, and the relation of each, 0 if they have none."""
    graph, found = data.dist_graph, data.edges_of(split, edge_type)
    if found is None:
        return np.empty((3, 0), np.int64)
    named = zip(nodes, found, (edge_type[0], edge_type[2]), strict=True)
    ends = [each.positions(graph.rows_of(torch.from_numpy(ids), t).numpy()) for each, ids, t in named]
    relation = data.relations_of(split, edge_type)
    return np.stack([*ends, np.zeros(len(ends[0]), np.int64) if relation is None else relation])


def _embeddings(module: Any, run: LayerwiseRun, node_type: str, nodes: Candidates, at: np.ndarray) -> Tensor:
    found = run.outputs(torch.from_numpy(nodes.at(at)).to(module.device), node_type)
    return run.module.head(found, node_type)["embedding"].float()
