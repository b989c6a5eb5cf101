"""The strategies, the data module and the command line for PyTorch Lightning."""

from lightning.pytorch.strategies import StrategyRegistry

from glt_lightning.lightning.checkpoint_io import WholeCheckpointIO
from glt_lightning.lightning.checkpoints import BestCheckpoint
from glt_lightning.lightning.datamodule import GLTDataModule
from glt_lightning.lightning.monitor import SamplingMonitor
from glt_lightning.lightning.predictions import PredictionWriter, read_predictions
from glt_lightning.lightning.sage import GraphSAGE
from glt_lightning.lightning.server_client_strategy import GLTServerClientStrategy
from glt_lightning.lightning.worker_strategy import GLTWorkerStrategy

__all__ = [
    "BestCheckpoint",
    "GLTDataModule",
    "GLTServerClientStrategy",
    "GLTWorkerStrategy",
    "GraphSAGE",
    "PredictionWriter",
    "SamplingMonitor",
    "WholeCheckpointIO",
    "read_predictions",
]

GLTWorkerStrategy.register_strategies(StrategyRegistry)
GLTServerClientStrategy.register_strategies(StrategyRegistry)
