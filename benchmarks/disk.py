"""Attributes larger than memory: what a batch takes beyond the time it takes from memory, and what the disk gives.

    python benchmarks/disk.py PARTITION [--share 0.25] [--workers 0 1] [--rounds 3]

``cache.memory`` is ``--share`` of all attributes. Of every round and number of sampler processes (0: none, each batch is
made when it is asked for) one line: seconds per batch with everything in memory and with the budget, pages per batch that
hold missing rows, pages that were read (those between them included), and the disk's rate of random pages, read by plain
threads with direct reads at the best of several depths, in the same round. ``over_bound`` is

    (time with the budget - time from memory) / (missing pages / rate of the disk),

which is the waiting per page, next to that of the plain reader.
"""

from __future__ import annotations

import argparse
import os
import time
from itertools import islice
from unittest import mock

import numpy as np
import torch
from loader import endless
from measure import report

from glt_lightning import LoaderSpec, LocalPartition, SamplingOptions, Session
from glt_lightning.base import CacheOptions
from glt_lightning.graph import node_path
from glt_lightning.graph.host_tier import hottest_rows
from glt_lightning.kernels import DiskFile, ReadSlots, row_bytes
from glt_lightning.kernels.disk import DiskRows
from glt_lightning.sampling import Counters

DEPTHS = (1, 4, 16, 32, 64)


def random_pages_per_s(file: DiskFile, depth: int, seed: int, seconds: float = 1.0) -> float:
    """Random pages of a file, each read by itself."""
    pages = os.fstat(file.fd).st_size // DiskFile.PAGE
    rows = DiskRows(np.array([0, pages]), [(file, 0)], DiskFile.PAGE, ReadSlots(depth), gap_bytes=-1)
    rng, begin, done = np.random.default_rng(seed), time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        chosen = np.unique(rng.integers(0, pages, 200 * depth))
        rows.read(chosen)
        done += len(chosen)
    return done / (time.perf_counter() - begin)


def timed(partition: LocalPartition, memory: int, args: argparse.Namespace, workers: int) -> tuple[float, Counters]:
    """Seconds per batch, and what each took."""
    spec = LoaderSpec(name="train", split="train", num_neighbors=args.fanouts, batch_size=args.batch_size, shuffle=True)
    options = SamplingOptions(num_workers=workers, concurrency=args.concurrency)
    with Session(partition, options, cache=CacheOptions(memory=memory)) as session:
        loader = session.make_loader(spec)
        stream = endless(loader)
        all(True for _ in islice(stream, 3 + 2 * workers * args.concurrency))
        before = Counters(*loader.stats().counters.to_list())
        begin = time.perf_counter()
        all(True for _ in islice(stream, args.batches))
        took = time.perf_counter() - begin
        return took / args.batches, loader.stats().counters.since(before)


def missing_pages(partition: LocalPartition, memory: int, args: argparse.Namespace) -> float:
    """Pages per batch that hold missing rows, without those between them."""
    single = mock.patch.object(DiskRows.__init__, "__defaults__", (-1,))
    with single:
        _, took = timed(partition, memory, args, 0)
    return took.disk_bytes / DiskFile.PAGE / args.batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition")
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--fanouts", type=int, nargs="*", default=[10, 5])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    partition = LocalPartition.open(args.partition)
    arrays = partition.manifest.arrays
    everything = sum(
        arrays[path].shape[0] * row_bytes(arrays[path].dtype, arrays[path].shape[1:])
        for path in hottest_rows(partition, 0)
    )
    budget = int(everything * args.share)
    file = DiskFile(partition.directory / node_path(0, 0, "x"))
    missing = missing_pages(partition, budget, args)
    for number in range(args.rounds):
        for workers in args.workers:
            from_memory, _ = timed(partition, everything, args, workers)
            rates = {depth: random_pages_per_s(file, depth, number) for depth in DEPTHS}
            with_budget, took = timed(partition, budget, args, workers)
            again = {depth: random_pages_per_s(file, depth, -number % 2**32) for depth in DEPTHS}
            rates = {depth: (rates[depth] + again[depth]) / 2 for depth in DEPTHS}
            best = max(rates.values())
            report(
                bench="disk",
                workers=workers,
                share=args.share,
                attribute_mb=everything / 1e6,
                rows=took.rows // args.batches,
                missing_rows=took.disk_rows // args.batches,
                missing_pages=round(missing),
                pages_read=took.disk_bytes // DiskFile.PAGE // args.batches,
                from_memory_ms=from_memory * 1e3,
                with_budget_ms=with_budget * 1e3,
                disk_ms=took.disk_s / args.batches * 1e3,
                random_pages_per_s=round(best),
                random_pages_per_s_by_depth={depth: round(rate) for depth, rate in rates.items()},
                bound_ms=missing / best * 1e3,
                over_bound=(with_budget - from_memory) / (missing / best),
                round=number,
            )


if __name__ == "__main__":
    main()
