"""The data module, the strategies and the callbacks for PyTorch Lightning: the only door to it, beside models and the
command line.

* `GLTDataModule` partitions or opens the graph in ``prepare_data`` and ``setup`` and says what is sampled; any
  `LightningModule` trains on it.
* `GLTWorkerStrategy` (``glt_worker``) and `GLTServerClientStrategy` (``glt_server_client``) are DDP strategies that say
  where: they open the graph in each rank, start owners, or reach graph servers, and make the loaders. Ranks of a job
  watch each other: one that dies is named by the others' errors, and the job ends (``strategies/peers.py``,
  ``strategies/failure_board.py``).
* ``callbacks/``: checkpoints that are whole or absent, with the position of loaders and rows of embeddings; predictions
  as Parquet; numbers about sampling, and the report of a run.
* ``endpoint/``: an endpoint that answers requests, and its answers once more (`deploy`, `replay`).
* ``planner/``, ``report/``: what a run will take, by rules and a probe of this machine; reports of runs and of partitions.
* ``layerwise/``: layer-wise inference of a Trainer's module, for prediction, and for validation and test.

Importing this room makes both strategies known to Lightning by name. Runs in the ranks.

Example:
    >>> from lightning.pytorch import Trainer
    >>> from glt_lightning.lightning import GLTDataModule
    >>> data = GLTDataModule("graph.npz", num_neighbors=[2, 2], batch_size=4)
    >>> data.num_features, data.num_classes
    (3, 2)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import lazy_names

if TYPE_CHECKING:
    from glt_lightning.lightning.callbacks.checkpoints import (
        BestCheckpoint as BestCheckpoint,
        WholeCheckpointIO as WholeCheckpointIO,
    )
    from glt_lightning.lightning.callbacks.monitor import SamplingMonitor as SamplingMonitor
    from glt_lightning.lightning.callbacks.precision import PrecisionProbe as PrecisionProbe
    from glt_lightning.lightning.callbacks.prediction_files import read_predictions as read_predictions
    from glt_lightning.lightning.callbacks.predictions import PredictionWriter as PredictionWriter
    from glt_lightning.lightning.callbacks.resume import set_position as set_position
    from glt_lightning.lightning.callbacks.run_report import RunReport as RunReport
    from glt_lightning.lightning.datamodule import GLTDataModule as GLTDataModule
    from glt_lightning.lightning.endpoint.deploy import deploy as deploy
    from glt_lightning.lightning.endpoint.replay import replay as replay
    from glt_lightning.lightning.facts import read_array as read_array
    from glt_lightning.lightning.forget import (
        checkpoints_in as checkpoints_in,
        forget_in_checkpoints as forget_in_checkpoints,
    )
    from glt_lightning.lightning.graph_server import serve_graph as serve_graph
    from glt_lightning.lightning.layerwise.predict import (
        predict_layerwise as predict_layerwise,
        read_embeddings as read_embeddings,
    )
    from glt_lightning.lightning.layerwise.recommend import recommend as recommend
    from glt_lightning.lightning.new_rows import (
        predict_new as predict_new,
        write_version as write_version,
    )
    from glt_lightning.lightning.planner.machines import Machines as Machines
    from glt_lightning.lightning.planner.plan import PlannedRun as PlannedRun
    from glt_lightning.lightning.ray_jobs import (
        RayJob as RayJob,
        RayNode as RayNode,
        ray_job as ray_job,
        ray_module as ray_module,
    )
    from glt_lightning.lightning.ray_workers import (
        ReportToRay as ReportToRay,
        ray_worker as ray_worker,
    )
    from glt_lightning.lightning.report.partition import (
        PartitionReport as PartitionReport,
        traffic_options as traffic_options,
    )
    from glt_lightning.lightning.strategies.base import GLTStrategy as GLTStrategy
    from glt_lightning.lightning.strategies.hosts import meet_hosts as meet_hosts
    from glt_lightning.lightning.strategies.peers import RankError as RankError
    from glt_lightning.lightning.strategies.server_client import GLTServerClientStrategy as GLTServerClientStrategy
    from glt_lightning.lightning.strategies.sigterm import (
        end_other_ranks as end_other_ranks,
        unwound_by_sigterm as unwound_by_sigterm,
    )
    from glt_lightning.lightning.strategies.worker import GLTWorkerStrategy as GLTWorkerStrategy


__all__ = [
    "BestCheckpoint",
    "GLTDataModule",
    "GLTServerClientStrategy",
    "GLTWorkerStrategy",
    "PrecisionProbe",
    "PredictionWriter",
    "ReportToRay",
    "RunReport",
    "SamplingMonitor",
    "WholeCheckpointIO",
    "deploy",
    "predict_layerwise",
    "predict_new",
    "ray_job",
    "ray_worker",
    "read_embeddings",
    "read_predictions",
    "replay",
]

__getattr__, __dir__ = lazy_names(__name__)


def _register() -> None:
    """Makes the strategies known to Lightning by name."""
    from lightning.pytorch.strategies import StrategyRegistry

    from glt_lightning.lightning.strategies.server_client import GLTServerClientStrategy
    from glt_lightning.lightning.strategies.worker import GLTWorkerStrategy

    GLTWorkerStrategy.register_strategies(StrategyRegistry)
    GLTServerClientStrategy.register_strategies(StrategyRegistry)


_register()
