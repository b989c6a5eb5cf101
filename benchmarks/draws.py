"""Drawing neighbours by weight beside drawing them uniformly: sampling and relabelling alone, one thread, M edges per CPU second.

    python benchmarks/draws.py PARTITION [--rounds 5] [--batches 10] [--work FOLDER]

PARTITION: a partition folder with one part. Weights are random integers from 1 to 1000; their prefix sums are written to a
file in --work (by default the system's folder for temporary files) and mapped, as those of a partition are. Ways take turns.

``reads`` and ``chain`` are a C loop (`draw_bound.c`) over the rows of these batches that reads the sums of as many picks, and
with ``chain`` also computes the numbers. Their ``to_uniform`` is that of uniform draws followed by the loop.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from measure import report

from glt_lightning import LocalPartition
from glt_lightning.kernels import EdgeTypeArrays, GraphView, KHopOp, Subgraph

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


def bound_loop(
    folder: Path, rows: EdgeTypeArrays, batches: list[Subgraph], fanouts: list[int]
) -> Callable[[int], float]:
    """Returns CPU seconds of the C loop for the rows that these batches expand, without (0) or with (1) the numbers."""
    library, rng = folder / "draw_bound.so", np.random.default_rng(1)
    source = Path(__file__).with_name("draw_bound.c")
    subprocess.run(["cc", "-O3", "-march=native", "-shared", "-fPIC", source, "-o", library], check=True)
    loop, work, indptr = ctypes.CDLL(str(library)).draw_bound, [], np.ascontiguousarray(rows.indptr, dtype=np.int64)
    for batch in batches:
        ends = np.cumsum([0, *batch.nodes_per_hop[0].tolist()])
        for k, begin, end in zip(fanouts, ends, ends[1:], strict=False):
            found = np.array(batch.gid[0][begin:end])
            degree = indptr[found + 1] - indptr[found]
            picks = (rng.random((len(found), k)) * degree[:, None]).astype(np.uint32)
            work.append((found, k, picks, np.where(degree > k, k, 0).astype(np.uint8)))

    def took(chain: int) -> float:
        begin = time.thread_time()
        for found, k, picks, counts in work:
            arrays = [ctypes.c_void_p(a.ctypes.data) for a in (indptr, rows.sums, found, picks, counts)]
            loop(*arrays[:3], ctypes.c_int64(len(found)), k, *arrays[3:], chain)
        return time.thread_time() - begin

    return took


def cpu_s(op: KHopOp, batches: list[np.ndarray], first: int) -> tuple[float, int]:
    """CPU seconds, and edges of the batches."""
    edges, begin = 0, time.thread_time()
    for number, seeds in enumerate(batches, first):
        edges += int(op({0: seeds}, number).edges_per_hop.sum())
    return time.thread_time() - begin, edges


def measure(
    ways: dict[str, KHopOp], batches: list[np.ndarray], rounds: int, loop: Callable[[int], float]
) -> dict[str, list[float]]:
    """M edges per CPU second of each way and of uniform draws with the loop, round by round."""
    found: dict[str, list[float]] = {way: [] for way in (*ways, "reads", "chain")}
    for number in range(rounds + 1):
        for way, op in ways.items():
            took, edges = cpu_s(op, batches, number * len(batches))
            found[way].append(edges / took / 1e6)
        for chain, way in enumerate(("reads", "chain")):
            found[way].append(1 / (1 / found["uniform"][-1] + loop(chain) / edges * 1e6))
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
            ops = {way: KHopOp(view, hops) for way, view in views.items()}
            drawn = [copy.deepcopy(ops["weighted"]({0: seeds}, k)) for k, seeds in enumerate(batches)]
            loop = bound_loop(Path(folder), weighted, drawn, [k for (k,) in hops])
            rates = measure(ops, batches, args.rounds, loop)
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
