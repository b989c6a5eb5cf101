"""SIGTERM ends a run in order under every strategy, and makes no collective call: the other ranks are in one of their own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from lightning.pytorch.utilities.exceptions import SIGTERMException

from glt_lightning.lightning.strategies.sigterm import EndBySigterm
from tests.lightning.tiny import Noting


class Terminate(Callback):
    """A scheduler, in the first step of a phase; counts the steps that were taken."""

    def __init__(self, phase: str) -> None:
        self.steps = 0
        setattr(self, f"on_{phase}_batch_start", self._terminate)

    def _terminate(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self.steps += 1
        if self.steps == 1:
            signal.raise_signal(signal.SIGTERM)


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
    strategy = SimpleNamespace(
        launcher=launcher, root_device=torch.device("cpu"), end_soon=lambda: done.append("bounded")
    )
    environment = SimpleNamespace(cluster_environment=None)
    trainer = SimpleNamespace(strategy=strategy, world_size=2, global_rank=0, local_rank=0, received_sigterm=False)
    trainer._accelerator_connector = environment
    trainer._signal_connector = connector = _SignalConnector(trainer)
    signal.signal(signal.SIGTERM, lambda number, _: done.append(("user's", number)))

    connector.register_signal_handlers()
    ending = EndBySigterm()
    ending.on_sanity_check_start(trainer, None)  # each loop of a run asks for it
    ending.on_train_start(trainer, None)
    signal.raise_signal(signal.SIGTERM)

    assert done == ["bounded", ("kill", signal.SIGTERM), ("user's", signal.SIGTERM)]
    assert connector.received_sigterm


@pytest.mark.parametrize("strategy", ["auto", "ddp", "glt_worker"])
@pytest.mark.parametrize(
    ("command", "phase"),
    [("fit", "train"), ("fit", "validation"), ("validate", "validation"), ("test", "test"), ("predict", "predict")],
)
def test_a_run_that_was_ended_is_not_complete(
    make_data, make_model, make_trainer, strategy: str, command: str, phase: str
) -> None:
    """``fit`` with ``validation`` is the sanity check. The exit status is what a shell shows for SIGTERM."""
    ending = Terminate(phase)
    trainer = make_trainer(strategy=strategy, callbacks=[ending])
    with pytest.raises(SIGTERMException) as ended:
        getattr(trainer, command)(make_model(Noting), datamodule=make_data(eval_batch_size=10))
    assert (ended.value.code, ending.steps) == (143, 1)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_another_exit_keeps_its_status() -> None:
    failed = SystemExit(3)
    EndBySigterm().on_exception(None, None, failed)
    assert failed.code == 3
