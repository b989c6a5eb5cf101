"""Lightning's progress bar: our rate in it, and an epoch that is resumed in its middle."""

from __future__ import annotations

from typing import Any

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from torch.utils.data import DataLoader

from glt_lightning.lightning import SamplingMonitor
from glt_lightning.lightning.callbacks import monitor
from tests.lightning.tiny import Noting

RATE = "glt/seeds_per_s"


class Spy(TQDMProgressBar):
    """Notes the bar after each batch, and its metrics at the end of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.bars: list[tuple[str, int, int, int]] = []
        self.metrics: list[dict[str, Any]] = []
        self.rates: list[float | None] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        bar = self.train_progress_bar
        self.bars.append((bar.desc, bar.initial, bar.n, bar.total))
        self.rates.append(self.get_metrics(trainer, pl_module).get(RATE))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        self.metrics.append(self.get_metrics(trainer, pl_module))


def test_the_rate_is_in_the_bar(make_data, make_model, make_trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "_SHOWN_EVERY_S", 0.0)
    spy = Spy()
    trainer = make_trainer(callbacks=[SamplingMonitor(), spy], enable_progress_bar=True, max_epochs=1)
    trainer.fit(make_model(), make_data())
    assert all(rate is not None and rate > 0 for rate in spy.rates)
    assert len(set(spy.rates)) > 1  # it moves in the epoch
    assert spy.metrics[0][RATE] == pytest.approx(float(trainer.callback_metrics[RATE]), rel=0.01)


def test_a_resumed_epoch_counts_on(make_data, make_model, make_trainer, tmp_path) -> None:
    keep = ModelCheckpoint(str(tmp_path), filename="middle", every_n_train_steps=3, save_top_k=-1)
    trainer = make_trainer(callbacks=[keep], enable_checkpointing=True, max_steps=3, max_epochs=1)
    trainer.fit(make_model(), make_data())
    spy = Spy()
    trainer = make_trainer(callbacks=[spy], enable_progress_bar=True, max_epochs=2)
    trainer.fit(make_model(Noting), make_data(), ckpt_path=tmp_path / "middle.ckpt")
    begun = [("Epoch 0: ", 3, 4, 5), ("Epoch 0: ", 3, 5, 5)]
    assert spy.bars == begun + [("Epoch 1: ", 0, n, 5) for n in range(1, 6)]


def test_loaders_of_others_have_no_rate(make_trainer) -> None:
    spy = Spy()
    trainer = make_trainer(
        callbacks=[SamplingMonitor(), spy], enable_progress_bar=True, max_epochs=1, limit_val_batches=0
    )
    trainer.fit(BoringModel(), DataLoader(RandomDataset(32, 8)))
    assert spy.rates == [None] * 8
