"""Fan-outs as a share of the degree: nodes of high degree give more neighbours than others, up to a limit.

python examples/share_of_neighbours.py --share 0.5
PYTHONPATH=examples python -m lightning fit --model GraphSAGE --data GLTDataModule --data.dataset demo \
    --data.sampling.picker '{class_path: share_of_neighbours.ShareOfNeighbours, init_args: {share: 0.3}}'
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from lightning.pytorch import Trainer, seed_everything

from glt_lightning import GLTDataModule, GraphSAGE, SamplingOptions
from glt_lightning.kernels import RowView, pick_uniform


@dataclass(frozen=True)
class ShareOfNeighbours:
    """A share of each node's neighbours, at least ``least`` and at most the fan-out."""

    share: float = 0.5
    least: int = 1
    version: ClassVar[int] = 1

    def pick(self, rows: RowView, fanout: int, stream: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        wanted = np.maximum(np.ceil(self.share * rows.degree).astype(np.int64), self.least)
        most = rows.degree if fanout < 0 else np.minimum(rows.degree, fanout)
        counts = np.minimum(wanted, most)
        return counts, pick_uniform(rows.degree, counts, stream)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="demo", help="or any other: ogbn-products, my_graph.npz, ...")
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--max-epochs", type=int, default=5)
    args = parser.parse_args()
    seed_everything(0)
    data = GLTDataModule(
        args.dataset,
        num_neighbors=[50, 20],
        batch_size=256,
        sampling=SamplingOptions(picker=ShareOfNeighbours(args.share)),
    )
    model = GraphSAGE(data.num_features, data.num_classes, hidden_channels=64, num_layers=2)
    trainer = Trainer(max_epochs=args.max_epochs, accelerator="cpu", enable_progress_bar=False)
    trainer.fit(model, data)
    trainer.test(model, data, ckpt_path="best")


if __name__ == "__main__":
    main()
