"""SIGTERM makes no collective call: the other ranks are in one of their own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch.distributed
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from lightning.pytorch.utilities.exceptions import SIGTERMException

from glt_lightning.lightning.strategies.sigterm import handle_sigterm, set_exit_status


@pytest.fixture(autouse=True)
def _same_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_the_flag_is_set_without_a_broadcast(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "broadcast", lambda *_, **__: pytest.fail("a collective call"))
    launcher = SimpleNamespace(kill=lambda number: done.append(("kill", number)))
    strategy = SimpleNamespace(launcher=launcher, root_device=torch.device("cpu"))
    environment = SimpleNamespace(cluster_environment=None)
    trainer = SimpleNamespace(strategy=strategy, world_size=2, global_rank=0, local_rank=0, received_sigterm=False)
    trainer._accelerator_connector = environment
    trainer._signal_connector = connector = _SignalConnector(trainer)
    signal.signal(signal.SIGTERM, lambda number, _: done.append(("user's", number)))

    connector.register_signal_handlers()
    for _ in range(2):  # each loop of a run asks for it
        handle_sigterm(trainer, SimpleNamespace(end_soon=lambda: done.append("bounded")))
    signal.raise_signal(signal.SIGTERM)

    assert done == ["bounded", ("kill", signal.SIGTERM), ("user's", signal.SIGTERM)]
    assert connector.received_sigterm


def test_a_run_that_was_ended_is_not_complete() -> None:
    ended, failed = SIGTERMException(), SystemExit(3)
    for exception in (ended, failed):
        set_exit_status(exception)
    assert (ended.code, failed.code) == (143, 3)
