"""What a sampler returns as PyG data, with the fields of GraphLearn-for-PyTorch's loaders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from glt_lightning.base import EdgeType, NodeType
from glt_lightning.compat.glt.sampled import HeteroSamplerOutput, SamplerOutput
from glt_lightning.partition import reverse_edge_type

_SWAPPED = "edge_label_index"


def to_data(
    sampler_out: SamplerOutput,
    batch_labels: Tensor | None = None,
    node_feats: Tensor | None = None,
    edge_feats: Tensor | None = None,
    **kwargs: Any,
) -> Data:
    """The batch that a loader would give. batch_labels: [N].  node_feats: [N, ...].  edge_feats: [E, ...].  kwargs: further
    fields. As loaders do, it swaps the rows of ``edge_label_index``.

    >>> graph = glt.data.Graph(glt.data.Topology(np.array([[0, 0], [1, 2]])), mode="CPU")
    >>> found = glt.sampler.NeighborSampler(graph, [-1]).sample_from_nodes([0])
    >>> data = glt.loader.to_data(found, node_feats=torch.ones(3, 4))
    >>> data.node, data.edge_index, data.x.shape, data.batch_size
    (tensor([0, 1, 2]), tensor([[1, 2],
            [0, 0]]), torch.Size([3, 4]), 1)
    """
    data = Data(
        x=node_feats,
        edge_index=torch.stack([sampler_out.row, sampler_out.col]),
        edge_attr=edge_feats,
        y=batch_labels,
        num_nodes=len(sampler_out.node),
        **kwargs,
    )
    data.node, data.edge, data.batch = sampler_out.node, sampler_out.edge, sampler_out.batch
    data.batch_size = 0 if sampler_out.batch is None else len(sampler_out.batch)
    data.num_sampled_nodes, data.num_sampled_edges = sampler_out.num_sampled_nodes, sampler_out.num_sampled_edges
    if isinstance(sampler_out.metadata, Mapping):
        for name, value in sampler_out.metadata.items():
            data[name] = value.flip(0) if name == _SWAPPED else value
    elif sampler_out.metadata is not None:
        data.metadata = sampler_out.metadata
    return data


def to_hetero_data(
    hetero_sampler_out: HeteroSamplerOutput,
    batch_label_dict: Mapping[NodeType, Tensor] | None = None,
    node_feat_dict: Mapping[NodeType, Tensor] | None = None,
    edge_feat_dict: Mapping[EdgeType, Tensor] | None = None,
    edge_dir: str = "out",
    **kwargs: Any,
) -> HeteroData:
    """The same of a heterogeneous graph. batch_label_dict, node_feat_dict: by node type.  edge_feat_dict: by edge type as the
    sampler names it.  edge_dir: of the sampler; out-bound, ``edge_label_index`` is swapped and belongs to the reversed type.
    kwargs: further fields."""
    found, data = hetero_sampler_out, HeteroData(**kwargs)
    for node_type, ids in found.node.items():
        data[node_type].node = ids
        data[node_type].num_nodes = len(ids)
        _put(data[node_type], x=node_feat_dict, y=batch_label_dict, of=node_type)
    for node_type, ids in (found.batch or {}).items():
        data[node_type].batch, data[node_type].batch_size = ids, len(ids)
    for edge_type, edge_index in found.get_edge_index().items():
        data[edge_type].edge_index = edge_index
        _put(data[edge_type], edge=found.edge, edge_attr=edge_feat_dict, of=edge_type)
    data.num_sampled_nodes, data.num_sampled_edges = found.num_sampled_nodes, found.num_sampled_edges
    for name, value in (found.metadata or {}).items():
        src, _, dst = given = found.input_type
        owner = {"src_index": src, "dst_pos_index": dst, "dst_neg_index": dst}.get(name)
        turned = owner is None and edge_dir == "out"
        store = data[owner or (reverse_edge_type(given) if turned else given)]
        store[name] = value.flip(0) if turned and name == _SWAPPED else value
    return data


def _put(store: Any, of: Any, **by_type: Mapping[Any, Tensor] | None) -> None:
    for name, values in by_type.items():
        if values is not None and of in values:
            store[name] = values[of]
