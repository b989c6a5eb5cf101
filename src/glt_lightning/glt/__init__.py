"""The names of GLT (GraphLearn-for-PyTorch) for its scripts:
``import glt_lightning.glt as glt`` is all that changes.

``glt.data``, ``glt.loader``, ``glt.partition``, ``glt.sampler``, ``glt.channel``, ``glt.distributed``, ``glt.typing`` and
``glt.utils``
have the classes and functions that its examples use; docs/coming-from.md lists them, and what to use for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.lazy import lazy_names

if TYPE_CHECKING:
    from glt_lightning.glt.typing import (
        EdgeType as EdgeType,
        InputEdges as InputEdges,
        InputNodes as InputNodes,
        NodeIndex as NodeIndex,
        NodeLabel as NodeLabel,
        NodeType as NodeType,
        NumNeighbors as NumNeighbors,
        PartitionBook as PartitionBook,
        Split as Split,
        TensorDataType as TensorDataType,
        as_str as as_str,
        reverse_edge_type as reverse_edge_type,
    )

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
    | {"distributed": "glt_lightning.distributed"},
)
