"""A partition folder on this machine: manifest, mapped arrays, `LocalPartition`."""

from typing import TYPE_CHECKING

from glt_lightning.data.graph import Seeds
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.manifest import Manifest
from glt_lightning.lazy import lazy_names

if TYPE_CHECKING:
    from glt_lightning.glt.dataset import Dataset as Dataset
    from glt_lightning.glt.feature import (
        DeviceGroup as DeviceGroup,
        Feature as Feature,
        sort_by_in_degree as sort_by_in_degree,
    )
    from glt_lightning.glt.graph import Graph, Topology

_IN_MEMORY = ("Dataset", "DeviceGroup", "Feature", "sort_by_in_degree")

__all__ = ["Graph", "LocalPartition", "Manifest", "Seeds", "Topology", *_IN_MEMORY]

_NEVER = "{name}: memory of GPUs is not shared by handles. Options of loaders say what a GPU holds: docs/gpu.md."
_ODPS = "{name}: tables of ODPS and vineyard are not read. Export them, and give tensors or files: docs/data.md."
__getattr__, __dir__ = lazy_names(
    __name__,
    dict.fromkeys(("Graph", "Topology"), "glt_lightning.glt.graph")
    | dict.fromkeys(("DeviceGroup", "Feature", "sort_by_in_degree"), "glt_lightning.glt.feature")
    | {"Dataset": "glt_lightning.glt.dataset"},
    {"UnifiedTensor": _NEVER, "TableDataset": _ODPS},
)
