"""Temporal sampling beside disjoint sampling without times, [15, 10] x 512 with features: M sampled edges per CPU second.

    python benchmarks/temporal.py [--nodes 200000] [--degree 50] [--batches 5] [--rounds 7]

The graph is made here: degrees vary, edges have random times from 0 to 999,999. In ``temporal all`` seeds have the last time, so
that batches have as many edges as those of ``disjoint``; in the others random ones. Batches are made in this process. Systems
take turns; the first round of each, which loads code, is not counted.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import report

from glt_lightning import LoaderSpec, LocalPartition, PartitionOptions, SamplingOptions, Session
from glt_lightning.base import EDGE, NODE, GraphSchema
from glt_lightning.partition import ArraySource, partition_graph

LAST = 999_999
KINDS: dict[str, dict[str, Any]] = {
    "shared": {},
    "disjoint": {"disjoint": True},
    "temporal all": {"time_attr": "time", "times": "last"},
    "temporal uniform": {"time_attr": "time", "times": "random"},
    "temporal last": {"time_attr": "time", "times": "random", "temporal_strategy": "last"},
    "temporal window": {"time_attr": "time", "times": "last", "time_window": LAST // 2},
}


def make_graph(nodes: int, degree: int, folder: Path) -> LocalPartition:
    rng = np.random.default_rng(0)
    ends = (rng.random((2, nodes * degree)) ** 1.5 * nodes).astype(np.int64)
    source = ArraySource(
        name="timed",
        fingerprint="",
        schema=GraphSchema.single(),
        num_nodes={NODE: nodes},
        edge_index={EDGE: ends},
        node={NODE: {"x": rng.random((nodes, 100), np.float32)}},
        edge={EDGE: {"time": rng.integers(0, LAST + 1, ends.shape[1])}},
    )
    partition_graph(source, folder, PartitionOptions(time_attr="time"), progress=False)
    return LocalPartition.open(folder)


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def stream_of(graph: LocalPartition, name: str, nodes: int, batch_size: int, stack: ExitStack) -> Iterator[Any]:
    options = dict(KINDS[name])
    rng = np.random.default_rng(1)
    seeds = rng.integers(0, nodes, 64 * batch_size)
    times = {"last": np.full(len(seeds), LAST), "random": rng.integers(0, LAST + 1, len(seeds))}
    given = {"input_time": times[options.pop("times")]} if "times" in options else {}
    disjoint = options.pop("disjoint", False)
    session = stack.enter_context(Session(graph, SamplingOptions(**options), seed=1))
    plain = {"num_neighbors": [15, 10], "batch_size": batch_size, "seeds": seeds, "disjoint": disjoint}
    return endless(session.make_loader(LoaderSpec(name=name, **plain, **given)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--degree", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        graph = make_graph(args.nodes, args.degree, Path(folder, "parts"))
        streams = {name: stream_of(graph, name, args.nodes, args.batch_size, stack) for name in KINDS}
        found: dict[str, list[tuple[float, int]]] = {name: [] for name in streams}
        for _ in range(args.rounds + 1):
            for name, stream in streams.items():
                began = time.process_time()
                edge_count = sum(next(stream).num_edges for _ in range(args.batches))
                found[name].append((time.process_time() - began, edge_count))
    base = sorted(count / cpu_s for cpu_s, count in found["disjoint"][1:])[args.rounds // 2]
    for name, rounds in found.items():
        rates = sorted(count / cpu_s for cpu_s, count in rounds[1:])
        report(
            bench="temporal",
            system=name,
            rounds=args.rounds,
            m_edges_per_cpu_s=rates[len(rates) // 2] / 1e6,
            of_disjoint=rates[len(rates) // 2] / base,
            edges_per_batch=sum(count for _, count in rounds[1:]) // args.rounds // args.batches,
            cpu_ms=sum(cpu_s for cpu_s, _ in rounds[1:]) / args.rounds / args.batches * 1e3,
        )


if __name__ == "__main__":
    main()
