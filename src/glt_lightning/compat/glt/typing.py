"""GraphLearn-for-PyTorch's `typing`."""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor

from glt_lightning.base import EdgeType, NodeType, lazy_names
from glt_lightning.compat.glt.given import Split
from glt_lightning.compat.glt.tensor_graph import reverse_edge_type

_ALIAS = "{name}: an alias for annotations; write what it stands for, such as torch.Tensor."
_ALIASES = (
    *("FeaturePartitionData", "GraphPartitionData", "HeteroEdgePartitionDict", "HeteroNodePartitionDict"),
    *("NodeIndex", "NodeLabel", "NumNeighbors", "PartitionBook", "TensorDataType"),
)

InputNodes: TypeAlias = Tensor | NodeType | tuple[NodeType, Tensor]
InputEdges: TypeAlias = Tensor | EdgeType | tuple[EdgeType, Tensor]

__all__ = ["EdgeType", "InputEdges", "InputNodes", "NodeType", "Split", "reverse_edge_type"]

__getattr__, __dir__ = lazy_names(
    __name__, {}, dict.fromkeys(_ALIASES, _ALIAS) | {"as_str": "{name}: use '__'.join(edge_type)."}
)
