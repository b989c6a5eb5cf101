"""How well a model learns from a partition, for comparisons with that of the source data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer, seed_everything
from torch_geometric.data import Data

from glt_lightning import GLTDataModule, GraphSAGE, PartitionOptions
from glt_lightning.base import SeedOptions


def communities() -> Data:
    """1000 nodes in ten classes, whose features are too noisy without their neighbours."""
    torch.manual_seed(0)
    y, split = torch.arange(1000) // 100, torch.arange(1000) % 3
    ends = torch.randint(1000, (2, 8000))
    inside = torch.rand(8000) < 0.8
    ends[1, inside] = ends[0, inside] // 100 * 100 + torch.randint(100, (int(inside.sum()),))
    x = torch.nn.functional.one_hot(y, 10) + torch.randn(1000, 10)
    return Data(x=x, y=y, edge_index=ends, train_mask=split == 0, val_mask=split == 1, test_mask=split == 2)


def accuracy(dataset: Any, folder: Path, splits: Any = None) -> float:
    """Of the test nodes. With all neighbours in one batch, so that neither draws nor the numbering of nodes make a difference.

    dataset: None for a folder that is there.
    """
    seed_everything(1, verbose=False)
    partition = PartitionOptions(num_parts=2, dir=str(folder))
    given = {"root": str(folder.parent), "num_neighbors": [-1, -1], "batch_size": 1000, "partition": partition}
    module = GLTDataModule(dataset, **given, seeds=SeedOptions(splits=splits))
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(max_epochs=30, accelerator="cpu", enable_checkpointing=False, **quiet)
    model = GraphSAGE(10, 10, hidden_channels=32, num_layers=2, lr=0.02, dropout=0.0)
    trainer.fit(model, module)
    (result,) = trainer.test(model, module, verbose=False)
    return float(next(value for name, value in result.items() if "acc" in name))


def require_same_accuracy(own: float, converted: float) -> None:
    assert min(own, converted) > 0.8
    assert abs(own - converted) < 0.004  # one of 333 nodes
