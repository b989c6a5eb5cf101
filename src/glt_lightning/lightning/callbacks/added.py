"""The callbacks that a data module of ours adds to a Trainer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.states import TrainerFn

from glt_lightning.lightning.callbacks.checkpoints import write_whole
from glt_lightning.lightning.callbacks.monitor import SamplingMonitor
from glt_lightning.lightning.callbacks.precision import PrecisionProbe
from glt_lightning.lightning.callbacks.resume import ExactResume
from glt_lightning.lightning.callbacks.row_checkpoints import save_tensors_of
from glt_lightning.lightning.callbacks.run_report import RunReport
from glt_lightning.lightning.embeddings import attach_embeddings
from glt_lightning.lightning.strategies.sigterm import end_by_sigterm
from glt_lightning.tensors import DistGraph

if TYPE_CHECKING:
    from glt_lightning.lightning.datamodule import GLTDataModule

_ADDED: tuple[type[Callback], ...] = (SamplingMonitor, PrecisionProbe, RunReport)


def add_callbacks(trainer: Trainer, data: GLTDataModule) -> None:
    """Has SIGTERM end the run in order, checkpoints be whole or not there, and a fit go on exactly where its
    checkpoint stands. Adds to a fit a
    `SamplingMonitor`, a `PrecisionProbe` and a `RunReport`, unless the user has one, or wants nothing that takes time; what
    trains the module's embeddings, which it attaches to the graph; and what evaluates layer by layer, where ``data`` says so."""
    end_by_sigterm(trainer)
    write_whole(trainer.strategy)
    _resume_exactly(trainer)
    _add_reports(trainer)
    attach_embeddings(trainer, lambda: data.dist_graph, data.opened_graph.manifest)
    if data.evaluation.mode == "layerwise":
        from glt_lightning.lightning.layerwise.evaluation import (
            evaluate_exactly,  # it knows the models, which know data modules
        )

        evaluate_exactly(trainer, data)


def save_with_checkpoints(trainer: Trainer, graph: DistGraph) -> None:
    """Checkpoints get the persistent tensors of ``graph``, once it has some."""
    graph.tables.when_persistent = partial(save_tensors_of, trainer, graph)


def _resume_exactly(trainer: Trainer) -> None:
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    if trainer.state.fn == TrainerFn.FITTING and not any(isinstance(each, ExactResume) for each in callbacks):
        callbacks.insert(0, ExactResume())  # checkpoints stay last


def _add_reports(trainer: Trainer) -> None:
    if trainer.barebones or trainer.state.fn != TrainerFn.FITTING:
        return
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    for kind in _ADDED:
        if not any(isinstance(callback, kind) for callback in callbacks):
            checkpoints = [i for i, callback in enumerate(callbacks) if isinstance(callback, Checkpoint)]
            callbacks.insert(checkpoints[0] if checkpoints else len(callbacks), kind())  # those stay last
