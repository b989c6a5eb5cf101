"""The loader end to end, [15, 10, 5] x 1024 with features and labels: M rows per CPU second of all processes.

    python benchmarks/loader.py PARTITION [--workers 2] [--batch_size 64] [--edge_format edge_index]

A row is a node of a batch. The consumer drops each batch at once and computes nothing. ``trainer_ms`` is the CPU time of
this process alone; ``faults`` are minor page faults per batch, of which recycled memory has none.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
from measure import cpu_s, minor_faults, process_tree, report
from torch_geometric.data import Data

from glt_lightning import DistNeighborLoader, LoaderSpec, SamplingOptions, Session
from glt_lightning.base.sampling import EDGE_FORMATS

SPEC = LoaderSpec(name="train", split="train", num_neighbors=[15, 10, 5], batch_size=1024, shuffle=True)


def endless(loader: DistNeighborLoader) -> Iterator[Data]:
    while True:
        yield from loader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition")
    parser.add_argument("--workers", type=int, default=0, help="sampler processes; 0 samples in this one")
    parser.add_argument("--batches", type=int, default=80)
    parser.add_argument("--batch_size", type=int, default=1024)
    parser.add_argument("--edge_format", choices=EDGE_FORMATS, default="tensor")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with Session(args.partition, SamplingOptions(num_workers=args.workers)) as session:
        stream = endless(session.make_loader(replace(SPEC, batch_size=args.batch_size, edge_format=args.edge_format)))
        for _ in range(10 + 20 * args.workers):  # every slot of every process has been used
            next(stream)
        pids = process_tree()
        before = [cpu_s(pids), cpu_s(pids[:1]), sum(map(minor_faults, pids)), time.perf_counter()]
        rows = sum(next(stream).num_nodes for _ in range(args.batches))
        after = [cpu_s(pids), cpu_s(pids[:1]), sum(map(minor_faults, pids)), time.perf_counter()]
    cpu, trainer, faults, wall = ((b - a) / args.batches for a, b in zip(before, after, strict=True))
    report(
        bench="loader",
        system="ours",
        workers=args.workers,
        batch_size=args.batch_size,
        edge_format=args.edge_format,
        m_rows_per_cpu_s=rows / args.batches / cpu / 1e6,
        cpu_ms=cpu * 1e3,
        trainer_ms=trainer * 1e3,
        wall_ms=wall * 1e3,
        faults=faults,
        rows=rows // args.batches,
    )


if __name__ == "__main__":
    main()
