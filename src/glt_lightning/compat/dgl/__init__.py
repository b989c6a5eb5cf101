"""DGL's names for distributed training, over our own: ``import glt_lightning.compat.dgl as dgl``.

Ids of nodes and edges are rows of the partitioned graph, as DGL's are after its shuffling. `docs/coming-from.md` lists what
differs.
"""

from __future__ import annotations

from glt_lightning.base import lazy_names
from glt_lightning.compat.dgl.hosts import seed
from glt_lightning.loader import Layer

NID = EID = Layer.ID
NTYPE = ETYPE = "_TYPE"

_MODULES = ("data", "dataloading", "distributed", "nn", "sampling")
_HOMES = {module: f"{__name__}.{module}" for module in _MODULES} | {"to_block": f"{__name__}.sampling"}

__all__ = ["EID", "ETYPE", "NID", "NTYPE", "data", "dataloading", "distributed", "nn", "sampling", "seed", "to_block"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
