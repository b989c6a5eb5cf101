"""The strategies, the data module and the command line for PyTorch Lightning."""

from lightning.pytorch.strategies import StrategyRegistry

from glt_lightning.lightning.callbacks.checkpoint_io import WholeCheckpointIO
from glt_lightning.lightning.callbacks.checkpoints import BestCheckpoint
from glt_lightning.lightning.callbacks.monitor import SamplingMonitor
from glt_lightning.lightning.callbacks.predictions import PredictionWriter, read_predictions
from glt_lightning.lightning.callbacks.run_report import RunReport
from glt_lightning.lightning.datamodule import GLTDataModule
from glt_lightning.lightning.strategies.server_client import GLTServerClientStrategy
from glt_lightning.lightning.strategies.worker import GLTWorkerStrategy

__all__ = [
    "BestCheckpoint",
    "GLTDataModule",
    "GLTServerClientStrategy",
    "GLTWorkerStrategy",
    "PredictionWriter",
    "RunReport",
    "SamplingMonitor",
    "WholeCheckpointIO",
    "read_predictions",
]

GLTWorkerStrategy.register_strategies(StrategyRegistry)
GLTServerClientStrategy.register_strategies(StrategyRegistry)
