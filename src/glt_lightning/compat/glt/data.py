"""GLT's `data`: a graph, its features and labels in memory."""

from __future__ import annotations

from glt_lightning.base import lazy_names

_REFUSED = {
    "TableDataset": "{name}: tables of ODPS and vineyard are not read. Export them, and give tensors or files: docs/data.md.",
    "UnifiedTensor": "{name}: memory of GPUs is not shared by handles. Options of loaders say what a GPU holds: docs/gpu.md.",
}
_HOMES = {
    "Dataset": "glt_lightning.compat.glt.dataset",
    "DeviceGroup": "glt_lightning.compat.glt.feature",
    "Feature": "glt_lightning.compat.glt.feature",
    "sort_by_in_degree": "glt_lightning.compat.glt.feature",
    "Graph": "glt_lightning.compat.glt.graph",
    "Topology": "glt_lightning.compat.glt.graph",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, _REFUSED)
