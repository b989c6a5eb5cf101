"""The names of GLT (GraphLearn-for-PyTorch) for its scripts:
``import glt_lightning.compat.glt as glt`` is all that changes.

``glt.data``, ``glt.loader``, ``glt.partition``, ``glt.sampler``, ``glt.distributed``, ``glt.typing`` and ``glt.utils`` have
the classes and functions that its examples use; docs/coming-from.md shows them at work. The error for any other says what to
use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import lazy_names

if TYPE_CHECKING:
    from glt_lightning.compat.glt.tensor_graph import reverse_edge_type as reverse_edge_type
    from glt_lightning.compat.glt.typing import InputEdges as InputEdges, InputNodes as InputNodes

_TYPES = ("InputEdges", "InputNodes", "reverse_edge_type")  # which GLT gives out at its root, too
_MODULES = ("data", "loader", "partition", "sampler", "typing", "utils")
_REFUSED = {
    "channel": "{name}: loaders have slots of shared memory; for data of your own use torch.multiprocessing.Queue.",
} | dict.fromkeys(
    (
        "EdgeType",
        "NodeIndex",
        "NodeLabel",
        "NodeType",
        "NumNeighbors",
        "PartitionBook",
        "Split",
        "TensorDataType",
        "as_str",
    ),
    "{name}: types are in glt.typing.",
)

__all__ = [*_MODULES, *_TYPES, "distributed"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {name: f"{__name__}.{name}" for name in (*_MODULES, "distributed")} | dict.fromkeys(_TYPES, f"{__name__}.typing"),
    _REFUSED,
)
