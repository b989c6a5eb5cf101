"""``python -m lightning embed``: the outputs of all nodes, computed layer by layer."""

from __future__ import annotations

from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from glt_lightning.base import LayerwiseOptions, OptionError
from glt_lightning.lightning import GLTDataModule, predict_layerwise

_LAYERWISE = LayerwiseOptions()


class EmbeddingTrainer(Trainer):
    """Lightning's Trainer with the subcommand ``embed``."""

    shortens_log_interval = False  # whether the user left it to the Trainer
    _log_interval = 50

    @property
    def log_every_n_steps(self) -> int:
        """At most the batches of an epoch where the user did not choose: Lightning's 50 would log no step of a shorter epoch, and
        warn of it."""
        if not self.shortens_log_interval or not self._log_interval:  # 0: never
            return self._log_interval
        return int(max(1, min(self._log_interval, self.fit_loop.max_batches)))

    @log_every_n_steps.setter
    def log_every_n_steps(self, value: int) -> None:
        self._log_interval = value

    def embed(
        self,
        model: LightningModule,
        datamodule: LightningDataModule,
        out: str = "embeddings",
        ckpt_path: str | None = None,
        layerwise: LayerwiseOptions = _LAYERWISE,
    ) -> None:
        """Writes a model's outputs for all nodes, computed exactly, layer by layer.

        Args:
            model: The model.
            datamodule: Its data.
            out: The folder for the Parquet files: a new one, an empty one, or one that has earlier embeddings alone, which these
                replace when they are complete. Or a URL of fsspec (s3://bucket/emb), which may have other files: they stay.
            ckpt_path: The checkpoint to read: a path, or ``best`` or ``last`` for that of the latest fit. None: the weights in
                memory; the command line takes ``none`` for it, for a module that loads weights of its own.
            layerwise: How the layers are computed.
        """
        if not isinstance(datamodule, GLTDataModule):
            raise OptionError(
                f"embed: data: expected class_path: glt_lightning.GLTDataModule, whose graph is read; got "
                f"{type(datamodule).__name__}."
            )
        predict_layerwise(self, model, datamodule, out, ckpt_path=ckpt_path, options=layerwise)
