"""SIGTERM to a rank: the run ends in order, and soon, under every strategy.

Lightning's own handler broadcasts from inside the signal. The other ranks are in whatever collective call their step has
come to, so gloo ends them (``EnforceNotMet``, SIGABRT) or all wait for each other. The flag that it sets is enough: every
training step begins with a broadcast of it, and the loops look at it after each step, except the one that predicts. The
exception that they raise would end the process with status 0, as if the run were complete.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from lightning.pytorch.utilities.exceptions import SIGTERMException

_log = logging.getLogger(__name__)
_STATUS = 128 + signal.SIGTERM  # what a shell shows


class EndBySigterm(Callback):
    """Puts a handler in the place of Lightning's, which Lightning takes away after the run."""

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _handle_sigterm(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _handle_sigterm(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _handle_sigterm(trainer)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _handle_sigterm(trainer)

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _handle_sigterm(trainer)

    def on_predict_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        progress = trainer.predict_loop.batch_progress
        if trainer.received_sigterm and not progress.is_last_batch:  # type: ignore[attr-defined]  # set by the loop
            raise SIGTERMException

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if isinstance(exception, SIGTERMException) and exception.code is None:
            exception.code = _STATUS


def end_by_sigterm(trainer: Trainer) -> None:
    """Has the run of this Trainer end in order."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    if not any(isinstance(callback, EndBySigterm) for callback in callbacks):
        callbacks.insert(0, EndBySigterm())  # checkpoints stay last


def end_other_ranks(trainer: Trainer) -> None:
    """Hands a SIGTERM that came before the loops, such as in `prepare_data`, to the ranks that this one started."""
    launcher = trainer.strategy.launcher
    if launcher is not None and not trainer.received_sigterm:
        launcher.kill(signal.SIGTERM)


@contextmanager
def unwound_by_sigterm() -> Iterator[None]:
    """SIGTERM raises in the block, until the loops of a Trainer look for it, so that what was begun is cleaned up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _unwind)
    try:
        yield
    except Exception as error:
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
            raise
        # An extension module that was being imported makes an ImportError of the exit: "METIS is not installed".
        raise SIGTERMException(_STATUS) from error
    finally:
        signal.signal(signal.SIGTERM, before)


def _unwind(signum: int, frame: Any) -> None:
    signal.signal(signum, signal.SIG_IGN)  # a second one must not end the cleaning up
    raise SIGTERMException(_STATUS)


def _handle_sigterm(trainer: Trainer) -> None:
    """Does so once in a run."""
    found = signal.getsignal(signal.SIGTERM)
    if not callable(found) or isinstance(found, _Handler) or found is _unwind:
        return
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _Handler(found, trainer))


class _Handler:
    """found: Lightning's, which holds those that were there before."""

    def __init__(self, found: Callable[..., Any], trainer: Trainer) -> None:
        self._handlers = [
            self._tell if _is_notifier(each) else each
            for each in getattr(found, "signal_handlers", [found])
            if each is not _unwind
        ]
        self._trainer = trainer

    def __call__(self, signum: int, frame: Any) -> None:
        if (end_soon := getattr(self._trainer.strategy, "end_soon", None)) is not None:
            end_soon()
        for handler in self._handlers:
            if callable(handler):  # not SIG_DFL or SIG_IGN
                handler(signum, frame)

    def _tell(self, signum: int, frame: Any) -> None:
        """What Lightning's does, without its broadcast."""
        _log.info("rank %d received SIGTERM", self._trainer.global_rank)
        end_other_ranks(self._trainer)
        self._trainer._signal_connector.received_sigterm = True


def _is_notifier(handler: object) -> bool:
    return getattr(handler, "__func__", None) is _SignalConnector._sigterm_notifier_fn
