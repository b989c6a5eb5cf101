"""`LayerwiseModule`: a module whose predictions are those of another one, computed layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from glt_lightning.base import LayerwiseOptions, OptionError
from glt_lightning.inference import LayerwiseRun
from glt_lightning.lightning.datamodule import GLTDataModule
from glt_lightning.lightning.layerwise.start import start_run


class LayerwiseModule(LightningModule):
    """Predicts with the layers of ``inner``, each over the whole graph, in batches that `GLTDataModule` asks it for.

    folder: for scratch files.
    """

    def __init__(self, inner: LightningModule, options: LayerwiseOptions, folder: Path) -> None:
        super().__init__()
        self.inner, self._options, self._folder = inner, options, folder
        self.run: LayerwiseRun | None = None
        self._lengths: list[int] = []

    # What is inner's

    def setup(self, stage: str) -> None:
        self.inner.setup(stage)

    def configure_model(self) -> None:
        self.inner.configure_model()

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        return self.inner.state_dict(*arguments, **options)

    def load_state_dict(self, state_dict: Mapping[str, Any], *arguments: Any, **options: Any) -> Any:
        return self.inner.load_state_dict(state_dict, *arguments, **options)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.inner.on_load_checkpoint(checkpoint)

    @property
    def class_names(self) -> Any:
        return getattr(self.inner, "class_names", None)

    @property
    def takes_aggregates(self) -> tuple[str, ...]:
        return getattr(self.inner, "takes_aggregates", ())

    # Batches

    def loaders_of(self, data: GLTDataModule) -> list[Any]:
        """The loaders of a run over the graph of a data module. A collective call."""
        _refuse_limits(self.trainer)
        self.close()
        self.run = start_run(
            self.inner,
            self.trainer,
            data,
            self._options,
            folder=self._folder,
            device=self.device,
            weight_attr=data.weight_attr_of("predict"),
        )
        loaders = self.run.loaders()
        self._lengths = [len(loader) for loader in loaders]
        return loaders

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Tensor]:
        """Columns of the seeds where the batch is of their last layer; else nothing."""
        assert self.run is not None
        last = batch_idx + 1 == self._lengths[dataloader_idx]
        columns = self.run.take(dataloader_idx, batch, last=last)
        if not columns or len(self.node_type_names) < 2:
            return columns or {}
        number = self.node_type_names.index(self.run.steps[dataloader_idx].node_type)
        return columns | {"node_type": torch.full_like(columns["n_id"], number)}

    @property
    def node_type_names(self) -> list[str]:
        """Node types of which rows are written."""
        return [] if self.run is None else self.run.module.output_types

    def close(self) -> None:
        """Lets go of all rows. Safe to call twice."""
        if self.run is not None:
            self.run.close()
            self.run = None


def _refuse_limits(trainer: Any) -> None:
    limit = trainer.limit_predict_batches  # 1 is a batch, 1.0 all of them
    if isinstance(limit, int) or limit < 1.0 or trainer.fast_dev_run:
        raise OptionError(
            "layer-wise inference: trainer.limit_predict_batches and fast_dev_run would leave out nodes that later layers read. "
            "Remove them."
        )
