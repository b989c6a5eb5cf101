"""Training, resuming and prediction with rows on the training device are what they are without."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from glt_lightning import CacheOptions, SamplingOptions
from glt_lightning.base import OptionError
from glt_lightning.lightning import PredictionWriter, read_predictions
from tests.lightning.tiny import Noting

ROWS = CacheOptions(device=4000)


@pytest.fixture
def apart(monkeypatch):
    """The CPU counts as a device with memory of its own."""
    monkeypatch.setattr("glt_lightning.loader.device_rows.is_apart", lambda device: True)


@pytest.fixture
def fitted(make_data, make_model, make_trainer):
    def fit(cache=None, strategy="auto", workers=0, epochs=2, resume=None, **options):
        cache = CacheOptions() if cache is None else cache
        data = make_data(cache=cache, sampling=SamplingOptions(num_workers=workers, seed=5))
        trainer, model = make_trainer(strategy=strategy, max_epochs=epochs, **options), make_model(Noting, dropout=0.0)
        trainer.fit(model, data, ckpt_path=resume)
        return trainer, model, data

    return fit


def same(one, other):
    return all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


@pytest.mark.parametrize(("strategy", "workers"), [("auto", 0), ("glt_worker", 1)])
def test_same_weights(fitted, apart, strategy, workers):
    _, plain, _ = fitted()
    trainer, model, _ = fitted(ROWS, strategy, workers)
    assert model.seen == plain.seen
    assert same(model, plain)
    assert trainer.train_dataloader.stats().counters.device_rows > 0


def test_resumed(fitted, apart, tmp_path):
    keep = ModelCheckpoint(dirpath=tmp_path, filename="{step}", every_n_train_steps=3, save_top_k=-1)
    _, plain, _ = fitted(epochs=3, enable_checkpointing=True, callbacks=[keep])
    trainer, model, _ = fitted(ROWS, epochs=3, resume=tmp_path / "step=6.ckpt")
    assert same(model, plain)
    assert trainer.train_dataloader.stats().counters.device_rows > 0


def test_predictions(fitted, make_trainer, apart, tmp_path):
    found = []
    for name, cache in (("plain", CacheOptions()), ("device", ROWS)):
        _, model, data = fitted(cache)
        make_trainer(callbacks=[PredictionWriter(str(tmp_path / name))]).predict(model, data, return_predictions=False)
        found.append(read_predictions(tmp_path / name))
    assert found[0].keys() == found[1].keys()
    assert all(np.array_equal(found[0][key], found[1][key]) for key in found[0])


def test_servers_make_whole_batches(fitted):
    with pytest.raises(OptionError, match=r"cache\.device: the training process must map the graph.*glt_worker"):
        fitted(ROWS, "glt_server_client")
