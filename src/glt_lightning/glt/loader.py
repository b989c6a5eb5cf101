"""GLT's `loader`: loaders of one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.lazy import lazy_names

if TYPE_CHECKING:
    from glt_lightning.glt.loaders import (
        LinkLoader as LinkLoader,
        LinkNeighborLoader as LinkNeighborLoader,
        NeighborLoader as NeighborLoader,
        NodeLoader as NodeLoader,
        SubGraphLoader as SubGraphLoader,
        get_edge_label_index as get_edge_label_index,
    )
    from glt_lightning.glt.transform import (
        to_data as to_data,
        to_hetero_data as to_hetero_data,
    )

_HOMES = {
    "LinkLoader": "glt_lightning.glt.loaders",
    "LinkNeighborLoader": "glt_lightning.glt.loaders",
    "NeighborLoader": "glt_lightning.glt.loaders",
    "NodeLoader": "glt_lightning.glt.loaders",
    "SubGraphLoader": "glt_lightning.glt.loaders",
    "get_edge_label_index": "glt_lightning.glt.loaders",
    "to_data": "glt_lightning.glt.transform",
    "to_hetero_data": "glt_lightning.glt.transform",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
