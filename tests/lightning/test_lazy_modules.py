"""Modules whose layers learn their sizes from the first batch, under strategies that wrap them with DDP."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, seed_everything
from torch.nn import functional
from torch_geometric.nn import SAGEConv
from torchmetrics import Accuracy

from glt_lightning.base import OptionError
from tests.lightning.tiny import CLASSES


class Lazy(LightningModule):
    """Two convolutions without sizes, as PyG's examples have them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv((-1, -1), 16), SAGEConv((-1, -1), CLASSES)
        self.train_acc = Accuracy(task="multiclass", num_classes=CLASSES)
        self.losses: list[float] = []
        self.frozen = torch.nn.Dropout().eval()
        self.register_buffer("steps", torch.tensor(0))
        self.seen_before_training: Any = None

    def forward(self, batch: Any) -> torch.Tensor:
        x = self.first(batch.x, batch.edge_index).relu()
        return self.second(functional.dropout(x, training=self.training), batch.edge_index)[: batch.batch_size]

    def on_train_start(self) -> None:
        self.seen_before_training = self.train_acc.update_count, int(self.steps), self.frozen.training, len(self.losses)
        self.losses.clear()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.steps += 1
        logits, y = self(batch), batch.y[: batch.batch_size]
        self.train_acc(logits, y)
        self.log("train_acc", self.train_acc, batch_size=len(y))
        loss = functional.cross_entropy(logits, y)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def fitted(strategy: str, make_data, make_trainer, kind: type[Lazy] = Lazy) -> Lazy:
    seed_everything(1, verbose=False)
    model = kind()
    make_trainer(strategy=strategy, max_epochs=1).fit(model, make_data())
    return model


@pytest.mark.parametrize("strategy", ["ddp", "glt_worker", "glt_server_client"])
def test_lazy_module_trains_as_without_ddp(make_data, make_trainer, strategy: str) -> None:
    """Both make its weights by the first batch without dropout: of validation, or of the dry run."""
    model = fitted(strategy, make_data, make_trainer)
    assert model.losses == pytest.approx(fitted("auto", make_data, make_trainer).losses, rel=1e-5)
    assert model.seen_before_training == (0, 0, False, 1)  # the dry run left nothing that torch knows of
    assert model.training


def test_no_dry_run_for_modules_that_have_their_sizes(make_data, make_trainer) -> None:
    class Sized(Lazy):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = SAGEConv(8, 16), SAGEConv(16, CLASSES)

    assert fitted("glt_worker", make_data, make_trainer, Sized).seen_before_training[-1] == 0


def test_loaders_in_a_dictionary(make_data, make_trainer) -> None:
    """A dry run gets what ``training_step`` gets."""

    class Named(Lazy):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return super().training_step(batch["one"], batch_idx)

    data = make_data()
    loader = data.train_dataloader
    data.train_dataloader = lambda: {"one": loader()}
    make_trainer(strategy="ddp", max_epochs=1).fit(model := Named(), data)
    assert len(model.losses) == 5


class Spare(Lazy):
    def __init__(self) -> None:
        super().__init__()
        self.spare = SAGEConv((-1, -1), 4)


def test_lazy_parameters_that_are_not_used_are_named(make_data, make_trainer) -> None:
    with pytest.raises(OptionError, match=r"spare.lin_l.weight, .*that training_step does not use"):
        fitted("glt_worker", make_data, make_trainer, Spare)


def test_a_checkpoint_with_lazy_parameters_is_said_when_it_is_saved(make_data, make_trainer, tmp_path: Path) -> None:
    trainer, path = make_trainer(max_epochs=1), str(tmp_path / "of.ckpt")
    trainer.fit(model := Spare(), make_data())
    with pytest.warns(
        UserWarning, match=r"^spare.lin_l.weight, .*and this checkpoint is read with weights_only false alone"
    ):
        trainer.save_checkpoint(path)
    with pytest.raises(pickle.UnpicklingError, match="UninitializedParameter"):
        torch.load(path, weights_only=True)
    make_trainer(max_epochs=2).fit(again := Spare(), make_data(), ckpt_path=path, weights_only=False)
    assert len(again.losses) == len(model.losses) == 5


def test_manual_optimization_is_told_what_to_do(make_data, make_trainer) -> None:
    class Manual(Lazy):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

    with pytest.raises(OptionError, match=r"manual optimization cannot have. Give the sizes"):
        fitted("glt_worker", make_data, make_trainer, Manual)
