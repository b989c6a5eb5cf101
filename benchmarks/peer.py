"""What the benchmarks of peers share: the graph as torch tensors, the cases, how each is timed. Imports nothing of ours."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import report

CASES = {"15,10,5": 1024, "10,25": 1000}
LOADER_FANOUTS, LOADER_SIZE = [15, 10, 5], 1024
WARM_UP = 5


@dataclass(frozen=True)
class Options:
    """partition: a folder with one part.  seconds: CPU time of each case of sampling.  batches: of the loader."""

    partition: Path
    seconds: float
    batches: int

    @classmethod
    def parse(cls, doc: str | None) -> Options:
        parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("partition", type=Path)
        parser.add_argument("--seconds", type=float, default=3.0, help="CPU time of each case of sampling")
        parser.add_argument("--batches", type=int, default=25, help="batches of the loader that are timed")
        args = parser.parse_args()
        torch.set_num_threads(1)
        return cls(args.partition, args.seconds, args.batches)


@dataclass(frozen=True)
class PeerGraph:
    """The arrays of a partition in private memory, in its order of rows (hottest first), like those that we read.

    indptr: int64 [N + 1], indices: int64 [E], both by destination.  x: float32 [N, D].  y: int64 [N].  train: int64 [S].
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    x: torch.Tensor
    y: torch.Tensor
    train: torch.Tensor

    @classmethod
    def load(cls, partition: Path) -> PeerGraph:
        part = partition / "part0"
        indptr, indices = (np.load(part / f"edges/0/{n}.npy").astype(np.int64) for n in ("indptr", "indices"))
        x, y = (np.load(part / f"nodes/0/{n}.npy") for n in ("x", "y"))
        arrays = indptr, indices, x, y, np.load(partition / "splits/train.npy").astype(np.int64)
        return cls(*map(torch.from_numpy, arrays))


def tiny_rows() -> tuple[torch.Tensor, torch.Tensor]:
    """indptr and indices of the graph of the tiny call: 1000 nodes of degree 10."""
    return torch.arange(0, 10_001, 10), torch.arange(10_000) * 7919 % 1000


def time_sampling(
    system: str,
    fanouts: str,
    train: torch.Tensor,
    seconds: float,
    sample: Callable[[torch.Tensor], int],
    works: tuple[str, ...] = ("n_id", "e_id"),
    **fields: Any,
) -> None:
    """``sample`` makes a batch from seeds and returns the number of its edges.  works: what the figure stands for."""
    batches = train[torch.randperm(len(train))].split(CASES[fanouts])
    batches = batches[:-1] or batches
    for seeds in batches[:WARM_UP]:
        sample(seeds)
    edges = count = 0
    begin = time.process_time()
    while count == 0 or time.process_time() - begin < seconds:
        edges, count = edges + sample(batches[count % len(batches)]), count + 1
    used = time.process_time() - begin
    figures = {"m_edges_per_cpu_s": edges / used / 1e6, "cpu_ms": used / count * 1e3, "edges_per_batch": edges / count}
    for work in works:
        report(bench="sampling", system=system, fanouts=fanouts, work=work, **figures, **fields)


def time_loader(system: str, loader: Iterable[Any], rows_of: Callable[[Any], int], count: int) -> None:
    """``rows_of``: the number of nodes of a batch whose attributes it holds."""
    stream: Iterator[Any] = (batch for _ in repeat(None) for batch in loader)
    for _ in range(WARM_UP):
        next(stream)
    begin = time.process_time()
    rows = sum(rows_of(next(stream)) for _ in range(count))
    used = time.process_time() - begin
    figures = {"m_rows_per_cpu_s": rows / used / 1e6, "cpu_ms": used / count * 1e3, "rows": rows // count}
    report(bench="loader", system=system, workers=0, **figures)


def time_tiny(system: str, call: Callable[[torch.Tensor], object], calls: int = 1000) -> None:
    """Median microseconds of a call with one seed and fan-outs [5, 5]."""
    took = []
    for i in range(calls):
        seeds = torch.tensor([i * 37 % 1000])
        begin = time.perf_counter()
        call(seeds)
        took.append(time.perf_counter() - begin)
    report(bench="tiny", system=system, us_per_call=float(np.median(took) * 1e6))
