"""The callbacks that the command line adds."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import Checkpoint

from glt_lightning.lightning import BestCheckpoint, PredictionWriter, RunReport, SamplingMonitor


def default_callbacks(subcommand: str | None, given: list[Callback], trainer: Any) -> list[Callback]:
    """The default callbacks that the user has not replaced. trainer: its options."""
    wanted: dict[type, type[Callback]] = {}
    if trainer.enable_checkpointing is not False:
        wanted[Checkpoint] = BestCheckpoint
    if subcommand == "fit":
        wanted |= {SamplingMonitor: SamplingMonitor, RunReport: RunReport}
    if subcommand == "predict":
        wanted[PredictionWriter] = PredictionWriter
    return [make() for kind, make in wanted.items() if not any(isinstance(callback, kind) for callback in given)]
