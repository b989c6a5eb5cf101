"""Loaders: batches of a partitioned graph as PyG data."""

from glt_lightning.loader.blocks import Layer, as_blocks, layers
from glt_lightning.loader.context import LoaderContext
from glt_lightning.loader.link_loader import DistLinkNeighborLoader
from glt_lightning.loader.link_spec import LinkSpec
from glt_lightning.loader.neighbor_loader import DistNeighborLoader, LoaderStats
from glt_lightning.loader.pyg_loaders import LinkNeighborLoader, NeighborLoader
from glt_lightning.loader.spec import LoaderSpec
from glt_lightning.loader.subgraph_loader import DistSubGraphLoader

__all__ = [
    "DistLinkNeighborLoader",
    "DistNeighborLoader",
    "DistSubGraphLoader",
    "Layer",
    "LinkNeighborLoader",
    "LinkSpec",
    "LoaderContext",
    "LoaderSpec",
    "LoaderStats",
    "NeighborLoader",
    "as_blocks",
    "layers",
]
