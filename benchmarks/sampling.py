"""Sampling and relabelling alone, one thread: M edges per CPU second, and microseconds of a tiny call.

    python benchmarks/sampling.py PARTITION [--seconds 3]

``n_id``: what a batch without attributes holds, edge_index and n_id as int64.  ``e_id``: edge ids, too.  ``labor``: as
``n_id``, by LABOR. The path is the loader's: a draft of the sampler, written into a recycled slot. ``khop_ms`` is the native
call, ``write_ms`` what writes the slot; both CPU milliseconds per batch.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from measure import report

from glt_lightning import LocalPartition
from glt_lightning.kernels import EdgeTypeArrays, GraphView, KHopOp
from glt_lightning.sampling import BatchRequest, KHopSampler, SamplerConfig
from glt_lightning.workers import Slot
from glt_lightning.workers.slots import SlotPool

CASES = {"15,10,5": 1024, "10,25": 1000}
STRUCTURE = {"indptr", "indices", "edge_ids", "n_id", "train"}
WARM_UP = 5


def without_attributes(directory: str) -> LocalPartition:
    """The partition as if its nodes had neither features nor labels."""
    partition = LocalPartition.open(directory)
    kept = {k: v for k, v in partition.manifest.arrays.items() if Path(k).stem in STRUCTURE}
    return LocalPartition(partition.directory, replace(partition.manifest, arrays=kept), partition.parts)


def measure(partition: LocalPartition, fanouts: str, size: int, work: str, seconds: float) -> dict[str, float]:
    hops = tuple((int(k),) for k in fanouts.split(","))
    config = SamplerConfig(0, hops, with_edge=work == "e_id", labor=work == "labor")
    sampler, slots = KHopSampler(partition, config), SlotPool(Slot, 1)
    seeds = partition.split("train").gids
    if len(seeds) < size:
        raise SystemExit(f"{partition.directory} has {len(seeds)} training seeds; a batch needs {size}.")
    seeds = seeds[np.random.default_rng(0).permutation(len(seeds))]
    batches = seeds[: len(seeds) // size * size].reshape(-1, size)
    number, totals = 0, np.zeros(4)  # edges, nodes, seconds in the native call, seconds to write
    while number <= WARM_UP or totals[2] + totals[3] < seconds:
        if number == WARM_UP:
            totals[:] = 0
        begin = time.thread_time()
        draft = sampler.draft(BatchRequest(number, number, batches[number % len(batches)], np.arange(size)))
        drafted = time.thread_time()
        slot = slots.take()
        assert slot is not None  # the batch before is gone
        slot.reserve(draft.nbytes)
        arrays = draft.write(slots.lend(slot, draft.nbytes))
        end = time.thread_time()
        found = [arrays[f"num_sampled_{what}"].sum() for what in ("edges", "nodes")]
        totals += [*found, drafted - begin, end - drafted]
        number += 1
        del arrays
    edges, nodes, khop, write = totals / (number - WARM_UP)
    return {
        "m_edges_per_cpu_s": edges / (khop + write) / 1e6,
        "khop_ms": khop * 1e3,
        "write_ms": write * 1e3,
        "edges_per_batch": edges,
        "nodes_per_batch": nodes,
    }


def tiny(calls: int = 5000) -> float:
    """Median microseconds of a call: 1 seed, fan-outs [5, 5], 1000 nodes of degree 10."""
    nodes, degree = 1000, 10
    indices = (np.arange(nodes * degree) * 7919 % nodes).astype(np.int32)
    rows = EdgeTypeArrays(np.arange(0, nodes * degree + 1, degree), indices)
    names = np.arange(nodes, dtype=np.int32)
    view = GraphView(np.array([0, nodes]), [rows], [names], [1], [0], [0], np.array([[len(indices)]]))
    op = KHopOp(view, [[5], [5]])
    took = []
    for key in range(calls):
        seeds = {0: np.array([key * 37 % nodes])}
        begin = time.perf_counter()
        op(seeds, key)
        took.append(time.perf_counter() - begin)
    return float(np.median(took) * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition")
    parser.add_argument("--seconds", type=float, default=3.0, help="CPU time of each case")
    args = parser.parse_args()
    partition = without_attributes(args.partition)
    for fanouts, size in CASES.items():
        for work in ("n_id", "e_id", "labor"):
            found = measure(partition, fanouts, size, work, args.seconds)
            report(bench="sampling", system="ours", work=work, fanouts=fanouts, **found)
    report(bench="tiny", system="ours", us_per_call=tiny())


if __name__ == "__main__":
    main()
