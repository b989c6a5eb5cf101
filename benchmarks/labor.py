"""LABOR beside neighbour sampling: what batches hold, what has to be fetched for them, and what they cost.

    python benchmarks/labor.py PARTITION... [--dense 100000] [--fanouts 15 10 5] [--batch_size 1024] [--batches 5] [--rounds 3]

PARTITION: folders of partitioned graphs with one node type; batches are of the split ``train``, or of all nodes. --dense: also a
graph of so many nodes with random edges, --degree to a node, that is made here (0: none). ``labor 8``: also with batch_dependency
8. Batches are made in this process, by one thread. Systems take turns; the first round of each, which loads code, is not counted.

remote_rows: the nodes of a batch on the other host, if nodes were shared out between two hosts at random. new_rows: those of them
that the batch before did not have: what a cache of one batch has to fetch.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import report

from glt_lightning import LoaderSpec, LocalPartition, PartitionOptions, SamplingOptions, Session
from glt_lightning.base import EDGE, NODE, GraphSchema
from glt_lightning.kernels import mix64
from glt_lightning.partition import ArraySource, partition_graph

SYSTEMS: dict[str, dict[str, Any]] = {
    "neighbor": {},
    "labor": {"method": "labor"},
    "labor 8": {"method": "labor", "batch_dependency": 8},
}
COLUMNS = ("nodes", "edges", "mb", "remote_rows", "new_rows")


@dataclass
class Found:
    """Of each round, per batch: CPU seconds, and `COLUMNS`."""

    cpu_s: list[float] = field(default_factory=list)
    sizes: list[np.ndarray] = field(default_factory=list)


def dense_graph(nodes: int, degree: int, folder: Path) -> LocalPartition:
    rng = np.random.default_rng(0)
    ends = (rng.random((2, nodes * degree)) ** 1.5 * nodes).astype(np.int32)
    source = ArraySource(
        name="dense",
        fingerprint="",
        schema=GraphSchema.single(),
        num_nodes={NODE: nodes},
        edge_index={EDGE: ends},
        node={NODE: {"x": rng.random((nodes, 100), np.float32)}},
    )
    partition_graph(source, folder, PartitionOptions(), progress=False)
    return LocalPartition.open(folder)


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def sizes_of(batch: Any, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`COLUMNS` of a batch, and its remote nodes. before: those of the batch before."""
    ids = batch.n_id.numpy()
    remote = np.unique(ids[mix64(ids.astype(np.uint64)) & np.uint64(1) == 1])
    nbytes = sum(value.nbytes for value in batch.to_dict().values() if isinstance(value, torch.Tensor))
    new = np.setdiff1d(remote, before, assume_unique=True)
    return np.array([len(ids), batch.num_edges, nbytes / 1e6, len(remote), len(new)]), remote


def measure(name: str, graph: LocalPartition, args: argparse.Namespace) -> None:
    split = {"split": "train"} if "train" in graph.manifest.splits else {}
    spec = LoaderSpec(name="train", num_neighbors=args.fanouts, batch_size=args.batch_size, shuffle=True, **split)
    with ExitStack() as stack:
        streams = {}
        for system, options in SYSTEMS.items():
            session = stack.enter_context(Session(graph, SamplingOptions(**options), seed=1))
            streams[system] = endless(session.make_loader(spec))
        found, before = {system: Found() for system in streams}, dict.fromkeys(streams, np.empty(0, np.int64))
        for _ in range(args.rounds + 1):
            for system, stream in streams.items():
                spent, sizes = 0.0, []
                for _ in range(args.batches):
                    began = time.process_time()
                    batch = next(stream)
                    spent += time.process_time() - began
                    each, before[system] = sizes_of(batch, before[system])
                    sizes.append(each)
                found[system].cpu_s.append(spent / args.batches)
                found[system].sizes.append(np.mean(sizes, axis=0))
    edges = int(graph.manifest.num_edges[0])
    plain = np.mean(found["neighbor"].sizes[1:], axis=0)
    for system, each in found.items():
        sizes, cpu_s = np.mean(each.sizes[1:], axis=0), float(np.median(each.cpu_s[1:]))
        report(
            bench="labor",
            graph=name,
            degree=edges / graph.manifest.num_nodes[0],
            system=system,
            rounds=args.rounds,
            **{column: float(value) for column, value in zip(COLUMNS, sizes, strict=True)},
            batches_per_cpu_s=1 / cpu_s,
            fewer_nodes=float(plain[0] / sizes[0]),
            fewer_remote_rows=float(plain[3] / sizes[3]),
            speed=float(np.median(found["neighbor"].cpu_s[1:]) / cpu_s),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partitions", nargs="*")
    parser.add_argument("--dense", type=int, default=100_000)
    parser.add_argument("--degree", type=int, default=100)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--batch_size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for folder in args.partitions:
        with closing(LocalPartition.open(folder)) as graph:
            measure(Path(folder).name, graph, args)
    if args.dense:
        with tempfile.TemporaryDirectory() as folder:
            measure("dense", dense_graph(args.dense, args.degree, Path(folder, "parts")), args)


if __name__ == "__main__":
    main()
