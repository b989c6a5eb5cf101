"""The whole way to a batch on the device, and a training run that uses it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch_geometric.data import Data

from benchmarks.gpu_measure import Clock, Rounds, Spread
from benchmarks.gpu_ops import BATCH, FANOUTS, Different
from glt_lightning import (
    DistNeighborLoader,
    GLTDataModule,
    GraphSAGE,
    LoaderSpec,
    LocalPartition,
    PartitionOptions,
    SamplingOptions,
    Session,
)
from glt_lightning.base.sampling import Memory

SEED = 1


def spec(batch_size: int = BATCH) -> LoaderSpec:
    return LoaderSpec(name="train", split="train", num_neighbors=FANOUTS, batch_size=batch_size, shuffle=True)


def options(memory: Memory) -> SamplingOptions:
    return SamplingOptions(topology=memory, features=memory)


def open_session(partition: LocalPartition, memory: Memory, device: torch.device) -> Session:
    """memory: where graph and attributes lie; ``cpu``: the CPU samples."""
    return Session(partition, options(memory), seed=SEED, device=device)


def loading(
    session: Session,
    partition: LocalPartition,
    clock: Clock,
    rounds: Rounds,
    *,
    batches: int,
    batch_size: int = BATCH,
) -> tuple[Spread, float, float]:
    """(batches per second, mean edges of a batch, mean bytes of its features), while nobody computes anything."""
    loader = session.make_loader(spec(batch_size))
    _require_same(loader, partition, batch_size)
    stream, sizes = _endless(loader), []

    def work() -> float:
        for _ in range(batches):
            batch = next(stream)
            sizes.append((batch.edge_index.shape[1], batch.x.nbytes))
            del batch
        return batches

    found = rounds.rate(clock, work)
    edges, nbytes = zip(*sizes, strict=True)
    return found, sum(edges) / len(edges), sum(nbytes) / len(nbytes)


def _require_same(loader: DistNeighborLoader, partition: LocalPartition, batch_size: int) -> None:
    """The first batches are those of the CPU, bit for bit."""
    with Session(partition, options("cpu"), seed=SEED) as session:
        for _, got, want in zip(range(2), loader, session.make_loader(spec(batch_size)), strict=False):
            for name, value in want:
                mine = got[name]
                same = torch.equal(mine.cpu(), value) if isinstance(value, torch.Tensor) else mine == value
                if not same:
                    raise Different(f"loader, {name}: the device's batch differs from the CPU's.")


def _endless(loader: DistNeighborLoader) -> Iterator[Data]:
    while True:
        yield from loader


class Stopwatch(Callback):
    """Wall time and waiting from the end of one step to the end of the last. Each step is waited for, so that the time
    which training takes is not taken for waiting for a batch; streams that make batches go on."""

    def __init__(self, skip: int) -> None:
        self._steps = -skip
        self.steps, self.wall_s, self.wait_s = 0, 0.0, 0.0

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: object) -> None:
        if module.device.type == "cuda":
            torch.cuda.current_stream(module.device).synchronize()
        loader = trainer.train_dataloader
        assert isinstance(loader, DistNeighborLoader)
        now, waited = time.perf_counter(), loader.stats().wait_s
        self._steps += 1
        if self._steps == 0:
            self._begin = now, waited
        elif self._steps > 0:
            self.steps, self.wall_s, self.wait_s = self._steps, now - self._begin[0], waited - self._begin[1]


def training(
    folder: Path, memory: Memory, accelerator: str, *, steps: int, batch_size: int = BATCH, hidden: int = 256
) -> tuple[float, float]:
    """(steps per second, share of the time that the loop waited for its next batch), GraphSAGE of three layers."""
    seed_everything(0, verbose=False)
    data = GLTDataModule(
        partition=PartitionOptions(dir=str(folder)),
        sampling=options(memory),
        num_neighbors=FANOUTS,
        batch_size=batch_size,
    )
    model = GraphSAGE(data.num_features, data.num_classes, hidden_channels=hidden, num_layers=len(FANOUTS))
    watch, skip = Stopwatch(skip=min(5, steps)), min(5, steps)
    trainer = Trainer(
        accelerator=accelerator,
        devices=1,
        max_steps=steps + skip,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[watch],
    )
    trainer.fit(model, data)
    return watch.steps / watch.wall_s, watch.wait_s / watch.wall_s
