"""The loader with attributes decoded, and as they are stored: CPU time and bytes of a batch, [15, 10, 5] x 1024.

    python benchmarks/feature_dtype.py PARTITION... [--workers 2] [--rounds 7]

Partitions of one graph with different ``partition.storage``. All take turns, so that their ratios can be compared.
batch_mb: memory of one batch, in training or in flight.  ratio: of cpu_ms, by that of the first line.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from statistics import median

import torch
from loader import SPEC, endless
from measure import cpu_s, process_tree, report

from glt_lightning import LocalPartition, SamplingOptions, Session

_BATCHES = 10  # of a turn


def stored(partition: LocalPartition) -> str:
    return "; ".join(f"{key} {entry.stored}" for key, entry in partition.manifest.encodings.items()) or "float32"


class Turn:
    """A loader that takes turns with others."""

    def __init__(self, opened: ExitStack, partition: LocalPartition, dtype: str, workers: int) -> None:
        before = set(process_tree())
        options = SamplingOptions(num_workers=workers, feature_dtype=dtype)
        self.loader = opened.enter_context(Session(partition, options)).make_loader(SPEC)
        self.stored, self.dtype = stored(partition), dtype
        self.stream = endless(self.loader)
        for _ in range(10 + 20 * workers):  # every slot of every process has been used
            batch = next(self.stream)
        tensors = [value for value in batch.to_dict().values() if isinstance(value, torch.Tensor)]
        self.batch_mb = sum(value.nbytes for value in tensors) / 1e6
        own = process_tree()
        self.pids = [own[0], *(pid for pid in own[1:] if pid not in before)]
        self.cpu_ms: list[float] = []

    def take(self) -> None:
        cpu = cpu_s(self.pids)
        for _ in range(_BATCHES):
            next(self.stream)
        self.cpu_ms.append((cpu_s(self.pids) - cpu) / _BATCHES * 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partitions", nargs="+")
    parser.add_argument("--workers", type=int, default=0, help="sampler processes; 0 samples in this one")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with ExitStack() as opened:
        turns = []
        for folder in args.partitions:
            partition = LocalPartition.open(folder)
            dtypes = ["float32", "stored"] if partition.manifest.encodings else ["float32"]
            turns += [Turn(opened, partition, dtype, args.workers) for dtype in dtypes]
        for number in range(args.rounds):
            for turn in turns[number % len(turns) :] + turns[: number % len(turns)]:
                turn.take()
    for turn in turns:
        report(
            bench="feature_dtype",
            system="ours",
            stored=turn.stored,
            given=turn.dtype,
            workers=args.workers,
            batch_mb=turn.batch_mb,
            cpu_ms=median(turn.cpu_ms),
            least=min(turn.cpu_ms),
            most=max(turn.cpu_ms),
            ratio=median(turn.cpu_ms) / median(turns[0].cpu_ms),
        )


if __name__ == "__main__":
    main()
