"""GLT's `data`: a graph, its features and labels in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.lazy import lazy_names

if TYPE_CHECKING:
    from glt_lightning.glt.dataset import (
        Dataset as Dataset,
    )
    from glt_lightning.glt.feature import (
        DeviceGroup as DeviceGroup,
        Feature as Feature,
        sort_by_in_degree as sort_by_in_degree,
    )
    from glt_lightning.glt.graph import (
        Graph as Graph,
        Topology as Topology,
    )

_REFUSED = {
    "TableDataset": "{name}: tables of ODPS and vineyard are not read. Export them, and give tensors or files: docs/data.md.",
    "UnifiedTensor": "{name}: memory of GPUs is not shared by handles. Options of loaders say what a GPU holds: docs/gpu.md.",
}
_HOMES = {
    "Dataset": "glt_lightning.glt.dataset",
    "DeviceGroup": "glt_lightning.glt.feature",
    "Feature": "glt_lightning.glt.feature",
    "sort_by_in_degree": "glt_lightning.glt.feature",
    "Graph": "glt_lightning.glt.graph",
    "Topology": "glt_lightning.glt.graph",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, _REFUSED)
