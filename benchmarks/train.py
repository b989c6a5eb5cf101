"""A training run on two ranks: GraphSAGE with 256 hidden channels, [15, 10, 5] x 1024, two sampler processes each.

    python benchmarks/train.py GRAPH PARTITION [--batches 5] [--batch_size 1024]

PARTITION: a partition of GRAPH in one part, made if it is not there. Runs --batches steps of an epoch (0: all of it)
after one step that is not counted, and reports wall seconds per step, the length of a whole epoch at that pace, and the
share of the time that the trainer waited for its next batch, averaged over the ranks. On a machine with few cores ranks
and samplers share them, and wall time is also others' time.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from measure import report

from glt_lightning import DistNeighborLoader, GLTDataModule, GraphSAGE, PartitionOptions, SamplingOptions

RANKS, WORKERS = 2, 2


class Stopwatch(Callback):
    """From the end of the first step to the end of the last."""

    def __init__(self) -> None:
        self.steps, self.wall_s, self.wait_s = -1, 0.0, 0.0

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: object) -> None:
        loader = trainer.train_dataloader
        assert isinstance(loader, DistNeighborLoader)
        now, waited = time.perf_counter(), loader.stats().wait_s
        if self.steps < 0:
            self.wall_s, self.wait_s = -now, -waited
        self.steps += 1
        self._last = now, waited

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        now, waited = self._last
        self.wall_s, self.wait_s = self.wall_s + now, self.wait_s + waited


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("partition")
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=1024)
    args = parser.parse_args()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // RANKS))
    seed_everything(0, verbose=False)
    partition = PartitionOptions(num_parts=1, dir=os.path.abspath(args.partition))
    data = GLTDataModule(
        args.graph, batch_size=args.batch_size, partition=partition, sampling=SamplingOptions(num_workers=WORKERS)
    )
    model = GraphSAGE(data.num_features, data.num_classes, hidden_channels=256, num_layers=3)
    watch = Stopwatch()
    trainer = Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy="glt_worker",
        max_epochs=1,
        limit_train_batches=args.batches + 1 if args.batches else None,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[watch],
    )
    trainer.fit(model, data)
    if watch.steps < 1:
        raise SystemExit("train.py needs two steps or more in an epoch: a larger graph, or a smaller --batch_size.")
    found = trainer.strategy.reduce(torch.tensor([watch.wall_s, watch.wait_s]), reduce_op="mean")
    if trainer.is_global_zero:
        wall_s, wait_s = found.tolist()
        steps_per_epoch = len(data.train_dataloader())
        report(
            bench="train",
            system="ours",
            ranks=RANKS,
            workers=WORKERS,
            steps=watch.steps,
            step_wall_s=wall_s / watch.steps,
            epoch_wall_s=wall_s / watch.steps * steps_per_epoch,
            wait_share=wait_s / wall_s,
            steps_per_epoch=steps_per_epoch,
        )


if __name__ == "__main__":
    main()
