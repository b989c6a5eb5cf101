"""GLT's `loader`: loaders of one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import lazy_names

if TYPE_CHECKING:
    pass

_HOMES = {
    "LinkLoader": "glt_lightning.compat.glt.loaders",
    "LinkNeighborLoader": "glt_lightning.compat.glt.loaders",
    "NeighborLoader": "glt_lightning.compat.glt.loaders",
    "NodeLoader": "glt_lightning.compat.glt.loaders",
    "SubGraphLoader": "glt_lightning.compat.glt.loaders",
    "get_edge_label_index": "glt_lightning.compat.glt.loaders",
    "to_data": "glt_lightning.compat.glt.transform",
    "to_hetero_data": "glt_lightning.compat.glt.transform",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
