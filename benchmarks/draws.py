"""Drawing neighbours by weight beside drawing them uniformly: sampling and relabelling alone, one thread, M edges per CPU second.

    python benchmarks/draws.py PARTITION [--rounds 5] [--batches 10] [--work FOLDER]

PARTITION: a partition folder with one part. Weights are random integers from 1 to 1000; their prefix sums are written to a
file in --work (by default the system's folder for temporary files) and mapped, as those of a partition are. Ways take turns.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from measure import report

from glt_lightning import LocalPartition
from glt_lightning.kernels import EdgeTypeArrays, GraphView, KHopOp

CASES = {"15,10,5": 1024, "10,25": 1000, "15,10": 2048}


def random_sums(rows: EdgeTypeArrays, folder: Path) -> np.ndarray:
    """int32 [edges], mapped: prefix sums within each row of random weights."""
    weights = np.random.default_rng(0).integers(1, 1001, len(rows.indices), dtype=np.uint16)
    sums = np.cumsum(weights, dtype=np.uint32)  # wraps, and so does the difference
    before = np.concatenate([np.zeros(1, np.uint32), sums])[rows.indptr[:-1]]
    sums -= np.repeat(before, np.diff(rows.indptr))
    path = folder / "sums.npy"
    np.save(path, sums.view(np.int32))
    return np.load(path, mmap_mode="r")


def with_rows(partition: LocalPartition, rows: EdgeTypeArrays) -> GraphView:
    """The graph with other rows."""
    view, counts = partition.view, np.array([[len(rows.indices)]])
    keys, ends = view.keys.tolist(), (view.src_types.tolist(), view.dst_types.tolist())
    return GraphView(view.bounds, [rows], partition.user_ids_by_part(0), keys, *ends, counts)


def cpu_s(op: KHopOp, batches: list[np.ndarray], first: int) -> tuple[float, int]:
    """CPU seconds, and edges of the batches."""
    edges, begin = 0, time.thread_time()
    for number, seeds in enumerate(batches, first):
        edges += int(op({0: seeds}, number).edges_per_hop.sum())
    return time.thread_time() - begin, edges


def measure(ways: dict[str, KHopOp], batches: list[np.ndarray], rounds: int) -> dict[str, list[float]]:
    """M edges per CPU second of each way, round by round."""
    found: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way, op in ways.items():
            took, edges = cpu_s(op, batches, number * len(batches))
            found[way].append(edges / took / 1e6)
    return {way: rates[1:] for way, rates in found.items()}  # the first reads the files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--work", type=Path)
    args = parser.parse_args()
    partition = LocalPartition.open(args.partition)
    train = np.random.default_rng(0).permutation(partition.split("train").gids)
    rows = partition.view.arrays(0, 0)
    assert rows is not None
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        weighted = replace(rows, sums=random_sums(rows, Path(folder)))
        views = {"uniform": partition.view, "weighted": with_rows(partition, weighted)}
        for fanouts, size in CASES.items():
            hops = [[int(k)] for k in fanouts.split(",")]
            batches = [np.resize(train[k * size % len(train) :], size) for k in range(args.batches)]
            rates = measure({way: KHopOp(view, hops) for way, view in views.items()}, batches, args.rounds)
            for way, found in rates.items():
                ratios = np.array(found) / rates["uniform"]
                report(
                    bench="draws",
                    system=way,
                    fanouts=fanouts,
                    rounds=args.rounds,
                    m_edges_per_cpu_s=float(np.median(found)),
                    least=min(found),
                    most=max(found),
                    to_uniform=float(np.median(ratios)),
                )


if __name__ == "__main__":
    main()
