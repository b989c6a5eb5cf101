"""A sampler of your own: which neighbours each layer sees, as subclasses of DGL's ``BlockSampler`` say in ``sample_frontier``.

python examples/own_sampler.py --fanouts 4 4 4
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from lightning.pytorch import Trainer, seed_everything

from glt_lightning import GLTDataModule, GraphSAGE, SamplingOptions
from glt_lightning.kernels import RowView, pick_uniform


@dataclass(frozen=True)
class MultiLayerNeighborSampler:
    """Up to ``fanouts[hop]`` neighbours of every node, hop 0 around the seeds.

    DGL's counterpart draws with ``sample_neighbors`` from the whole graph of its process. This one sees rows of whatever part a
    process has, and draws from the random bits that it is given, so batches are the same everywhere.
    """

    fanouts: Sequence[int]
    version: ClassVar[int] = 1  # count up when it picks otherwise: processes with another version refuse

    def pick(self, rows: RowView, fanout: int, stream: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The frontier of a hop. Change it here: by ``rows.degree``, ``rows.edge_type``, ``rows.attrs``."""
        counts = np.minimum(rows.degree, self.fanouts[rows.hop])
        return counts, pick_uniform(rows.degree, counts, stream)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="demo", help="or any other: ogbn-products, my_graph.npz, ...")
    parser.add_argument("--fanouts", type=int, nargs="+", default=[4, 4, 4])
    parser.add_argument("--max-epochs", type=int, default=5)
    args = parser.parse_args()
    seed_everything(0)
    data = GLTDataModule(
        args.dataset,
        num_neighbors=args.fanouts,  # as many hops; the numbers are what `pick` gets as fanout
        batch_size=256,
        sampling=SamplingOptions(picker=MultiLayerNeighborSampler(args.fanouts)),
    )
    model = GraphSAGE(data.num_features, data.num_classes, hidden_channels=64, num_layers=len(args.fanouts))
    trainer = Trainer(max_epochs=args.max_epochs, accelerator="cpu", enable_progress_bar=False)
    trainer.fit(model, data)
    trainer.test(model, data, ckpt_path="best")


if __name__ == "__main__":
    main()
