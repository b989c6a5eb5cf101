"""Training on batches that a GPU makes is training on those of the CPU. The emulated kernels stand in for the GPU."""

from __future__ import annotations

import logging

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from glt_lightning import CacheOptions, GLTDataModule, SamplingOptions
from glt_lightning.base import GLTError
from glt_lightning.kernels import Kernels
from glt_lightning.workers.producer import on_gpu
from tests.lightning.serving import serving
from tests.lightning.tiny import Noting


@pytest.fixture
def gpu(kernels, monkeypatch):
    """The CPU counts as a GPU."""
    monkeypatch.setattr(on_gpu, "is_gpu", lambda device: True)
    monkeypatch.setattr(Kernels, "open", lambda device: kernels)


@pytest.fixture
def fitted(make_data, make_model, make_trainer):
    def fit(strategy="auto", epochs=2, resume=None, sampling=None, cluster=None, **options):
        data = make_data(sampling=SamplingOptions(seed=5, **(sampling or {})), cluster=cluster)
        trainer, model = make_trainer(strategy=strategy, max_epochs=epochs, **options), make_model(Noting, dropout=0.0)
        trainer.fit(model, data, ckpt_path=resume)
        return trainer, model

    return fit


def same(one, other):
    return all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


@pytest.mark.parametrize("strategy", ["auto", "glt_worker"])
def test_same_weights(fitted, gpu, strategy):
    _, plain = fitted(sampling={"topology": "cpu"})
    trainer, model = fitted(strategy)
    assert type(trainer.train_dataloader._producer).__name__ == "DeviceProducer"
    assert model.seen == plain.seen
    assert same(model, plain)


def test_resumed_in_mid_epoch_by_the_cpu(fitted, gpu, tmp_path):
    """A batch is the same whoever makes it, so a run may go on where there is no GPU."""
    keep = ModelCheckpoint(dirpath=tmp_path, filename="{step}", every_n_train_steps=3, save_top_k=-1)
    _, plain = fitted(epochs=3, enable_checkpointing=True, callbacks=[keep])
    _, model = fitted(epochs=3, resume=tmp_path / "step=6.ckpt", sampling={"topology": "cpu"})
    assert same(model, plain)


def test_servers_make_whole_batches(fitted, gpu, caplog):
    _, plain = fitted(sampling={"topology": "cpu"})
    with caplog.at_level(logging.INFO, "glt_lightning"):
        _, model = fitted("glt_server_client", sampling={"topology": "device"})
    assert (
        "servers make the batches; these options hold for their sampling.worker_devices: topology device."
        in caplog.text
    )
    assert same(model, plain)


def test_a_budget_may_be_that_of_servers(make_data, make_model, make_trainer):
    """Trainers read the same file as their servers."""
    data = make_data()
    data.prepare_data()
    with serving(data.partition_dir) as (where, _):
        theirs = GLTDataModule(
            num_neighbors=[5, 5],
            batch_size=20,
            sampling=SamplingOptions(features="hybrid", num_workers=1, worker_devices=["cuda:0"]),
            cache=CacheOptions(device=3000),
            cluster=where,
        )
        make_trainer(strategy="glt_server_client", max_epochs=1).fit(make_model(), theirs)


def test_a_gpu_that_a_server_shall_use_and_cannot(fitted):
    with pytest.raises(GLTError, match="CUDA"):
        fitted("glt_server_client", sampling={"num_workers": 1, "worker_devices": ["cuda:0"]})
