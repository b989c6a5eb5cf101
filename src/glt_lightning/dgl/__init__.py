"""DGL's names for distributed training, over our partitions, tensors, loaders and layers: ``import glt_lightning.dgl as dgl``.

Ids of nodes and edges are rows of the partitioned graph, as DGL's are after its shuffling. `docs/coming-from.md` lists what
differs.
"""

from __future__ import annotations

from glt_lightning.dgl.state import seed
from glt_lightning.lazy import lazy_names
from glt_lightning.loader.blocks import ID

NID = EID = ID

_MODULES = ("data", "dataloading", "distributed", "nn", "sampling")

__all__ = ["EID", "NID", "data", "dataloading", "distributed", "nn", "sampling", "seed"]

__getattr__ = lazy_names(__name__, {module: f"{__name__}.{module}" for module in _MODULES})
