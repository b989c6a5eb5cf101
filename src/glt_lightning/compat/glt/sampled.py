"""What GraphLearn-for-PyTorch's sampler takes and returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glt_lightning.base import EdgeType, NodeType, OptionError
from glt_lightning.compat.glt.graph import Graph


class NeighborOutput(NamedTuple):
    """One hop. nbr: neighbours of one seed after the other.  nbr_num: how many of each seed.  edge: ids, or None."""

    nbr: Tensor
    nbr_num: Tensor
    edge: Tensor | None


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


class EdgeSamplerInput:
    """Edges. row, col: ids [S] of their ends.  label: [S].  input_type: their edge type in a heterogeneous graph.  neg_sampling:
    a `NegativeSampling`, or None."""

    def __init__(
        self, row: Any, col: Any, label: Any = None, input_type: EdgeType | None = None, neg_sampling: Any = None
    ) -> None:
        self.row, self.col = torch.as_tensor(row), torch.as_tensor(col)
        self.label, self.input_type, self.neg_sampling = label, input_type, neg_sampling
        if self.row.shape != self.col.shape:
            raise OptionError(f"EdgeSamplerInput: row {list(self.row.shape)} and col {list(self.col.shape)} differ.")

    def __len__(self) -> int:
        return self.row.numel()

    @property
    def ends(self) -> Tensor:
        """[2, S]."""
        return torch.stack([self.row, self.col])

    def __getitem__(self, index: Any) -> EdgeSamplerInput:
        index = torch.as_tensor(index)
        label = None if self.label is None else torch.as_tensor(self.label)[index]
        return EdgeSamplerInput(self.row[index], self.col[index], label, self.input_type, self.neg_sampling)


@dataclass
class SamplerOutput:
    """Nodes and edges around seeds. node: ids [N], seeds first.  row, col: [E], positions in ``node`` of the sampled end and of
    the end that it was sampled for.  edge: ids [E], or None.  batch: the seeds.  num_sampled_nodes, num_sampled_edges: per hop.
    metadata: of edges and subgraphs, the positions of what was given."""

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


_LINKS = ("edge_label_index", "edge_label", "src_index", "dst_pos_index", "dst_neg_index")


def output_of(batch: Any, input_type: Any = None) -> SamplerOutput | HeteroSamplerOutput:
    """A batch with GLT's fields as its sampler gives it."""
    if not hasattr(batch, "node_types"):
        found = {name: batch[name] for name in _LINKS if name in batch}
        return SamplerOutput(
            node=batch.node,
            row=batch.edge_index[0],
            col=batch.edge_index[1],
            edge=batch.get("edge"),
            batch=batch.get("batch"),
            num_sampled_nodes=batch.get("num_sampled_nodes"),
            num_sampled_edges=batch.get("num_sampled_edges"),
            device=batch.node.device,
            metadata=batch.mapping if "mapping" in batch else found or None,
        )
    stores = {e: batch[e] for e in batch.edge_types}
    edges = {e: store.edge for e, store in stores.items() if "edge" in store}
    owners = [*(batch[t] for t in batch.node_types), *stores.values()]
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
        metadata={name: store[name] for store in owners for name in _LINKS if name in store} or None,
    )


# GraphLearn-for-PyTorch's `RandomNegativeSampler`: pairs of nodes without an edge, of a graph in memory.


class RandomNegativeSampler:
    """Draws pairs of nodes that are no edges, by torch's generator.

    graph: a `Graph`.  mode: ``CPU`` or ``CUDA``; the pairs are drawn on the CPU in each case.  edge_dir: ``out`` for a
    topology of layout ``CSR``, ``in`` for ``CSC``.

    >>> graph = glt.data.Graph(glt.data.Topology(np.array([[0, 0, 1, 1], [0, 1, 0, 2]])), mode="CPU")
    >>> {tuple(pair) for pair in glt.sampler.RandomNegativeSampler(graph, mode="CPU").sample(9, trials_num=20).T.tolist()}
    {...(...)...}
    """

    def __init__(self, graph: Graph, mode: str = "CUDA", edge_dir: str = "out") -> None:
        if mode.upper() not in ("CPU", "CUDA") or edge_dir not in ("out", "in"):
            raise OptionError(
                "RandomNegativeSampler: expected mode 'CPU' or 'CUDA' and edge_dir 'out' or 'in', got "
                f"{mode!r} and {edge_dir!r}."
            )
        topo = graph.topo
        self._shape = topo.row_count, int(topo.indices.max()) + 1 if topo.edge_count else 0
        rows = torch.repeat_interleave(torch.arange(topo.row_count), topo.degrees)
        self._edges = (rows * self._shape[1] + topo.indices).unique()  # sorted
        self._turned = edge_dir == "in"

    def sample(self, req_num: int, trials_num: int = 5, padding: bool = False) -> Tensor:
        """int64 [2, n]: sources and destinations of ``req_num`` pairs, or of fewer where ``trials_num`` draws of each find only
        edges. padding: those are then any pairs."""
        rows, columns = self._shape
        if not rows * columns:
            return torch.empty(2, 0, dtype=torch.int64)
        found, left = torch.empty(req_num, dtype=torch.int64), torch.arange(req_num)
        for _ in range(max(1, trials_num)):
            found[left] = torch.randint(rows * columns, (len(left),))
            left = left[torch.isin(found[left], self._edges)]
            if not len(left):
                break
        if not padding:
            missing = torch.zeros(req_num, dtype=torch.bool)
            missing[left] = True
            found = found[~missing]
        pairs = torch.stack([found // columns, found % columns])
        return pairs.flip(0) if self._turned else pairs
