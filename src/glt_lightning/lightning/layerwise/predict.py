"""`predict_layerwise`: the outputs of all nodes, exactly, in a folder."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from glt_lightning.base import DataError, LayerwiseOptions, OptionError, as_options
from glt_lightning.inference import LayerwiseRun
from glt_lightning.lightning.callbacks.prediction_files import read_predictions
from glt_lightning.lightning.callbacks.prediction_places import folder_of, require_ours
from glt_lightning.lightning.callbacks.predictions import PredictionWriter
from glt_lightning.lightning.datamodule import GLTDataModule
from glt_lightning.lightning.layerwise.start import start_run
from glt_lightning.lightning.wrapper import ModuleWrapper


def predict_layerwise(
    trainer: Trainer,
    model: LightningModule,
    datamodule: GLTDataModule,
    out: str | Path,
    *,
    ckpt_path: str | Path | None = None,
    options: LayerwiseOptions | dict[str, Any] | None = None,
) -> None:
    """Computes the outputs of all nodes, each layer over the whole graph before the next one, and writes them to a folder.

    They are those of a forward pass over the whole graph: nothing is sampled, and no neighbourhood is computed twice. The folder
    has a Parquet file for each rank, with ``n_id``, ``embedding`` and what else the module predicts; it appears when complete.

    Args:
        trainer: Whose strategy, devices, precision and progress bar are used.
        model: A ready module, one with a model of PyG's `BasicGNN` family as ``.gnn`` or ``.model``, or one with ``num_layers``
            and ``layer(k, h, batch)`` (`glt_lightning.inference.protocol.Layerwise`).
        datamodule: Its graph. Fan-outs and splits play no part.
        out: The folder, or a URL of fsspec (``s3://bucket/emb``); files then are complete when the manifest is there.
        ckpt_path: A checkpoint to load first; as of `Trainer.predict`.
        options: Fields of `LayerwiseOptions`.

    Raises:
        OptionError: For a module whose layers cannot be computed so, options that do not fit, and an ``out`` that is a file, a
            link, or a folder with anything but earlier predictions; before anything is computed.
        DataError: If the self-check finds that the module's own forward pass gives something else.
        PeerError: If another rank fails; no folder is written.

    Example:
        >>> predict_layerwise(Trainer(), model, datamodule, "emb", options={"batch_size": 1024})
        >>> sorted(read_embeddings("emb"))
        ['embedding', 'n_id', 'pred']
    """
    if not isinstance(datamodule, GLTDataModule):
        raise OptionError(f"predict_layerwise: datamodule: expected a GLTDataModule, got {type(datamodule).__name__}.")
    chosen = as_options(LayerwiseOptions, "layerwise", {} if options is None else options)
    if "://" not in str(out) and trainer.world_size == 1:  # several ranks look together, when all are there
        require_ours(folder_of(str(out)))
    beside = Path(tempfile.gettempdir()) if "://" in str(out) else folder_of(str(out)).parent
    scratch = beside if chosen.scratch is None else Path(chosen.scratch)
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
    others = [
        each for each in callbacks if not isinstance(each, PredictionWriter)
    ]  # those write what predict_step returns
    module = LayerwiseModule(model, chosen, scratch)
    trainer.callbacks = [*others, EmbeddingWriter(str(out))]  # type: ignore[attr-defined]
    try:
        trainer.predict(module, datamodule=datamodule, return_predictions=False, ckpt_path=ckpt_path)
    finally:
        trainer.callbacks = callbacks  # type: ignore[attr-defined]
        module.close()


# `LayerwiseModule`: a module whose predictions are those of another one, computed layer by layer.


class LayerwiseModule(ModuleWrapper):
    """Predicts with the layers of ``inner``, each over the whole graph, in batches that `GLTDataModule` asks it for.

    folder: for scratch files.
    """

    _keep_outputs = False

    def __init__(self, inner: LightningModule, options: LayerwiseOptions, folder: Path) -> None:
        super().__init__(inner)
        self._options, self._folder = options, folder
        self.run: LayerwiseRun | None = None
        self._lengths: list[int] = []

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
            keep_outputs=self._keep_outputs,
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


# `EmbeddingWriter`: the files of layer-wise predictions.


EMBEDDING = "embedding"


class EmbeddingWriter(PredictionWriter):
    """A `PredictionWriter` for batches of which only those of the last layer have rows."""

    _noun = "embeddings"

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if outputs:
            super().on_predict_batch_end(trainer, pl_module, outputs, batch, batch_idx, dataloader_idx)


def read_embeddings(path: str | Path, node_type: str | None = None) -> dict[str, np.ndarray]:
    """Reads the folder that `predict_layerwise` wrote: arrays with a row for each node that is not deleted, in the order of
    ``n_id``.

    Args:
        path: The folder, or a URL of fsspec.
        node_type: Rows of this type alone, where the folder has several, which the column ``node_type`` tells.

    Returns:
        ``n_id``, the user's ids; ``id``, where the user's table has others; ``embedding`` [N, D]; and further columns.

    Raises:
        DataError: If files are missing or damaged, or have no embeddings.

    Example:
        >>> predict_layerwise(Trainer(), model, datamodule, "emb")
        >>> read_embeddings("emb")["embedding"].shape
        (10, 2)
    """
    found = read_predictions(path)
    if EMBEDDING not in found:
        raise DataError(
            f"{path}: has no column {EMBEDDING!r}, only {', '.join(found) or 'no rows'}. Predict with predict_layerwise."
        )
    if node_type is None:
        return found
    types = found.pop("node_type", np.array([], dtype=object))
    if node_type not in types:
        raise DataError(
            f"{path}: node_type: expected one of {', '.join(sorted(set(types))) or 'none'}; got {node_type!r}."
        )
    return {name: values[types == node_type] for name, values in found.items()}
