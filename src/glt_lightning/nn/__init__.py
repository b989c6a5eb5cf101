"""Aggregation over sorted edges, and PyG's layers on it."""

from glt_lightning.nn.aggregate import aggregate
from glt_lightning.nn.fuse import fuse_layers

__all__ = ["aggregate", "fuse_layers"]
