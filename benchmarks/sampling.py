#!/usr/bin/env python3
"""Sampling and relabelling alone, one thread: M edges per CPU second, and microseconds per call of a tiny batch.

    python benchmarks/sampling.py PARTITION [--seconds 3]

One JSON line per work. ``n_id``: what a batch without attributes holds, edge_index and n_id as int64; ``e_id``: the edge
ids, too. The path is the loader's: a sampler's draft, written into one recycled slot. Stage times are CPU milliseconds
per batch: ``khop_ms`` the native call, ``write_ms`` all copies and look-ups into the slot.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from glt_lightning import LocalPartition
from glt_lightning.channel import Slot, SlotPool
from glt_lightning.ops.graph import GraphView, RelationArrays
from glt_lightning.ops.khop import KHopOp
from glt_lightning.sampler import BatchRequest, NeighborSampler, SamplerConfig

WORKS = (([15, 10, 5], 1024), ([10, 25], 1000))
WARM_UP = 5


def without_attributes(path: Path) -> LocalPartition:
    """The partition as if its nodes and edges had no features, labels or attributes."""
    partition = LocalPartition.open(path)
    kept = {k: v for k, v in partition.manifest.arrays.items() if Path(k).stem in STRUCTURE or k.startswith("splits")}
    return LocalPartition(path, replace(partition.manifest, arrays=kept))


STRUCTURE = {"indptr", "indices", "edge_ids", "n_id"}


def measure(partition: LocalPartition, fanouts: list[int], batch: int, with_edge: bool, seconds: float) -> dict:
    sampler = NeighborSampler(partition, SamplerConfig(0, tuple((k,) for k in fanouts), with_edge=with_edge))
    seeds = partition.split("train").gids
    seeds = seeds[np.random.default_rng(0).permutation(len(seeds))]
    pool = SlotPool(Slot, 1)
    steps = len(seeds) // batch
    number = edges = nodes = 0
    khop_s = write_s = 0.0
    while khop_s + write_s < seconds:
        if number == WARM_UP:
            edges = nodes = 0
            khop_s = write_s = 0.0
        begin = number % steps * batch
        request = BatchRequest(number, number, seeds[begin : begin + batch], np.arange(begin, begin + batch))
        start = time.thread_time()
        draft = sampler.draft(request)
        drafted = time.thread_time()
        slot = pool.take()
        assert slot is not None, "the batch before is still held"
        slot.reserve(draft.nbytes)
        arrays = draft.write(pool.lend(slot, draft.nbytes))
        write_s += time.thread_time() - drafted
        khop_s += drafted - start
        edges += int(arrays["num_sampled_edges"].sum())
        nodes += int(arrays["num_sampled_nodes"].sum())
        number += 1
        del arrays
    batches = number - WARM_UP
    return {
        "m_edges_per_cpu_s": edges / (khop_s + write_s) / 1e6,
        "khop_ms": khop_s / batches * 1e3,
        "write_ms": write_s / batches * 1e3,
        "edges_per_batch": edges / batches,
        "nodes_per_batch": nodes / batches,
    }


def tiny(calls: int = 5000) -> float:
    """CPU microseconds of a call of the k-hop op: 1 seed, fan-outs [5, 5], 1000 nodes of degree 10; the median of calls."""
    nodes, degree = 1000, 10
    indices = (np.arange(nodes * degree) * 7919 % nodes).astype(np.int32)
    rows = RelationArrays(np.arange(0, nodes * degree + 1, degree), indices)
    names = np.arange(nodes, dtype=np.int32)
    view = GraphView(np.array([0, nodes]), [rows], [names], [1], [0], [0], np.array([[len(indices)]]))
    op = KHopOp(view, [[5], [5]])
    seeds = [np.array([i]) for i in np.random.default_rng(0).integers(0, nodes, 100)]
    took = []
    for call in range(calls):
        start = time.perf_counter()
        op(seeds[call % len(seeds)], 0, call)
        took.append(time.perf_counter() - start)
    return float(np.median(took) * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0, help="CPU time of each work")
    given = parser.parse_args()
    partition = without_attributes(given.partition)
    for fanouts, batch in WORKS:
        for with_edge in (False, True):
            work = {"work": f"{fanouts} x {batch}", "with": "e_id" if with_edge else "n_id"}
            found = measure(partition, fanouts, batch, with_edge, given.seconds)
            print(json.dumps({"bench": "sampling", "system": "ours", **work, **found}), flush=True)
    print(json.dumps({"bench": "tiny", "system": "ours", "us_per_call": tiny()}), flush=True)


if __name__ == "__main__":
    main()
