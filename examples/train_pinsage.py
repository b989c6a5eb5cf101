"""PinSAGE in a module of one's own: the most visited nodes of random walks are the neighbours, and a layer weighs them by visits.

python examples/train_pinsage.py                              # one process
python examples/train_pinsage.py --devices 2 --walks 100      # two ranks; batches are those of one
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GraphConv

from glt_lightning import GLTDataModule, ImportanceNeighbors, SamplingOptions


class PinSAGE(LightningModule):
    """Layers whose neighbours are weighed by ``edge_weight``: a mean by importance, beside the node itself."""

    def __init__(self, in_channels: int, out_channels: int, hidden_channels: int = 64, lr: float = 0.01) -> None:
        super().__init__()
        self.save_hyperparameters()
        widths = [in_channels, hidden_channels, out_channels]
        self.convs = nn.ModuleList(GraphConv(a, b, aggr="add") for a, b in pairwise(widths))
        self.lr = lr

    def forward(self, batch: Data) -> Tensor:
        x = batch.x
        for layer, conv in enumerate(self.convs):
            x = conv(x if layer == 0 else functional.relu(x), batch.edge_index, batch.edge_weight)
        return x[: batch.batch_size]

    def training_step(self, batch: Data, batch_idx: int) -> Tensor:
        loss = functional.cross_entropy(self(batch), batch.y[: batch.batch_size])
        self.log("train_loss", loss, batch_size=batch.batch_size)
        return loss

    def test_step(self, batch: Data, batch_idx: int) -> None:
        right = (self(batch).argmax(dim=1) == batch.y[: batch.batch_size]).float().mean()
        self.log("test_acc", right, batch_size=batch.batch_size, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="demo")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--max-epochs", type=int, default=10)
    parser.add_argument("--walks", type=int, default=50)
    args = parser.parse_args()

    seed_everything(42)
    walks = ImportanceNeighbors(walks=args.walks, length=3, restart=0.5)
    sampling = SamplingOptions(importance_neighbors=walks)
    data = GLTDataModule(args.dataset, undirected=True, num_neighbors=[10, 5], batch_size=64, sampling=sampling)
    model = PinSAGE(data.num_features, data.num_classes)
    trainer = Trainer(strategy="glt_worker", accelerator="cpu", devices=args.devices, max_epochs=args.max_epochs)
    trainer.fit(model, data)
    trainer.test(model, data)


if __name__ == "__main__":  # with several devices, each rank runs this file
    main()
