"""GraphLearn-for-PyTorch's `NeighborSampler`: samples of a graph in memory, and how likely nodes are sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import EDGE, NODE, DataError, EdgeType, Fanouts, NodeType, OptionError, edge_type_str
from glt_lightning.compat.glt.feature import usable_device
from glt_lightning.compat.glt.graph import EdgeDir, Graph
from glt_lightning.compat.glt.one_batch import OneBatch
from glt_lightning.compat.glt.sampled import HeteroSamplerOutput, NodeSamplerInput, SamplerOutput
from glt_lightning.compat.glt.tensor_graph import reverse_edge_type
from glt_lightning.partition import host_array, inclusion_in_memory

_LAYOUT = {"out": "CSR", "in": "CSC"}
_REFUSED = {
    "sample_from_edges": "LinkNeighborLoader(data, num_neighbors, edge_label_index=edges, neg_sampling=...) draws around edges.",
    "sample_one_hop": "NeighborSampler(graph, [count]).sample_from_nodes(seeds) draws one hop.",
    "sample_pyg_v1": "NeighborLoader(..., as_pyg_v1=True) gives layers as PyG's first loaders did.",
}


class NeighborSampler:
    """Draws neighbours of nodes, and tells how likely each node is in batches of a training.

    Args:
        graph: A `Graph`, or one for each edge type.
        num_neighbors: Fan-outs, first hop first, -1 for all; or a list per edge type.
        device: Where `sample_prob` works. None: the CPU for a graph of mode ``CPU``, else ``cuda``. A CUDA device that cannot be
            used is replaced by the CPU, which is logged; the result is the same.
        with_edge: Samples have the ids of edges.
        with_neg: No effect: the edges that are given say it.
        with_weight: Draw by the weights of the topology; `sample_prob` does not know them.
        strategy: ``random``; no other is supported.
        edge_dir: ``out`` draws among destinations (needs layout ``CSR``), ``in`` among sources (``CSC``).
        seed: Of all draws. None: torch's.

    Raises:
        OptionError: For a layout that does not fit ``edge_dir``, and for another strategy.

    Example:
        >>> graph = Graph(Topology(np.array([[0, 0, 1], [1, 2, 3]])), mode="CPU")
        >>> sampler = NeighborSampler(graph, [1, 1])
        >>> sampler.sample_prob([0], node_cnt=4)  # node 0 draws 1 or 2; if it drew 1, that draws 3
        tensor([1.0000, 0.5000, 0.5000, 0.5000])
        >>> NeighborSampler(graph, [-1, -1], with_edge=True).sample_from_nodes(torch.tensor([0])).edge
        tensor([0, 1, 2])
    """

    def __init__(
        self,
        graph: Graph | Mapping[EdgeType, Graph],
        num_neighbors: Any = None,
        device: Any = None,
        with_edge: bool = False,
        with_neg: bool = False,
        with_weight: bool = False,
        strategy: str = "random",
        edge_dir: EdgeDir = "out",
        seed: int | None = None,
    ) -> None:
        if strategy != "random":
            raise OptionError(f"NeighborSampler: strategy: expected 'random', got {strategy!r}.")
        if edge_dir not in _LAYOUT:
            raise OptionError(f"NeighborSampler: edge_dir: expected 'out' or 'in', got {edge_dir!r}.")
        self._hetero = isinstance(graph, Mapping)
        self._edge_dir, self._graphs = edge_dir, {}
        for edge_type, each in graph.items() if isinstance(graph, Mapping) else [(EDGE, graph)]:
            if each.topo.layout != _LAYOUT[edge_dir]:
                raise OptionError(
                    f"NeighborSampler: edge_dir={edge_dir!r} draws from rows of layout {_LAYOUT[edge_dir]}, but the "
                    f"topology has {each.topo.layout}. Make the Topology with layout={_LAYOUT[edge_dir]!r}."
                )
            self._graphs[self._sampled(edge_type)] = each
        on_cpu = all(each.mode == "CPU" for each in self._graphs.values())
        self._wanted = device if device is not None else "cpu" if on_cpu else "cuda"
        self.graph, self.num_neighbors, self.with_edge, self.with_weight = graph, num_neighbors, with_edge, with_weight
        self.seed = seed
        self._draws = OneBatch(graph, edge_dir, with_edge, with_weight, seed)

    def sample_from_nodes(self, inputs: Any, device: Any = None) -> SamplerOutput | HeteroSamplerOutput:
        """inputs: a `NodeSamplerInput`, ids [S], or (node type, ids).  device: of the sample; None: the CPU."""
        return self._draws.of_nodes(NodeSamplerInput.of(inputs), self.num_neighbors, device)

    def subgraph(self, inputs: Any) -> SamplerOutput:
        """All edges among the seeds and what ``num_neighbors`` draws; ``metadata`` are the positions of the seeds."""
        return self._draws.subgraph(NodeSamplerInput.of(inputs), self.num_neighbors)

    def __getattr__(self, name: str) -> Any:
        if name in _REFUSED:
            raise OptionError(f"NeighborSampler.{name}: {_REFUSED[name]}")
        raise AttributeError(f"NeighborSampler has no attribute {name!r}")

    @property
    def _device(self) -> str:
        return usable_device(self._wanted)

    @property
    def _fanouts(self) -> Fanouts:
        given: Fanouts = self.num_neighbors
        if isinstance(given, Mapping):
            return {edge_type_str(self._sampled(_parsed(e))): k for e, k in given.items()}
        return given

    def sample_prob(
        self, inputs: Any, node_cnt: int | Mapping[NodeType, int], batch_size: int | None = 1024
    ) -> Tensor | dict[NodeType, Tensor]:
        """float32 [N], or one for each node type: the probability to be in a batch that grows from ``inputs``.

        inputs: seeds, integers [S]; in a heterogeneous graph (node type, seeds).  node_cnt: number of nodes, per type.
        batch_size: seeds of a batch, drawn from ``inputs``; None: all of them are one batch, as
            GraphLearn-for-PyTorch has it. Frequently read nodes then come near 1 and are hard to tell apart.
        """
        if self.with_weight:
            raise OptionError(
                "sample_prob: neighbours are drawn uniformly here. Make a sampler without with_weight for it."
            )
        num_nodes: dict[NodeType, int] = dict(sorted(node_cnt.items())) if isinstance(node_cnt, Mapping) else {}
        if self._hetero == (not num_nodes):
            raise OptionError("sample_prob: node_cnt: expected a number for one graph, one per node type for several.")
        if not isinstance(node_cnt, Mapping):
            num_nodes = {NODE: node_cnt}
        rows = {e: (_padded(e, graph, num_nodes), graph.topo.neighbors) for e, graph in self._graphs.items()}
        node_type, seeds = self._seeds(inputs, num_nodes)
        size = max(1, len(seeds)) if batch_size is None else batch_size
        if size < 1:
            raise OptionError(f"sample_prob: batch_size: expected an integer >= 1 or None, got {batch_size!r}.")
        found = inclusion_in_memory(num_nodes, rows, (node_type, seeds), size, self._fanouts, self._device)
        tensors = {t: torch.from_numpy(values.copy()) for t, values in found.items()}
        return tensors if self._hetero else tensors[NODE]

    def _sampled(self, edge_type: EdgeType) -> EdgeType:
        """The edge type as batches name it: messages flow from neighbour to seed."""
        return reverse_edge_type(edge_type) if self._edge_dir == "out" else edge_type

    def _seeds(self, inputs: Any, num_nodes: Mapping[NodeType, int]) -> tuple[NodeType, np.ndarray]:
        node_type = NODE
        if self._hetero:
            pair = isinstance(inputs, (tuple, list)) and len(inputs) == 2 and isinstance(inputs[0], str)
            if not pair or inputs[0] not in num_nodes:
                raise DataError(f"sample_prob: expected (node type, seeds) with a type of {', '.join(num_nodes)}.")
            node_type, inputs = inputs
        ids = host_array("seeds", inputs)
        if ids.ndim != 1 or (ids.dtype.kind not in "iu" and len(ids)):
            raise DataError(f"sample_prob: expected seeds as integers [S], got {ids.dtype} {list(ids.shape)}.")
        bad = (ids < 0) | (ids >= num_nodes[node_type])
        if bad.any():
            raise DataError(
                f"sample_prob: seed {ids[bad.argmax()]} is not one of the {num_nodes[node_type]} nodes of node_cnt."
            )
        return node_type, ids.astype(np.int64)


def _padded(edge_type: EdgeType, graph: Graph, num_nodes: Mapping[NodeType, int]) -> np.ndarray:
    """indptr with a row for every node of the type. Raises `DataError` for edges whose nodes do not exist."""
    topo, ends = graph.topo, (edge_type[2], edge_type[0])
    counts = (topo.row_count, int(topo.neighbors.max(initial=-1)) + 1)
    for node_type, least in zip(ends, counts, strict=True):
        if num_nodes.get(node_type, 0) < least:
            raise DataError(
                f"sample_prob: edges of {edge_type_str(edge_type)} name node {least - 1} of type {node_type!r}, "
                f"but node_cnt is {num_nodes.get(node_type)}."
            )
    return np.pad(topo.pointers, (0, num_nodes[edge_type[2]] - topo.row_count), "edge")


def _parsed(edge_type: EdgeType | str) -> EdgeType:
    if not isinstance(edge_type, str):
        return edge_type
    src, rel, dst = edge_type.split("__")
    return src, rel, dst
