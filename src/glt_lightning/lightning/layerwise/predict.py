"""`predict_layerwise`: the outputs of all nodes, exactly, in a folder."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from glt_lightning.base import LayerwiseOptions, OptionError, as_options
from glt_lightning.lightning.callbacks.prediction_places import folder_of, require_ours
from glt_lightning.lightning.callbacks.predictions import PredictionWriter
from glt_lightning.lightning.datamodule import GLTDataModule
from glt_lightning.lightning.layerwise.module import LayerwiseModule
from glt_lightning.lightning.layerwise.writer import EmbeddingWriter


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
