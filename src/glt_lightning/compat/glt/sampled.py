"""What GraphLearn-for-PyTorch's sampler takes and returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from glt_lightning.base import EdgeType, NodeType


class NodeSamplerInput:
    """Seeds. node: ids [S].  input_type: their node type in a heterogeneous graph."""

    def __init__(self, node: Any, input_type: NodeType | None = None) -> None:
        self.node, self.input_type = torch.as_tensor(node), input_type

    def __len__(self) -> int:
        return self.node.numel()

    def __getitem__(self, index: Any) -> NodeSamplerInput:
        return NodeSamplerInput(self.node[torch.as_tensor(index)], self.input_type)

    @classmethod
    def of(cls, given: Any) -> NodeSamplerInput:
        if isinstance(given, NodeSamplerInput):
            return given
        if isinstance(given, (tuple, list)) and len(given) == 2 and isinstance(given[0], str):
            return cls(given[1], given[0])
        return cls(given)


@dataclass
class SamplerOutput:
    """Nodes and edges around seeds. node: ids [N], seeds first.  row, col: [E], positions in ``node`` of the sampled end and of
    the end that it was sampled for.  edge: ids [E], or None.  batch: the seeds.  num_sampled_nodes, num_sampled_edges: per hop.
    metadata: of subgraphs, the positions of the seeds."""

    node: Tensor
    row: Tensor
    col: Tensor
    edge: Tensor | None = None
    batch: Tensor | None = None
    num_sampled_nodes: Tensor | None = None
    num_sampled_edges: Tensor | None = None
    device: torch.device | None = None
    metadata: Any = None


@dataclass
class HeteroSamplerOutput:
    """The same by type: node, batch and num_sampled_nodes by node type, the others by edge type as batches have it."""

    node: dict[NodeType, Tensor]
    row: dict[EdgeType, Tensor]
    col: dict[EdgeType, Tensor]
    edge: dict[EdgeType, Tensor] | None = None
    batch: dict[NodeType, Tensor] | None = None
    num_sampled_nodes: dict[NodeType, Tensor] | None = None
    num_sampled_edges: dict[EdgeType, Tensor] | None = None
    edge_types: list[EdgeType] = field(default_factory=list)
    input_type: Any = None
    device: torch.device | None = None
    metadata: Any = None

    def get_edge_index(self) -> dict[EdgeType, Tensor]:
        """[2, E] by edge type."""
        return {e: torch.stack([self.row[e], self.col[e]]) for e in self.row}


def output_of(batch: Any, input_type: Any = None) -> SamplerOutput | HeteroSamplerOutput:
    """A batch with GLT's fields as its sampler gives it."""
    if not hasattr(batch, "node_types"):
        return SamplerOutput(
            node=batch.node,
            row=batch.edge_index[0],
            col=batch.edge_index[1],
            edge=batch.get("edge"),
            batch=batch.get("batch"),
            num_sampled_nodes=batch.get("num_sampled_nodes"),
            num_sampled_edges=batch.get("num_sampled_edges"),
            device=batch.node.device,
            metadata=batch.get("mapping"),
        )
    stores = {e: batch[e] for e in batch.edge_types}
    edges = {e: store.edge for e, store in stores.items() if "edge" in store}
    return HeteroSamplerOutput(
        node={t: batch[t].node for t in batch.node_types if len(batch[t].node)},
        row={e: store.edge_index[0] for e, store in stores.items()},
        col={e: store.edge_index[1] for e, store in stores.items()},
        edge=edges or None,
        batch={t: batch[t].batch for t in batch.node_types if "batch" in batch[t]},
        num_sampled_nodes=batch.num_sampled_nodes,
        num_sampled_edges=batch.num_sampled_edges,
        edge_types=list(stores),
        input_type=input_type,
    )
