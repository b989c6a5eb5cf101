"""GraphLearn-for-PyTorch's `typing`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from glt_lightning.base import EdgeType, NodeType, edge_type_str
from glt_lightning.compat.glt.folders import FeaturePartitionData, GraphPartitionData, PartitionBook
from glt_lightning.compat.glt.given import Split
from glt_lightning.partition import reverse_edge_type

__all__ = [
    "EdgeType",
    "FeaturePartitionData",
    "GraphPartitionData",
    "HeteroEdgePartitionDict",
    "HeteroNodePartitionDict",
    "InputEdges",
    "InputNodes",
    "NodeIndex",
    "NodeLabel",
    "NodeType",
    "NumNeighbors",
    "PartitionBook",
    "Split",
    "TensorDataType",
    "as_str",
    "reverse_edge_type",
]

TensorDataType: TypeAlias = Tensor | np.ndarray
NodeLabel: TypeAlias = TensorDataType | Mapping[NodeType, TensorDataType]
NodeIndex: TypeAlias = TensorDataType | Mapping[NodeType, TensorDataType]
InputNodes: TypeAlias = Tensor | NodeType | tuple[NodeType, Tensor]
InputEdges: TypeAlias = Tensor | EdgeType | tuple[EdgeType, Tensor]
HeteroNodePartitionDict: TypeAlias = dict[NodeType, PartitionBook]
HeteroEdgePartitionDict: TypeAlias = dict[EdgeType, PartitionBook]
NumNeighbors: TypeAlias = Sequence[int] | Mapping[EdgeType, Sequence[int]]


def as_str(given: Any) -> str:
    """A node type, or an edge type joined by ``__``; empty for anything else."""
    if isinstance(given, str):
        return given
    return edge_type_str((given[0], given[1], given[2])) if isinstance(given, (tuple, list)) and len(given) == 3 else ""
