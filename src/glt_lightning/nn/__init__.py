"""Aggregation over sorted edges, and PyG's layers on it."""

from glt_lightning.nn.aggregate import aggregate
from glt_lightning.nn.fuse import fuse_layers
from glt_lightning.nn.relu_dropout import relu_dropout

__all__ = ["aggregate", "fuse_layers", "relu_dropout"]
