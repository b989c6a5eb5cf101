"""Loaders: batches of a partitioned graph as PyG data."""

from typing import TYPE_CHECKING

from glt_lightning.lazy import lazy_names
from glt_lightning.loader.blocks import Layer, as_blocks, layers
from glt_lightning.loader.context import LoaderContext
from glt_lightning.loader.link_loader import DistLinkNeighborLoader
from glt_lightning.loader.link_spec import LinkSpec
from glt_lightning.loader.neighbor_loader import DistNeighborLoader, LoaderStats
from glt_lightning.loader.spec import LoaderSpec
from glt_lightning.loader.subgraph_loader import DistSubGraphLoader

if TYPE_CHECKING:
    from glt_lightning.glt.loaders import (
        LinkLoader as LinkLoader,
        LinkNeighborLoader as LinkNeighborLoader,
        NeighborLoader as NeighborLoader,
        NodeLoader as NodeLoader,
        SubGraphLoader as SubGraphLoader,
        get_edge_label_index as get_edge_label_index,
    )
    from glt_lightning.glt.transform import to_data as to_data, to_hetero_data as to_hetero_data

# GLT's loaders of one machine
_LOADERS = (
    "LinkLoader",
    "LinkNeighborLoader",
    "NeighborLoader",
    "NodeLoader",
    "SubGraphLoader",
    "get_edge_label_index",
)
_TRANSFORMS = ("to_data", "to_hetero_data")

__all__ = [
    "DistLinkNeighborLoader",
    "DistNeighborLoader",
    "DistSubGraphLoader",
    "Layer",
    "LinkSpec",
    "LoaderContext",
    "LoaderSpec",
    "LoaderStats",
    "as_blocks",
    "layers",
    *_LOADERS,
    *_TRANSFORMS,
]

__getattr__, __dir__ = lazy_names(
    __name__,
    dict.fromkeys(_LOADERS, "glt_lightning.glt.loaders") | dict.fromkeys(_TRANSFORMS, "glt_lightning.glt.transform"),
)
