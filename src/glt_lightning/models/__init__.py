"""Ready LightningModules: `GraphSAGE`, `NodePredictor`, `EdgePredictor` and `LinkPredictor`, with encoders of PyG's convolutions,
decoders and metrics.

They use only the public names of the other packages, as a user's module does. Runs in the ranks.

Example:
    >>> from glt_lightning.models import GraphSAGE
    >>> model = GraphSAGE(in_channels=3, out_channels=2, hidden_channels=16, num_layers=2)
    >>> model.hparams.hidden_channels
    16
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import lazy_names

if TYPE_CHECKING:
    from glt_lightning.models.edge_predictor import EdgePredictor as EdgePredictor
    from glt_lightning.models.link_predictor import LinkPredictor as LinkPredictor
    from glt_lightning.models.link_scores import (
        OGBMRR as OGBMRR,
        HitsAtK as HitsAtK,
    )
    from glt_lightning.models.node_predictor import NodePredictor as NodePredictor
    from glt_lightning.models.sage import GraphSAGE as GraphSAGE


__all__ = ["OGBMRR", "EdgePredictor", "GraphSAGE", "HitsAtK", "LinkPredictor", "NodePredictor"]

__getattr__, __dir__ = lazy_names(__name__)
