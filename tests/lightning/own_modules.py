"""LightningModules as people write them, for `tests/lightning/test_own_modules.py`; the command line finds them by name."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GATConv, HGTConv, Linear, SAGEConv, to_hetero
from torchmetrics import Accuracy, F1Score, MeanSquaredError, MetricCollection


class Classifier(LightningModule):
    """What four of them share: the steps, of logits for the seeds. Each metric is its own, as people do it."""

    def __init__(self, out_channels: int) -> None:
        super().__init__()
        self.val_acc = Accuracy(task="multiclass", num_classes=out_channels)
        self.test_acc = Accuracy(task="multiclass", num_classes=out_channels)

    def seeds(self, batch: Any) -> Any:
        """The store of the seeds: the batch itself, or that of the type which has them."""
        return batch if not hasattr(batch, "node_types") else next(s for s in batch.node_stores if "batch_size" in s)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        seeds = self.seeds(batch)
        loss = functional.cross_entropy(self(batch)[: seeds.batch_size], seeds.y[: seeds.batch_size])
        self.log("train_loss", loss, batch_size=seeds.batch_size)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch, "val_acc", self.val_acc)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch, "test_acc", self.test_acc)

    def _evaluate(self, batch: Any, name: str, metric: Accuracy) -> None:
        seeds = self.seeds(batch)
        if seeds.batch_size:
            metric(self(batch)[: seeds.batch_size], seeds.y[: seeds.batch_size])
        self.log(name, metric, batch_size=seeds.batch_size)

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        seeds = self.seeds(batch)
        logits = self(batch)[: seeds.batch_size]
        return {"n_id": seeds.n_id[: seeds.batch_size].clone(), "pred": logits.argmax(dim=-1)}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.02)


class SageByHand(Classifier):
    """SAGEConv by hand, with the sizes that the data module tells."""

    def __init__(self, in_channels: int, out_channels: int, hidden: int = 16) -> None:
        super().__init__(out_channels)
        self.first = SAGEConv(in_channels, hidden)
        self.second = SAGEConv(hidden, out_channels)

    def forward(self, batch: Any) -> Tensor:
        return self.second(self.first(batch.x, batch.edge_index).relu(), batch.edge_index)


class LazyGat(Classifier):
    """GAT that learns the width of its input from the first batch."""

    def __init__(self, out_channels: int, heads: int = 2) -> None:
        super().__init__(out_channels)
        self.save_hyperparameters()
        self.first = GATConv(-1, 8, heads=heads)
        self.second = GATConv(-1, out_channels, heads=1)

    def forward(self, batch: Any) -> Tensor:
        return self.second(functional.elu(self.first(batch.x, batch.edge_index)), batch.edge_index)


class Hgt(Classifier):
    """HGT. Types without features have an embedding of the node's id."""

    def __init__(
        self,
        in_channels: dict[str, int | None],
        out_channels: int,
        metadata: tuple[list[str], list[tuple[str, str, str]]],
        num_nodes: dict[str, int],
        target_type: str,
        hidden: int = 16,
    ) -> None:
        super().__init__(out_channels)
        self.save_hyperparameters()
        self.target_type = target_type
        self.lins = nn.ModuleDict({t: Linear(width, hidden) for t, width in in_channels.items() if width})
        self.embeddings = nn.ModuleDict(
            {t: nn.Embedding(num_nodes[t], hidden) for t, width in in_channels.items() if not width}
        )
        self.convs = nn.ModuleList([HGTConv(hidden, hidden, metadata, heads=2) for _ in range(2)])
        self.head = Linear(hidden, out_channels)

    def forward(self, batch: Any) -> Tensor:
        x = {t: lin(batch[t].x).relu() for t, lin in self.lins.items()}
        x |= {t: embed(batch[t].n_id) for t, embed in self.embeddings.items()}
        for conv in self.convs:
            x = conv(x, batch.edge_index_dict)
        return self.head(x[self.target_type])


class _Sage(nn.Module):
    def __init__(self, hidden: int, out_channels: int) -> None:
        super().__init__()
        self.first = SAGEConv((-1, -1), hidden)
        self.second = SAGEConv((-1, -1), out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


class ToHetero(Classifier):
    """A homogeneous model with lazy sizes that ``to_hetero`` makes one of several types, as in PyG's tutorial."""

    def __init__(
        self,
        out_channels: int,
        metadata: tuple[list[str], list[tuple[str, str, str]]],
        num_nodes: dict[str, int],
        target_type: str,
        without_x: list[str] = ("paper",),
    ) -> None:
        super().__init__(out_channels)
        self.target_type = target_type
        self.embeddings = nn.ModuleDict({t: nn.Embedding(num_nodes[t], 8) for t in without_x})
        self.gnn = to_hetero(_Sage(16, out_channels), metadata)

    def forward(self, batch: Any) -> Tensor:
        x = dict(batch.x_dict) | {t: embed(batch[t].n_id) for t, embed in self.embeddings.items()}
        return self.gnn(x, batch.edge_index_dict)[self.target_type]


class SeveralLosses(LightningModule):
    """Classes and features at once, own collections of metrics, a schedule, and all arguments in the checkpoint."""

    def __init__(self, in_channels: int, out_channels: int, weight: float = 0.5, hidden: int = 16) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.conv = SAGEConv(in_channels, hidden)
        self.classes, self.features = nn.Linear(hidden, out_channels), nn.Linear(hidden, in_channels)
        metrics = MetricCollection(
            {
                "acc": Accuracy(task="multiclass", num_classes=out_channels),
                "f1": F1Score(task="multiclass", num_classes=out_channels, average="macro"),
            }
        )
        self.metrics = nn.ModuleDict({f"{which}_": metrics.clone(prefix=f"{which}_") for which in ("val", "test")})
        self.error = MeanSquaredError()

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        h = self.conv(batch.x, batch.edge_index).relu()[: batch.batch_size]
        return self.classes(h), self.features(h)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        logits, features = self(batch)
        losses = {
            "class_loss": functional.cross_entropy(logits, batch.y[: batch.batch_size]),
            "feature_loss": functional.mse_loss(features, batch.x[: batch.batch_size]),
        }
        self.log_dict(losses, batch_size=batch.batch_size)
        return losses["class_loss"] + self.hparams["weight"] * losses["feature_loss"]

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch, "test")

    def _evaluate(self, batch: Any, which: str) -> None:
        metrics = self.metrics[f"{which}_"]
        if batch.batch_size:
            logits, features = self(batch)
            metrics(logits, batch.y[: batch.batch_size])
            self.error(features, batch.x[: batch.batch_size])
        self.log_dict(metrics, batch_size=batch.batch_size)
        self.log(f"{which}_error", self.error, batch_size=batch.batch_size)

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        return {"n_id": batch.n_id[: batch.batch_size].clone(), "pred": self(batch)[0].argmax(dim=-1)}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)}
