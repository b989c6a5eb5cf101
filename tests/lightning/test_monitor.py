"""Sampling throughput and wait share in the log."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from glt_lightning import SamplingMonitor, SamplingOptions
from tests.lightning.tiny import Noting

KEYS = {"glt/batches_per_s", "glt/seeds_per_s", "glt/sampled_edges_per_s", "glt/wait_share"}


class Slow(Noting):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        time.sleep(0.02)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        time.sleep(0.2)
        super().validation_step(batch, batch_idx)


@pytest.mark.parametrize("workers", [0, 1])
def test_totals_of_an_epoch(make_data, make_model, make_trainer, workers: int) -> None:
    trainer = make_trainer(callbacks=[SamplingMonitor()], val_check_interval=2)
    begin = time.perf_counter()
    trainer.fit(make_model(Slow), make_data(sampling=SamplingOptions(num_workers=workers), eval_batch_size=50))
    spent = time.perf_counter() - begin
    logged = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("glt/")}
    assert logged.keys() == KEYS
    assert 0 <= logged["glt/wait_share"] <= 1
    assert logged["glt/seeds_per_s"] == pytest.approx(20 * logged["glt/batches_per_s"])
    assert logged["glt/sampled_edges_per_s"] > logged["glt/seeds_per_s"]
    # five batches of at least 0.02 s; validation, which takes longer, does not count
    assert 5 / spent < logged["glt/batches_per_s"] <= 50


def test_nothing_without_a_loader_of_ours(make_trainer) -> None:
    from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset

    trainer = make_trainer(callbacks=[SamplingMonitor()], limit_val_batches=0)
    trainer.fit(BoringModel(), DataLoader(RandomDataset(32, 8)))
    assert not {name for name in trainer.callback_metrics if name.startswith("glt/")}


def test_metrics_reach_the_users_callbacks(make_data, make_model, make_trainer) -> None:
    from lightning.pytorch.callbacks import EarlyStopping

    stop = EarlyStopping("glt/wait_share", mode="min", stopping_threshold=2.0, check_on_train_epoch_end=True)
    trainer = make_trainer(callbacks=[SamplingMonitor(), stop], max_epochs=5)
    trainer.fit(make_model(), make_data())
    assert stop.stopped_epoch == 0
    assert isinstance(trainer.callback_metrics["glt/wait_share"], torch.Tensor)
