"""Batches one at a time, of whatever seeds a script asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from glt_lightning.base import (
    EDGE,
    EdgeType,
    GraphSchema,
    NegativeSampling,
    OptionError,
    SamplingOptions,
    edge_type_str,
)
from glt_lightning.compat.glt.dataset import Dataset
from glt_lightning.compat.glt.folders import StoredEdges
from glt_lightning.compat.glt.graph import Graph
from glt_lightning.compat.glt.loading import WEIGHTS, output_device, stored_edges
from glt_lightning.compat.glt.sampled import (
    HeteroSamplerOutput,
    NodeSamplerInput,
    SamplerOutput,
    output_of,
)
from glt_lightning.loader import LinkSpec, LoaderSpec, Session
from glt_lightning.partition import host_array
from glt_lightning.sampling import LinkTask


class OneBatch:
    """Opens the graph at the first call. Each call draws anew, and repeats with the same ``seed`` in another run."""

    def __init__(
        self,
        graph: Graph | Mapping[EdgeType, Graph],
        edge_dir: str,
        with_edge: bool,
        with_weight: bool,
        seed: int | None,
    ) -> None:
        self._dataset = Dataset(graph, edge_dir=edge_dir)
        self._with_edge, self._weight = with_edge, WEIGHTS if with_weight else None
        self._seed, self._calls = seed, 0

    def of_nodes(
        self, inputs: NodeSamplerInput, num_neighbors: Any, device: Any = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        with self._session() as session:
            stored = stored_edges(session, self._dataset.edge_dir)
            spec = self._spec(inputs, stored.fanouts(_given(num_neighbors)))
            return self._only(session.make_loader(spec), inputs.input_type, output_device(device))

    def subgraph(self, inputs: NodeSamplerInput, num_neighbors: Any) -> SamplerOutput:
        with self._session() as session:
            stored = stored_edges(session, self._dataset.edge_dir)
            spec = self._spec(inputs, stored.fanouts([] if num_neighbors is None else num_neighbors))
            found = self._only(session.make_subgraph_loader(spec), None)
            assert isinstance(found, SamplerOutput)
            return found

    def _spec(self, inputs: NodeSamplerInput, fanouts: Any) -> LoaderSpec:
        return LoaderSpec(
            name=self._name(),
            num_neighbors=fanouts,
            batch_size=max(1, len(inputs)),
            seeds=inputs.node.cpu().numpy(),
            node_type=inputs.input_type,
            exact=True,
            weight_attr=self._weight,
        )

    def _name(self) -> str:
        self._calls += 1
        return f"call {self._calls}"

    def _session(self) -> Session:
        seed = torch.initial_seed() if self._seed is None else self._seed
        return Session(self._dataset.open(), SamplingOptions(with_edge=self._with_edge), seed=seed % (1 << 63))

    def _only(self, loader: Any, input_type: Any, device: Any = "cpu") -> SamplerOutput | HeteroSamplerOutput:
        fields = self._dataset.fields(with_edge=self._with_edge)
        return output_of(fields(next(iter(loader))).to(device), input_type)


def _given(num_neighbors: Any) -> Any:
    if num_neighbors is None:
        raise OptionError("NeighborSampler: num_neighbors: give fan-outs, first hop first.")
    return num_neighbors


# Edges to predict, as GraphLearn-for-PyTorch gives them and as our loaders take them.


def link_spec(stored: StoredEdges, name: str, edges: Any, labels: Any, neg_sampling: Any) -> tuple[LinkSpec, bool]:
    """(the loader, whether ``edge_label_index`` of its batches has to be swapped).

    GLT gives the rows of ``edge_label_index`` swapped, except for in-bound sampling in heterogeneous graphs. Out-bound, edges are
    stored turned round, which has swapped them already; those of triplets are given as they are. Raises `OptionError` for edges
    that cannot be given.
    """
    edge_type, ends = _typed(stored, edges)
    homogeneous = stored.schema.homogeneous
    negatives = NegativeSampling.of(neg_sampling)
    triplets = negatives is not None and negatives.mode == "triplet"
    turn = stored.turned and not triplets
    make = TurnedLinks if stored.turned and triplets else LinkSpec
    spec = make(
        name=name,
        edge_label_index=ends[::-1] if turn else ends,
        num_neighbors=[1],
        batch_size=1,
        edge_type=edge_type_str(stored.stored(edge_type)) if edge_type is not None else None,
        edge_label=None if labels is None else host_array("edge_label", labels),
        neg_sampling=negatives,
    )
    return spec, homogeneous and not turn and not triplets


class TurnedLinks(LinkSpec):
    """Edges that are stored the other way round, with negatives among the destinations that the user means."""

    def task(self, schema: GraphSchema) -> LinkTask:
        return replace(super().task(schema), turned=True)


def _typed(stored: StoredEdges, edges: Any) -> tuple[EdgeType | None, np.ndarray]:
    edge_type: Any = None
    if isinstance(edges, (tuple, list)) and len(edges) == 2 and _is_type(edges[0]):
        edge_type, edges = edges
    if edge_type is None and not stored.schema.homogeneous:
        raise OptionError("edge_label_index: expected (edge type, edges) in a heterogeneous graph.")
    if edges is None:
        raise OptionError(
            "edge_label_index: expected edges int [2, S]. None, for all edges, is not taken: they lie in the parts of several "
            "processes. Give each process its own."
        )
    ends = np.stack([host_array("edge_label_index", each) for each in edges]) if len(edges) == 2 else np.asarray(edges)
    return (None if stored.schema.homogeneous else edge_type or EDGE), ends


def _is_type(given: Any) -> bool:
    return isinstance(given, str) or (isinstance(given, tuple) and len(given) == 3 and isinstance(given[0], str))
