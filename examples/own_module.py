"""Your own LightningModule over any PyG model; `docs/lightning.md` explains each part.

python examples/own_module.py
PYTHONPATH=examples python -m lightning fit --model own_module.NodeClassifier --data GLTDataModule --data.dataset demo
"""

from __future__ import annotations

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE
from torchmetrics import Accuracy

from glt_lightning import GLTDataModule, PredictionWriter
from glt_lightning.lightning import read_predictions


class NodeClassifier(LightningModule):
    """On the command line, in_channels and out_channels come from the data module."""

    def __init__(self, in_channels: int, out_channels: int, hidden_channels: int = 64, lr: float = 0.01) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.gnn = GraphSAGE(in_channels, hidden_channels, num_layers=2, out_channels=out_channels, norm="layer")
        self.lr = lr
        self.val_acc = Accuracy(task="multiclass", num_classes=out_channels)
        self.test_acc = Accuracy(task="multiclass", num_classes=out_channels)

    def forward(self, batch: Data) -> Tensor:
        """The seeds come first among the nodes of a batch."""
        return self.gnn(batch.x, batch.edge_index)[: batch.batch_size]

    def training_step(self, batch: Data, batch_idx: int) -> Tensor:
        loss = functional.cross_entropy(self(batch), batch.y[: batch.batch_size])
        # Without batch_size Lightning would count all sampled nodes, not the seeds.
        self.log("train_loss", loss, prog_bar=True, batch_size=batch.batch_size)
        return loss

    def validation_step(self, batch: Data, batch_idx: int) -> None:
        self.val_acc(self(batch), batch.y[: batch.batch_size])
        self.log("val_acc", self.val_acc, prog_bar=True, batch_size=batch.batch_size)

    def test_step(self, batch: Data, batch_idx: int) -> None:
        self.test_acc(self(batch), batch.y[: batch.batch_size])
        self.log("test_acc", self.test_acc, batch_size=batch.batch_size)

    def predict_step(self, batch: Data, batch_idx: int) -> dict[str, Tensor]:
        # clone: a view that is kept would keep the memory of the whole batch
        return {"n_id": batch.n_id[: batch.batch_size].clone(), "probability": self(batch).softmax(dim=-1)}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-epochs", type=int, default=10)
    args = parser.parse_args()

    seed_everything(42, workers=True)
    data = GLTDataModule("demo", undirected=True, num_neighbors=[15, 10], batch_size=64)
    model = NodeClassifier(data.num_features, data.num_classes)
    trainer = Trainer(
        accelerator="cpu", devices=1, max_epochs=args.max_epochs, callbacks=[PredictionWriter("predictions")]
    )
    trainer.fit(model, data)
    trainer.predict(model, data)
    predicted = read_predictions("predictions")
    print(f"{len(predicted['n_id'])} nodes; the first: {predicted['probability'][0].argmax()}")


if __name__ == "__main__":
    main()
