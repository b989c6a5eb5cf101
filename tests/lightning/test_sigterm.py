"""SIGTERM ends a run in order under every strategy, and makes no collective call: the other ranks are in one of their own."""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from lightning.pytorch.utilities.exceptions import SIGTERMException

from glt_lightning.base import NativeError
from glt_lightning.cli import main
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


class InSecondEpoch(Callback):
    """Someone who ends the run by a signal."""

    def __init__(self, number: int) -> None:
        self.number = number

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        if trainer.current_epoch == 1:
            signal.raise_signal(self.number)


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
        getattr(trainer, command)(make_model(Noting), datamodule=make_data(evaluation={"batch_size": 10}))
    assert (ended.value.code, ending.steps) == (143, 1)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.fixture
def fit(graph_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The command line of a fit in the folder of the test."""
    monkeypatch.chdir(tmp_path)
    data = ["--data", "GLTDataModule", "--data.dataset", str(graph_npz), "--data.num_neighbors", "[4,4,4]"]
    data += ["--data.batch_size", "20"]
    quiet = ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
    return lambda *options: ["fit", "--model", "glt_lightning.GraphSAGE", *data, *quiet, *map(str, options)]


@pytest.mark.parametrize(
    ("number", "status", "cause"),
    [(signal.SIGTERM, 143, "SIGTERM"), pytest.param(signal.SIGINT, 130, "Ctrl-C", marks=pytest.mark.slow)],
)
def test_the_command_line_says_how_to_continue(
    fit: Callable[..., list[str]], caplog: pytest.LogCaptureFixture, number: int, status: int, cause: str
) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(SystemExit) as ended:
        main(fit("--trainer.callbacks", f"{__name__}.InSecondEpoch", "--trainer.callbacks.number", int(number)))
    assert ended.value.code == status
    said = [record.getMessage() for record in caplog.records][-2:]
    assert re.fullmatch(rf"fit: ended by {cause} after 1 epoch and \d steps?; --ckpt_path last continues it\.", said[0])
    assert said[1].startswith("run: lightning_logs/version_0: best val_acc ")
    main(fit("--ckpt_path", "last", "--trainer.max_epochs", 2))
    assert torch.load("lightning_logs/version_1/checkpoints/last.ckpt", weights_only=True)["epoch"] == 1


def test_sigterm_while_the_graph_is_partitioned(
    fit: Callable[..., list[str]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning has no handler yet; the default one would end the process without cleaning up."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(
        "glt_lightning.lightning.graph_data_module.partition_graph",
        lambda *_, **__: signal.raise_signal(signal.SIGTERM),
    )
    with pytest.raises(SystemExit) as ended:
        main(fit("--trainer.max_epochs", 1))
    assert ended.value.code == 143
    assert "fit: ended by SIGTERM after 0 epochs and 0 steps; there is no checkpoint" in caplog.text
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_second_sigterm_does_not_end_the_cleaning_up(fit: Callable[..., list[str]], monkeypatch) -> None:
    """Schedulers send it to all processes of a job, and launchers pass it on."""
    done: list[str] = []

    def partition(*_: Any, **__: Any) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            done.append("removed")

    monkeypatch.setattr("glt_lightning.lightning.graph_data_module.partition_graph", partition)
    with pytest.raises(SystemExit) as ended:
        main(fit("--trainer.max_epochs", 1))
    assert (ended.value.code, done) == (143, ["removed"])


def test_sigterm_while_an_extension_module_is_imported(fit: Callable[..., list[str]], monkeypatch) -> None:
    def partition(*_: Any, **__: Any) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except SystemExit:  # as pybind11 does
            raise NativeError("METIS is not installed (initialization failed).") from None

    monkeypatch.setattr("glt_lightning.lightning.graph_data_module.partition_graph", partition)
    with pytest.raises(SystemExit) as ended:
        main(fit("--trainer.max_epochs", 1))
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_another_exit_keeps_its_status() -> None:
    failed = SystemExit(3)
    EndBySigterm().on_exception(None, None, failed)
    assert failed.code == 3
