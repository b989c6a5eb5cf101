"""What a person does in a notebook: one rank that trains, shows its bar, is interrupted and trains again."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from lightning.fabric.utilities import imports
from lightning.pytorch import Callback
from lightning.pytorch.trainer.connectors import accelerator_connector

from glt_lightning import SamplingOptions
from glt_lightning.base import OptionError


class Interrupt(Callback):
    """The kernel's button, in the middle of an epoch."""

    def on_train_batch_end(self, *_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def _notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As IPython is for Lightning: it sets ``sys.ps1``, which Lightning reads when it is imported."""
    monkeypatch.setattr(imports, "_IS_INTERACTIVE", True)
    monkeypatch.setattr(accelerator_connector, "_IS_INTERACTIVE", True)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("strategy", ["auto", "glt_worker", "glt_server_client"])
def test_one_rank_trains_and_is_interrupted(
    make_data, make_model, make_trainer, capsys: pytest.CaptureFixture[str], strategy: str
) -> None:
    """The leak police looks for processes, threads, shared memory and memory files afterwards."""
    data = make_data(sampling=SamplingOptions(num_workers=1))
    with pytest.raises(SystemExit):
        make_trainer(strategy=strategy, callbacks=[Interrupt()]).fit(make_model(), data)
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # as the kernel does for each cell; Lightning ignores it now
    trainer = make_trainer(strategy=strategy, max_epochs=1, enable_progress_bar=True)
    trainer.fit(make_model(), data)
    assert trainer.global_step == 5
    shown = capsys.readouterr()
    assert "Epoch 0" in shown.out + shown.err


@pytest.mark.parametrize("strategy", ["glt_worker", "glt_server_client"])
def test_two_ranks_are_refused_with_the_command(make_trainer, strategy: str) -> None:
    with pytest.raises(OptionError, match=r"2 ranks .* notebook, .*`python -m lightning fit .* --trainer.devices 2"):
        make_trainer(strategy=strategy, devices=2)


def test_two_ranks_that_lightning_would_fork_are_refused(make_data, make_model, make_trainer) -> None:
    with pytest.raises(Exception, match="2 ranks cannot train from a notebook"):
        make_trainer(devices=2).fit(make_model(), make_data())
