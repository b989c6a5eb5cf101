"""The loader under a memory limit of 1.1, 0.8 and 0.6 of the graph: with files mapped, and with cache.memory.

    python benchmarks/pressure.py PARTITION [--shares 1.1 0.8 0.6] [--memory auto mapped] [--workers 0 1] [--rounds 3]

Every measurement is a process in a memory control group of its own (needs root), from a cold page cache. The graph is what
batches read of it: topology, ids and attributes. The limit is ``--shares`` of the graph, and what a process takes besides it
when it has no limit. ``of_full`` is seeds per second to those without a limit in the same round. ``over_bound`` is the
seconds of a batch beyond those without a limit, to the seconds that the disk needs for the pages read, at its best rate of
random pages (`disk.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import torch
from disk import random_pages_per_s
from embedding_disk import Group
from loader import endless
from measure import cpu_s, process_tree, report

from glt_lightning import LoaderSpec, LocalPartition, SamplingOptions, Session
from glt_lightning.base import CacheOptions
from glt_lightning.graph import node_path
from glt_lightning.kernels import DiskFile
from glt_lightning.sampling import Counters

_NO_LIMIT = 1 << 50  # in a group nevertheless, which tells what the process takes


def forget(folder: Path) -> None:
    """Takes the files out of the page cache."""
    for file in folder.rglob("*.npy"):
        fd = os.open(file, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def major_faults(pids: list[int]) -> int:
    return sum(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[9]) for pid in pids)


def child(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    group = Group() if args.limit else None
    try:
        if group is not None:
            group.limit(args.limit)
        spec = LoaderSpec(
            name="train", split="train", num_neighbors=args.fanouts, batch_size=args.batch_size, shuffle=True
        )
        cache = CacheOptions(memory=None if args.memory[0] == "mapped" else args.memory[0])
        with Session(args.partition, SamplingOptions(num_workers=args.workers[0]), cache=cache, seed=1) as session:
            loader = session.make_loader(spec)
            stream = endless(loader)
            all(True for _ in islice(stream, args.warm))
            pids = process_tree()
            before = Counters(*loader.stats().counters.to_list())
            faults, cpu, begin = major_faults(pids), cpu_s(pids), time.perf_counter()
            rows = sum(batch.num_nodes for batch in islice(stream, args.batches))
            took, cpu = time.perf_counter() - begin, cpu_s(process_tree()) - cpu
            faults, counters = major_faults(pids) - faults, loader.stats().counters.since(before)
            own = 0 if group is None else group.own_bytes() + group.shared_bytes()
        print(
            json.dumps(
                {
                    "seeds_per_s": args.batches * args.batch_size / took,
                    "rows_per_s": rows / took,
                    "batch_ms": took / args.batches * 1e3,
                    "cpu_ms": cpu / args.batches * 1e3,
                    "disk_ms": counters.disk_s / args.batches * 1e3,
                    "major_faults": faults / args.batches,
                    "disk_rows": counters.disk_rows / args.batches,
                    "disk_pages": counters.disk_bytes / 4096 / args.batches,
                    "own_mb": own / 1e6,
                }
            )
        )
    finally:
        if group is not None:
            group.close()


def disk_rate(file: DiskFile, seed: int) -> float:
    return max(random_pages_per_s(file, depth, seed) for depth in (32, 64))


def ran(args: argparse.Namespace, memory: str, workers: int, limit: int) -> dict[str, float]:
    forget(Path(args.partition))
    given = ["--fanouts", *map(str, args.fanouts), "--batch-size", str(args.batch_size), "--batches", str(args.batches)]
    command = [sys.executable, __file__, args.partition, *given, "--memory", memory, "--workers", str(workers)]
    done = subprocess.run(
        [*command, "--warm", str(args.warm), "--limit", str(limit)], stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition")
    parser.add_argument("--shares", type=float, nargs="*", default=[1.1, 0.8, 0.6])
    parser.add_argument("--memory", nargs="*", default=["auto", "mapped"], help="values of cache.memory; mapped: null")
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--fanouts", type=int, nargs="*", default=[10, 5])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--warm", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.limit is not None:
        return child(args)
    folder = Path(args.partition)
    graph = sum(f.stat().st_size for f in folder.rglob("*.npy") if f.stem not in ("edge_ids", "hotness", "gid"))
    file = DiskFile(LocalPartition.open(folder).directory / node_path(0, 0, "x"))
    for number in range(args.rounds):
        for workers in args.workers:
            full = ran(args, "mapped", workers, _NO_LIMIT if args.shares else 0)
            report(bench="pressure", workers=workers, graph_mb=graph / 1e6, round=number, **full)
            for share in args.shares:
                for memory in args.memory:
                    rates = [disk_rate(file, number)]
                    found = ran(args, memory, workers, int(share * graph + full["own_mb"] * 1e6))
                    pages = sum([*rates, disk_rate(file, number)]) / 2
                    report(
                        bench="pressure",
                        workers=workers,
                        share=share,
                        memory=memory,
                        of_full=found["seeds_per_s"] / full["seeds_per_s"],
                        random_pages_per_s=pages,
                        over_bound=(found["batch_ms"] - full["batch_ms"]) / 1e3 * pages / found["disk_pages"]
                        if found["disk_pages"]
                        else None,
                        round=number,
                        **found,
                    )


if __name__ == "__main__":
    main()
