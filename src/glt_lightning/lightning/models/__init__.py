"""Ready LightningModules and their networks."""

from glt_lightning.lightning.models.link_metrics import OGBMRR, HitsAtK
from glt_lightning.lightning.models.link_predictor import LinkPredictor
from glt_lightning.lightning.models.node_predictor import NodePredictor
from glt_lightning.lightning.models.sage import GraphSAGE

__all__ = ["OGBMRR", "GraphSAGE", "HitsAtK", "LinkPredictor", "NodePredictor"]
