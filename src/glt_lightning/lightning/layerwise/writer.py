"""`EmbeddingWriter`: the files of layer-wise predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import LightningModule, Trainer

from glt_lightning.base import DataError
from glt_lightning.lightning.callbacks.prediction_files import read_predictions
from glt_lightning.lightning.callbacks.predictions import PredictionWriter

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
    """Reads the folder that `predict_layerwise` wrote: arrays with a row for each node, in the order of ``n_id``.

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
