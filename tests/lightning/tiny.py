"""A small graph that can be learned, and a module that notes what it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch_geometric.data import HeteroData

from glt_lightning import GraphSAGE

NODES, CLASSES, WIDTH = 240, 3, 8
SHAPE: dict[str, Any] = {
    "in_channels": WIDTH,
    "out_channels": CLASSES,
    "hidden_channels": 16,
    "num_layers": 2,
    "lr": 0.01,
}


def learnable_graph(seed: int = 0) -> dict[str, np.ndarray]:
    """Three communities; an edge stays inside with probability 0.9, and features hint at the community."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, NODES)
    members = [np.flatnonzero(y == c) for c in range(CLASSES)]
    src = rng.integers(0, NODES, 6 * NODES)
    inside = rng.random(len(src)) < 0.9
    dst = [rng.choice(members[y[s]]) if i else rng.integers(0, NODES) for s, i in zip(src, inside, strict=True)]
    x = rng.normal(size=(NODES, WIDTH)).astype(np.float32)
    x[np.arange(NODES), y] += 1
    order = rng.permutation(NODES)
    splits = {"train_idx": order[:100], "valid_idx": order[100:150], "test_idx": order[150:]}
    return {"x": x, "y": y, "edge_index": np.stack([src, np.array(dst)]), **splits}


def save_graph(path: Path, drop: tuple[str, ...] = ()) -> Path:
    np.savez(path, allow_pickle=False, **{name: array for name, array in learnable_graph().items() if name not in drop})
    return path


def learnable_hetero() -> HeteroData:
    """Authors, with labels, write papers; papers have no features; journals print papers and cannot reach an author."""
    import torch

    rng = np.random.default_rng(0)
    data = HeteroData()
    y = rng.integers(0, CLASSES, 60)
    data["author"].x = torch.from_numpy(rng.normal(size=(60, 5)).astype(np.float32) + y[:, None])
    data["author"].y = torch.from_numpy(y)
    for name, begin in (("train", 0), ("val", 30), ("test", 45)):
        mask = torch.zeros(60, dtype=torch.bool)
        mask[begin : begin + 15] = True
        data["author"][f"{name}_mask"] = mask
    data["paper"].num_nodes = 80
    data["journal"].x = torch.zeros(4, 2)
    ends = {
        ("paper", "by", "author"): (80, 60),
        ("author", "wrote", "paper"): (60, 80),
        ("author", "reads", "journal"): (60, 4),
    }
    for edge_type, (src, dst) in ends.items():
        data[edge_type].edge_index = torch.from_numpy(np.stack([rng.integers(0, src, 300), rng.integers(0, dst, 300)]))
    return data


class Noting(GraphSAGE):
    """Notes the user's ids of each training batch's seeds, by epoch, and the losses."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**SHAPE | options)
        self.seen: list[list[list[int]]] = []
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        while len(self.seen) <= self.current_epoch:  # a resumed epoch does not start
            self.seen.append([])
        self.seen[-1].append(batch.n_id[: batch.batch_size].tolist())
        loss = super().training_step(batch, batch_idx)
        self.losses.append(loss.item())
        return loss
