"""A training run: GraphSAGE with 256 hidden channels, [15, 10, 5] x 1024, two ranks with two sampler processes each.

    python benchmarks/train.py GRAPH PARTITION [--batches 5] [--ranks 2] [--workers 2] [--threads N] [--return_memory] [--stock]

PARTITION: a partition of GRAPH in one part, made if it is not there. Runs --batches steps of an epoch (0: all of it)
after one step that is not counted. Reports, averaged over the ranks, wall seconds per step and of a whole epoch at that pace,
the share of the time that the trainer waited for its next batch, page faults and lost time slices per step, and the peak of
resident memory; CPU seconds per step are of all ranks and samplers. --threads: of torch per rank, in place of the default.
--return_memory: ``sampling.keep_memory: false``. --stock: PyG's GraphSAGE with ``trim_to_layer`` in place of ours, on the same
batches. On a machine with few cores ranks and samplers share them, and wall time is
also others' time.
"""

from __future__ import annotations

import argparse
import os
import resource
import time

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from measure import cpu_s, report
from step import Stock

from glt_lightning import DistNeighborLoader, GLTDataModule, GraphSAGE, PartitionOptions, SamplingOptions


class Stopwatch(Callback):
    """From the end of the first step to the end of the last."""

    def __init__(self) -> None:
        self.steps, self.spent = -1, torch.zeros(0)

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: object) -> None:
        loader = trainer.train_dataloader
        assert isinstance(loader, DistNeighborLoader)
        used = resource.getrusage(resource.RUSAGE_SELF)
        now = [time.perf_counter(), loader.stats().wait_s, cpu_s(), used.ru_stime, used.ru_minflt, used.ru_nivcsw]
        numbers = torch.tensor(now, dtype=torch.float64)
        if self.steps < 0:
            self._first = numbers
        self.steps, self.spent = self.steps + 1, numbers - self._first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("partition")
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--return_memory", action="store_true")
    parser.add_argument("--stock", action="store_true")
    args = parser.parse_args()
    if args.threads:
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
        torch.set_num_threads(args.threads)
    seed_everything(0, verbose=False)
    partition = PartitionOptions(num_parts=1, dir=os.path.abspath(args.partition))
    sampling = SamplingOptions(num_workers=args.workers, keep_memory=not args.return_memory)
    data = GLTDataModule(args.graph, batch_size=args.batch_size, partition=partition, sampling=sampling)
    model = GraphSAGE(data.num_features, data.num_classes, hidden_channels=256, num_layers=3)
    if args.stock:
        model.gnn = Stock("GraphSAGE", data.num_features, 256, 3, data.num_classes)
    watch = Stopwatch()
    trainer = Trainer(
        accelerator="cpu",
        devices=args.ranks,
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
    peak_mb = torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3])
    found = trainer.strategy.reduce(torch.cat([watch.spent / watch.steps, peak_mb]), reduce_op="mean")
    if trainer.is_global_zero:
        wall_s, wait_s, _, sys_s, faults, lost, peak = found.tolist()
        steps_per_epoch = len(data.train_dataloader())
        report(
            bench="train",
            system="stock" if args.stock else "ours",
            ranks=args.ranks,
            workers=args.workers,
            threads=torch.get_num_threads(),
            keeps_memory=not args.return_memory,
            steps=watch.steps,
            step_wall_s=wall_s,
            step_cpu_s=float(watch.spent[2]) / watch.steps,  # rank 0 started all others
            rank_sys_s=sys_s,
            page_faults=faults,
            lost_time_slices=lost,
            peak_mb=peak,
            epoch_wall_s=wall_s * steps_per_epoch,
            wait_share=wait_s / wall_s,
            steps_per_epoch=steps_per_epoch,
        )


if __name__ == "__main__":
    main()
