"""Batches on their way to a GPU: the copy is right although the memory they come from is used again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from glt_lightning import GLTDataModule, GraphSAGE, SamplingOptions
from glt_lightning.base import OptionError
from glt_lightning.loader.session import wants_pinned
from tests.lightning.tiny import Noting


def test_pinning_is_for_gpus() -> None:
    assert wants_pinned(SamplingOptions(), torch.device("cuda"))
    assert not wants_pinned(SamplingOptions(), torch.device("cpu"))
    assert not wants_pinned(SamplingOptions(pin_memory=False), torch.device("cuda"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_pinning_without_a_gpu_is_refused(make_data) -> None:
    data = make_data(sampling=SamplingOptions(pin_memory=True))
    data.prepare_data()
    data.setup()
    with pytest.raises(OptionError, match="pin_memory: true needs a CUDA device"):
        data.train_dataloader()


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_copies_are_right_while_slots_are_used_again(make_data, workers: int) -> None:
    """The GPU is kept busy, so that copies run long after the call that starts them."""
    device = torch.device("cuda", 0)
    sampling = SamplingOptions(num_workers=workers, concurrency=1, pin_memory=True, seed=0)
    data = make_data(sampling=sampling, batch_size=2)
    data.prepare_data()
    data.setup()
    expected = [(batch.x.sum().item(), batch.n_id.sum().item()) for batch in data.val_dataloader()]
    busy = torch.zeros(4096, 4096, device=device)
    moved = []
    for batch in data.val_dataloader():
        busy = (busy @ busy).relu()
        copy = data.transfer_batch_to_device(batch, device, 0)
        assert batch.x.device.type == "cpu"
        moved.append((copy.x.sum(), copy.n_id.sum()))
        del batch, copy
    torch.cuda.synchronize()
    found = [(x.item(), n_id.item()) for x, n_id in moved]
    assert [n_id for _, n_id in found] == [n_id for _, n_id in expected]
    assert [x for x, _ in found] == pytest.approx([x for x, _ in expected], rel=1e-4, abs=1e-4)
    data.teardown()


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["auto", "glt_worker"])
def test_trains_on_a_gpu(make_data, make_model, make_trainer, strategy: str) -> None:
    model, data = make_model(Noting), make_data(sampling=SamplingOptions(num_workers=1, seed=5))
    trainer = make_trainer(strategy=strategy, accelerator="gpu", max_epochs=5)
    trainer.fit(model, data)
    (result,) = trainer.test(model, data, verbose=False)
    assert result["test_acc"] > 0.7


class Moving(GraphSAGE):
    """A module that moves batches itself."""

    moved = 0

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        type(self).moved += 1
        batch.by_module = True
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        assert batch.by_module
        return super().training_step(batch, batch_idx)


class OwnData(GLTDataModule):
    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        batch = super().transfer_batch_to_device(batch, device, dataloader_idx)
        batch.by_module = "by_data"
        return batch


@pytest.mark.parametrize("strategy", ["auto", "glt_worker"])
def test_a_module_that_moves_batches_itself_is_asked(make_data, make_model, make_trainer, strategy: str) -> None:
    model, Moving.moved = make_model(Moving), 0
    trainer = make_trainer(strategy=strategy, max_epochs=1, num_sanity_val_steps=0, limit_val_batches=0)
    trainer.fit(model, make_data())
    assert Moving.moved == trainer.global_step > 0


def test_a_data_module_of_the_user_comes_before_the_module(graph_npz, tmp_path, make_model, make_trainer) -> None:
    model, Moving.moved = make_model(Moving), 0
    data = OwnData(str(graph_npz), root=str(tmp_path), num_neighbors=[3], batch_size=20)
    make_trainer(max_epochs=1, num_sanity_val_steps=0, limit_val_batches=0).fit(model, data)
    assert Moving.moved == 0
