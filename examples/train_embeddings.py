"""Nodes without features: a vector of each is a row that the ranks share, and a GNN over those rows learns with them.

python examples/train_embeddings.py                        # classes of nodes, one process
python examples/train_embeddings.py --devices 2            # two ranks train one table
python examples/train_embeddings.py --task link            # which nodes are linked; then classes by what was learned
python examples/train_embeddings.py --storage disk         # a table that may be larger than memory

The module is the whole program: `GLTDataModule` makes the table, gives batches the numbers of their rows, exchanges the
gradients of the ranks, and saves rows and states beside each checkpoint. After links, the outputs of all nodes are computed, each
layer over the whole graph, and a linear classifier is fitted to those of the training nodes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from glt_lightning import (
    DistEmbedding,
    DistGraph,
    GLTDataModule,
    Optimizers,
    SparseAdagrad,
    predict_layerwise,
    read_embeddings,
)


class Embedded(LightningModule):
    """A GNN over the rows of the nodes of a batch. ``embed`` and ``layer`` are for `predict_layerwise`."""

    num_layers = 2

    def __init__(
        self, out_channels: int, hidden_channels: int = 32, lr: float = 0.01, storage: str | None = None
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.embedding = DistEmbedding(hidden_channels, init=("uniform", -0.1, 0.1), storage=storage)
        self.gnn = GraphSAGE(hidden_channels, hidden_channels, self.num_layers, out_channels=out_channels)
        self.lr = lr

    def forward(self, batch: Data) -> Tensor:
        return self.gnn(self.embedding(batch), batch.edge_index)

    def embed(self, batch: Data) -> Tensor:
        return self.embedding(batch)

    def layer(self, k: int, h: Tensor, batch: Data) -> Tensor:
        h = self.gnn.convs[k](h, batch.edge_index)[: batch.batch_size]
        return h if k + 1 == self.num_layers else h.relu()

    def configure_optimizers(self) -> Any:
        """One optimizer for Lightning: Adam for the parameters, Adagrad for the rows."""
        sparse = SparseAdagrad([self.embedding], lr=10 * self.lr)
        return Optimizers(torch.optim.Adam(self.gnn.parameters(), lr=self.lr), sparse)


class Classes(Embedded):
    """Learns classes of nodes."""

    def training_step(self, batch: Data, batch_idx: int) -> Tensor:
        loss = functional.cross_entropy(self(batch)[: batch.batch_size], batch.y[: batch.batch_size])
        self.log("train_loss", loss, batch_size=batch.batch_size)
        return loss

    def test_step(self, batch: Data, batch_idx: int) -> None:
        right = (self(batch)[: batch.batch_size].argmax(dim=1) == batch.y[: batch.batch_size]).float().mean()
        self.log("test_acc", right, batch_size=batch.batch_size, sync_dist=True)


class Links(Embedded):
    """Learns which nodes are linked: the product of their vectors."""

    def _scores(self, batch: Data) -> Tensor:
        source, target = self(batch)[batch.edge_label_index]
        return (source * target).sum(dim=1)

    def training_step(self, batch: Data, batch_idx: int) -> Tensor:
        loss = functional.binary_cross_entropy_with_logits(self._scores(batch), batch.edge_label.float())
        self.log("train_loss", loss, batch_size=len(batch.edge_label))
        return loss

    def test_step(self, batch: Data, batch_idx: int) -> None:
        right = ((self._scores(batch) > 0) == (batch.edge_label > 0)).float().mean()
        self.log("test_acc", right, batch_size=len(batch.edge_label), sync_dist=True)


def classified(vectors: Tensor, classes: Tensor, train: Tensor, test: Tensor) -> float:
    """The accuracy on ``test`` of a linear classifier of the vectors that is fitted to ``train`` (masks)."""
    vectors = (vectors - vectors[train].mean(dim=0)) / (vectors[train].std(dim=0) + 1e-6)
    linear = nn.Linear(vectors.shape[1], int(classes.max()) + 1)
    optimizer = torch.optim.LBFGS(linear.parameters(), max_iter=100)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(linear(vectors[train]), classes[train]) + 1e-3 * linear.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return float((linear(vectors[test]).argmax(dim=1) == classes[test]).float().mean())


def classify(trainer: Trainer, model: Links, data: GLTDataModule, out: Path) -> None:
    """Finds the classes of nodes by the vectors that were learned from links."""
    predict_layerwise(trainer, model, data, out)
    with DistGraph(data.partition_dir) as graph:  # all ranks together
        found = read_embeddings(out)
        rows = graph.rows_of(torch.from_numpy(found["n_id"]))
        y, train, test = (graph.ndata[name][rows] for name in ("y", "train_mask", "test_mask"))
    if trainer.is_global_zero:
        accuracy = classified(torch.from_numpy(found["embedding"]), y, train, test)
        print(f"accuracy of a classifier of the learned vectors: {accuracy:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=["node", "link"], default="node")
    parser.add_argument("--dataset", default="demo")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--max-epochs", type=int, default=20)
    parser.add_argument("--storage", choices=["memory", "disk"], default="memory")
    args = parser.parse_args()

    seed_everything(42)
    links: dict[str, Any] = {
        "task": "link",
        "links": {"edge_splits": {"num_val": 0.05, "num_test": 0.1}},
        "batch_size": 256,
        "evaluation": {"predict_split": "test"},
    }
    more = links if args.task == "link" else {"batch_size": 64}
    data = GLTDataModule(args.dataset, undirected=True, num_neighbors=[10, 10], **more)
    kind, width = (Links, 32) if args.task == "link" else (Classes, data.num_classes)
    model = kind(width, storage=args.storage)
    trainer = Trainer(strategy="glt_worker", accelerator="cpu", devices=args.devices, max_epochs=args.max_epochs)
    trainer.fit(model, data)
    trainer.test(model, data)
    if isinstance(model, Links):
        classify(trainer, model, data, Path(trainer.default_root_dir, "embeddings"))


if __name__ == "__main__":  # with several devices, each rank runs this file
    main()
