"""The checkpoint that the command line keeps by default."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.rank_zero import rank_zero_info

_BEST, _LAST = "best", "last"


class BestCheckpoint(ModelCheckpoint):
    """Keeps ``best.ckpt``, the epoch with the best ``monitor``, and ``last.ckpt``.

    If the module does not log ``monitor``, ``best.ckpt`` is the latest epoch.

    Args:
        monitor: What is compared. ``None``: the module's ``checkpoint_monitor``, a pair such as ``("val_auc", "max")``; for a
            module without one the greatest ``val_acc``.
        mode: ``max`` or ``min``, which of its values is best. ``None``: ``max``, or what the module says.

    Example:
        >>> trainer = Trainer(callbacks=[BestCheckpoint("val_loss", "min")], enable_checkpointing=True, max_epochs=1)
        >>> trainer.fit(model, datamodule)
        >>> trainer.checkpoint_callback.best_model_path.endswith("best.ckpt")
        True
    """

    CHECKPOINT_NAME_LAST = _LAST

    def __init__(self, monitor: str | None = None, mode: str | None = None) -> None:
        self._asks_module = monitor is None and mode is None
        super().__init__(
            filename=_BEST,
            monitor=monitor or "val_acc",
            mode=mode or "max",
            save_top_k=1,
            save_last=True,
            enable_version_counter=False,
        )
        self._fits = False

    @property
    def state_key(self) -> str:
        return type(self).__qualname__

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self._fits = stage == "fit"
        if self._asks_module and (asked := getattr(pl_module, "checkpoint_monitor", None)) is not None:
            self.monitor, self.mode = asked
            # what ModelCheckpoint begins with for a mode, which it is told when it is made
            self.kth_value = torch.tensor(float("inf") if self.mode == "min" else -float("inf"))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self._fits:  # else the run only reads a checkpoint, and the warnings of what is not restored would mislead
            super().load_state_dict(state_dict)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        saves = not self._should_save_on_train_epoch_end(trainer)
        if saves:
            self._check_monitor(trainer)
        super().on_validation_end(trainer, pl_module)
        if saves:
            self._keep_last(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._should_save_on_train_epoch_end(trainer):
            self._check_monitor(trainer)
        super().on_train_epoch_end(trainer, pl_module)
        self._keep_last(trainer)  # also after an epoch without validation (check_val_every_n_epoch)

    def _keep_last(self, trainer: Trainer) -> None:
        """Lightning 2.6 writes last.ckpt only together with a new best one: resumed, a run would begin at its best epoch."""
        if not self._should_skip_saving_checkpoint(trainer):
            self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))

    def _check_monitor(self, trainer: Trainer) -> None:
        """Where a best epoch would be saved: the end of an epoch that was not validated says nothing about ``monitor``."""
        if self._should_skip_saving_checkpoint(trainer):
            return
        if self.monitor is not None and self.monitor not in trainer.callback_metrics:
            rank_zero_info(f"{self.monitor!r} is not logged: {_BEST}.ckpt is the latest epoch.")
            self.monitor = None
