"""SIGTERM to a rank: the run ends in order, and soon.

Lightning's own handler broadcasts from inside the signal. The other ranks are in whatever collective call their step has
come to, so gloo ends them (``EnforceNotMet``, SIGABRT) or all wait for each other. The flag that it sets is enough: every
training step begins with a broadcast of it, and the loops look at it after each step. The exception that they raise then
would end the process with status 0, as if the run were complete.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from lightning.pytorch.utilities.exceptions import SIGTERMException

from glt_lightning.lightning.strategies.peers import PeerWatch

_log = logging.getLogger(__name__)


def handle_sigterm(trainer: Trainer, watch: PeerWatch) -> None:
    """Puts a handler in the place of Lightning's, which Lightning takes away after the run. Does so once."""
    found = signal.getsignal(signal.SIGTERM)
    if not callable(found) or isinstance(found, _Handler):
        return
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _Handler(found, trainer, watch))


def set_exit_status(exception: BaseException) -> None:
    """Gives Lightning's exception the status that a shell shows for SIGTERM."""
    if isinstance(exception, SIGTERMException) and exception.code is None:
        exception.code = 128 + signal.SIGTERM


class _Handler:
    """found: Lightning's, which holds those that were there before."""

    def __init__(self, found: Callable[..., Any], trainer: Trainer, watch: PeerWatch) -> None:
        self._handlers = [
            self._tell if _is_notifier(each) else each for each in getattr(found, "signal_handlers", [found])
        ]
        self._trainer, self._watch = trainer, watch

    def __call__(self, signum: int, frame: Any) -> None:
        self._watch.end_soon()
        for handler in self._handlers:
            if callable(handler):  # not SIG_DFL or SIG_IGN
                handler(signum, frame)

    def _tell(self, signum: int, frame: Any) -> None:
        """What Lightning's does, but for its broadcast."""
        _log.info("rank %d received SIGTERM", self._trainer.global_rank)
        launcher = self._trainer.strategy.launcher
        if launcher is not None and not self._trainer.received_sigterm:
            launcher.kill(signum)  # the ranks that this one started
        self._trainer._signal_connector.received_sigterm = True


def _is_notifier(handler: object) -> bool:
    return getattr(handler, "__func__", None) is _SignalConnector._sigterm_notifier_fn
