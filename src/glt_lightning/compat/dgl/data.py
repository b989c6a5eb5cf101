"""Loaders where DGL's early releases had them: batches are lists of blocks alone."""

from __future__ import annotations

from glt_lightning.compat.dgl import dataloading
from glt_lightning.compat.dgl.samplers import MultiLayerNeighborSampler
from glt_lightning.loader import Layer


class NodeDataLoader(dataloading.NodeDataLoader):
    """As `dataloading.NodeDataLoader`, but it yields the blocks alone."""

    def _item(self, blocks: list[Layer]) -> list[Layer]:
        return blocks


__all__ = ["MultiLayerNeighborSampler", "NodeDataLoader"]
