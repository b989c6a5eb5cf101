"""What it takes to fill a cache of rows of other parts, and what memory it takes on a host with several ranks.

    python benchmarks/cache_fill.py fill PARTITION [--ratio 0.1] [--rounds 5]
    python benchmarks/cache_fill.py memory PARTITION [--ratio 0.1]

fill: a process that maps part 0 fills its cache from a server that has the others, through Flight on this host; CPU
seconds of both. ``start_s``: from options to a cache with which batches could begin. memory: of 2 parts, four ranks in
pairs, each pair with a part, with two sampler processes each, have made an epoch; ``copies`` is the proportional set size
of all cached rows in all twelve processes, divided by the bytes of the two caches. A page of n processes counts 1/n in each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from cluster import TOKEN, Barrier, link
from measure import cpu_s, process_tree, report

from glt_lightning import LoaderSpec, LocalPartition, SamplingOptions, Session
from glt_lightning.base import CacheOptions, SecurityOptions, ServingOptions
from glt_lightning.graph import RemoteCache
from glt_lightning.kernels.child import end_with
from glt_lightning.workers import HostsGraph, Ranks, ServerPlan, ServerProcess
from glt_lightning.workers.cluster.cache import CacheMaker
from glt_lightning.workers.cluster.owner import OwnerAddresses, connect_owners

SPEC = LoaderSpec(name="train", split="train", num_neighbors=[15, 10, 5], batch_size=1024, shuffle=True)
RANKS, WORKERS = 4, 2


def fill(directory: str, ratio: float, rounds: int) -> None:
    partition = LocalPartition.open(directory, parts=[0])
    plan = ServerPlan(directory=directory, cluster=ServingOptions(), address="127.0.0.1:0", token=TOKEN)
    server = ServerProcess(plan, 0, print)
    try:
        pids = process_tree()
        here = link("rank 0", "worker", SecurityOptions())
        owners = [OwnerAddresses("server", tuple(range(1, partition.manifest.num_parts)), (server.address,))]
        remote = connect_owners(partition, owners, here, here.open_transport())
        found = [_made(pids, partition, remote, CacheOptions(ratio=ratio)) for _ in range(rounds + 1)]
        remote.close()
    finally:
        server.close()
    spent = [each["wall"] for each in found[1:]]  # the first one warms up
    cpu = median(each["cpu"] for each in found[1:])
    rows, mb = found[0]["rows"], found[0]["mb"]
    report(
        bench="cache_fill",
        graph=partition.manifest.made_by.get("source"),
        ratio=ratio,
        rows=rows,
        cache_mb=mb,
        start_s=median(spent),
        start_s_range=[round(pick(spent), 3) for pick in (min, max)],
        m_rows_per_s=rows / median(spent) / 1e6,
        mb_per_s=mb / median(spent),
        cpu_s_per_gb=cpu / (mb / 1e3),
    )


def _made(pids: list[int], partition: LocalPartition, remote: Any, options: CacheOptions) -> Mapping[str, float]:
    """Wall and CPU seconds of a cache until it can be used."""
    before, begin = cpu_s(pids), time.perf_counter()
    maker = CacheMaker(partition, options)
    kept = RemoteCache.from_handle(maker.make(remote, progress=False), partition.manifest)
    wall, cpu = time.perf_counter() - begin, cpu_s(pids) - before
    assert kept.rows is not None
    rows, mb = len(kept.rows.tables[0] or ()), kept.rows.nbytes / 1e6
    kept.close()
    maker.close()
    return {"wall": wall, "cpu": cpu, "rows": rows, "mb": mb}


def rank_main(directory: str, rank: int, ratio: float) -> None:
    import torch

    torch.set_num_threads(1)
    options, barrier = SamplingOptions(num_workers=WORKERS, concurrency=2), Barrier()
    cache = CacheOptions(ratio=ratio)
    here = link(f"rank {rank}", "worker", SecurityOptions())
    graph = HostsGraph(LocalPartition.open(directory, parts=[rank % 2]), here, "127.0.0.1")
    with Session(graph, options, ranks=Ranks(rank, RANKS, barrier.exchange), cache=cache) as session:
        loader = session.make_loader(SPEC)
        for _ in loader:
            pass
        pids = process_tree()
        barrier.exchange("measure")
        found = [_cached_pages(pid) for pid in pids]
        barrier.exchange("measured")
    counted = asdict(loader.stats().counters)
    hits = counted["cached_rows"] / max(1, counted["cached_rows"] + counted["remote_rows"])
    said = {"pss": sum(pss for pss, _ in found), "bytes": max(size for _, size in found), "hit_rate": hits}
    print(json.dumps(said | {"processes": len(pids)}), flush=True)


def _cached_pages(pid: int) -> tuple[int, int]:
    """(proportional set size, bytes) of the arrays that a process shares with others."""
    pss = size = 0
    shared = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        fields = line.split()
        if not fields[0].endswith(":"):
            shared = len(fields) > 5 and "memfd:glt-arrays" in fields[5]
        elif shared and fields[0] in ("Pss:", "Size:"):
            pss += 1024 * int(fields[1]) * (fields[0] == "Pss:")
            size += 1024 * int(fields[1]) * (fields[0] == "Size:")
    return pss, size


def memory(directory: str, ratio: float) -> None:
    command = [sys.executable, __file__, "memory", directory, "--ratio", str(ratio), "--rank"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    pipes["preexec_fn"] = partial(end_with, os.getpid())
    ranks: list[Any] = [subprocess.Popen([*command, str(r)], **pipes) for r in range(RANKS)]
    try:
        while True:
            lines = [rank.stdout.readline() for rank in ranks]
            if not all(lines):
                sys.exit("a rank ended early")
            if not lines[0].startswith("!"):
                break
            said = json.dumps([json.loads(line[1:]) for line in lines]) + "\n"
            for rank in ranks:
                rank.stdin.write(said)
                rank.stdin.flush()
    finally:
        for rank in ranks:
            rank.stdin.close()
            rank.wait(60)
    found = [json.loads(line) for line in lines]
    caches = sum(each["bytes"] for each in found[:2])
    report(
        bench="cache_memory",
        ratio=ratio,
        processes=sum(each["processes"] for each in found),
        caches_mb=caches / 1e6,
        pss_mb=sum(each["pss"] for each in found) / 1e6,
        copies=sum(each["pss"] for each in found) / caches,
        hit_rate=float(np.mean([each["hit_rate"] for each in found])),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["fill", "memory"])
    parser.add_argument("partition")
    parser.add_argument("--ratio", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        return rank_main(args.partition, args.rank, args.ratio)
    if args.mode == "fill":
        fill(args.partition, args.ratio, args.rounds)
    else:
        memory(args.partition, args.ratio)


if __name__ == "__main__":
    main()
