"""Resume where a checkpoint stands, at every hook that can save one.

Lightning 2.6 tells from its counters whether a checkpoint is of the middle of an epoch, and is wrong in several cases
(docs/decisions/022-resume-at-the-loader-s-position.md): after a resume from an epoch's last batch, for each checkpoint with
``max_steps``, after ``fit`` ended in mid-epoch, and where an exception or a hook came between a batch's delivery and its
step. The loader's state tells the epoch and the batch, so the counters are set from it before Lightning reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.fabric.utilities.types import _Stateful
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.trainer.states import TrainerFn
from torch.utils._pytree import tree_leaves

from glt_lightning.base import OptionError
from glt_lightning.lightning.strategies.dry_run import warn_of_unused
from glt_lightning.loader import DistNeighborLoader

FORGOTTEN = "glt_forgotten"  # in a checkpoint: numbers of nodes by type whose rows were removed
_EPOCHS, _BATCHES, _OWN = "epoch_progress", "epoch_loop.batch_progress", "epoch_loop.state_dict"


class ExactResume(Callback):
    """Has a fit go on with the first batch that its checkpoint has not trained on, whichever hook saved it.

    The data module adds it to each fit. It also refuses a checkpoint of other options where an epoch had ended: Lightning
    reads the states of loaders in mid-epoch only. And it warns of a checkpoint that is not read by default.
    """

    def __init__(self) -> None:
        self._states: list[Any] = []
        self._fresh = False
        self._epoch_began = True

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        warn_of_unused(pl_module)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._states, self._fresh = [], False
        if trainer.state.fn != TrainerFn.FITTING:
            return
        if FORGOTTEN in checkpoint:
            raise OptionError(
                "ckpt_path: compact --forget removed rows and the optimizer's states from this checkpoint, so that training does "
                "not go on with it. Train anew; predict and deploy read it."
            )
        fit_loop = checkpoint.get("loops", {}).get("fit_loop", {})
        self._states = fit_loop.get("state_dict", {}).get("combined_loader", [])
        self._fresh = set_position(fit_loop)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        states, self._states = self._states, []
        loaders = [each for each in tree_leaves(trainer.train_dataloader) if isinstance(each, _Stateful)]
        if len(loaders) == len(states):  # Lightning refuses other numbers
            for loader, state in zip(loaders, states, strict=True):
                if isinstance(loader, DistNeighborLoader):
                    loader.load_state_dict(state)
        if self._fresh:
            # FitLoop's own setter says True whenever there is max_steps, and the epoch would go on after its last batch
            _Loop.restarting.fset(trainer.fit_loop, False)  # type: ignore[attr-defined]
            self._fresh = False
        self._epoch_began = False

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch_began = True

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begins the progress bar of an epoch that is resumed in its middle: Lightning calls no ``on_train_epoch_start`` then,
        from which bars have their title and their total."""
        if self._epoch_began:
            return
        self._epoch_began = True
        if (bar := trainer.progress_bar_callback) is not None:
            bar.on_train_epoch_start(trainer, pl_module)
            if isinstance(bar, TQDMProgressBar):
                bar.train_progress_bar.initial = batch_idx  # batches of an earlier process are not in its rate


def set_position(fit_loop: dict[str, Any]) -> bool:
    """Sets the counters and the loaders' states of a checkpoint's ``fit_loop`` to the first batch that was not trained on.
    Returns whether that batch is the first of its epoch.

    Leaves all as it is where no loader of ours says the position, or where validation at the end of an epoch was interrupted:
    that is left to Lightning.
    """
    states = _states_of_loaders(fit_loop)
    positions = [(each["epoch"], each["delivered"]) for each in states]
    if not positions or any(each != positions[0] for each in positions) or not {_EPOCHS, _BATCHES} <= set(fit_loop):
        return False
    epoch, delivered = positions[0]
    if type(epoch) is not int or type(delivered) is not int:
        return False  # damaged, which the loader says
    batches = fit_loop[_BATCHES]
    now, whole, epochs = batches["current"], batches["total"], fit_loop[_EPOCHS]["current"]
    # a batch that was delivered, and whose step failed or was still to come, is due again
    trained = min(delivered, now["processed"])
    if trained and batches["is_last_batch"] and now["processed"] == now["ready"]:
        if now["completed"] == now["processed"] and epochs["processed"] == epoch:
            _set(fit_loop[_EPOCHS], epoch, unfinished=True)  # validation is under way, or just ended
            return False
        epoch, trained = epoch + 1, 0
        if now["completed"] < now["processed"]:  # saved in on_train_batch_end; Lightning counts this step on a restart
            fit_loop[_OWN]["_batches_that_stepped"] += 1
    _set(fit_loop[_EPOCHS], epoch, unfinished=trained > 0)
    # 1 in on_train_batch_end, from which Lightning knows where it was
    due = min(1, now["processed"] - now["completed"]) if trained else 0
    for counts, done in ((now, trained), (whole, whole["processed"])):
        counts.update(ready=done, started=done, processed=done, completed=done - due)
    batches["is_last_batch"] = False
    for state in states:
        state.update(epoch=epoch, delivered=trained)
    return not trained


def _set(progress: dict[str, Any], epoch: int, *, unfinished: bool) -> None:
    """unfinished: the epoch has begun and is not over."""
    begun = epoch + 1 if unfinished else epoch
    for counts in (progress["total"], progress["current"]):
        counts.update(ready=begun, started=begun, processed=epoch, completed=epoch)


def _states_of_loaders(fit_loop: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those of training loaders of ours."""
    found = fit_loop.get("state_dict", {}).get("combined_loader", [])
    return [each for each in found if isinstance(each, dict) and {"plan", "epoch", "delivered"} <= set(each)]
