"""The names of GLT (GraphLearn-for-PyTorch) for its scripts:
``import glt_lightning.compat.glt as glt`` is all that changes.

``glt.data``, ``glt.loader``, ``glt.partition``, ``glt.sampler``, ``glt.channel``, ``glt.distributed``, ``glt.typing`` and
``glt.utils``
have the classes and functions that its examples use; docs/coming-from.md lists them, and what to use for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import lazy_names

if TYPE_CHECKING:
    from glt_lightning.base import EdgeType as EdgeType, NodeType as NodeType
    from glt_lightning.compat.glt.folders import PartitionBook as PartitionBook
    from glt_lightning.compat.glt.given import Split as Split
    from glt_lightning.compat.glt.typing import (
        InputEdges as InputEdges,
        InputNodes as InputNodes,
        NodeIndex as NodeIndex,
        NodeLabel as NodeLabel,
        NumNeighbors as NumNeighbors,
        TensorDataType as TensorDataType,
        as_str as as_str,
    )
    from glt_lightning.partition import reverse_edge_type as reverse_edge_type

_MODULES = ("channel", "data", "loader", "partition", "sampler", "typing", "utils")
# GLT gives these out at its root, too
_TYPES = (
    "EdgeType",
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
)

__all__ = [*_MODULES, *_TYPES, "distributed"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {name: f"{__name__}.{name}" for name in _MODULES}
    | dict.fromkeys(_TYPES, f"{__name__}.typing")
    | {"distributed": "glt_lightning.compat.glt.distributed"},
)
