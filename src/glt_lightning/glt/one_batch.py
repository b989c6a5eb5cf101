"""Batches one at a time, of whatever seeds a script asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from glt_lightning.errors import OptionError
from glt_lightning.glt.dataset import Dataset
from glt_lightning.glt.graph import Graph
from glt_lightning.glt.links import link_spec
from glt_lightning.glt.loading import WEIGHTS, stored_edges
from glt_lightning.glt.sampled import (
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NodeSamplerInput,
    SamplerOutput,
    output_of,
)
from glt_lightning.glt.stored import StoredEdges
from glt_lightning.loader import LoaderContext, LoaderSpec
from glt_lightning.options import SamplingOptions
from glt_lightning.types import EdgeType


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

    def of_nodes(self, inputs: NodeSamplerInput, num_neighbors: Any) -> SamplerOutput | HeteroSamplerOutput:
        with self._context() as context:
            stored = stored_edges(context, self._dataset.edge_dir)
            spec = self._spec(inputs, stored.fanouts(_given(num_neighbors)))
            return self._only(context.make_loader(spec), inputs.input_type)

    def of_edges(self, inputs: EdgeSamplerInput, num_neighbors: Any) -> SamplerOutput | HeteroSamplerOutput:
        with self._context() as context:
            stored: StoredEdges = stored_edges(context, self._dataset.edge_dir)
            ends = torch.stack([inputs.row, inputs.col])
            edges = ends if inputs.input_type is None else (inputs.input_type, ends)
            spec, _ = link_spec(stored, self._name(), edges, inputs.label, inputs.neg_sampling)
            fanouts = stored.fanouts(_given(num_neighbors))
            spec = replace(
                spec, num_neighbors=fanouts, batch_size=max(1, len(inputs)), exact=True, weight_attr=self._weight
            )
            found = self._only(context.make_link_loader(spec), inputs.input_type)
            if stored.turned and "edge_label_index" in (
                found.metadata or {}
            ):  # a sampler gives sources first, and its loaders swap
                found.metadata["edge_label_index"] = found.metadata["edge_label_index"].flip(0)
            return found

    def subgraph(self, inputs: NodeSamplerInput, num_neighbors: Any) -> SamplerOutput:
        with self._context() as context:
            stored = stored_edges(context, self._dataset.edge_dir)
            spec = self._spec(inputs, stored.fanouts([] if num_neighbors is None else num_neighbors))
            found = self._only(context.make_subgraph_loader(spec), None)
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

    def _context(self) -> LoaderContext:
        seed = torch.initial_seed() if self._seed is None else self._seed
        return LoaderContext(self._dataset.open(), SamplingOptions(with_edge=self._with_edge), seed=seed % (1 << 63))

    def _only(self, loader: Any, input_type: Any) -> SamplerOutput | HeteroSamplerOutput:
        fields = self._dataset.fields(with_edge=self._with_edge)
        return output_of(fields(next(iter(loader))), input_type)


def _given(num_neighbors: Any) -> Any:
    if num_neighbors is None:
        raise OptionError("NeighborSampler: num_neighbors: give fan-outs, first hop first.")
    return num_neighbors
