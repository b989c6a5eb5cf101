"""Batches whose rows come from other processes, all on this machine: M rows per CPU second of all processes.

    python benchmarks/cluster.py worker PARTITION [--workers 1] [--concurrency 4]      # one rank per part, each maps one
    python benchmarks/cluster.py server PARTITION [--handover] [--workers 2]           # one server, one client
    options of both: [--tls] [--delay-ms 5] [--batches 40]
    of worker: [--method labor] [--batch-dependency 8] [--fanouts 15 10 5] [--batch-size 1024]

A row is a node of a batch with its features and label, [15, 10, 5] x 1024 unless said; what loaders count (remote_rows, shares,
MB) are rows of edges with attributes, too. In worker mode the ranks start and stop their clocks together.
Where rows come from, and the time of samplers per batch, are what loaders count; with ``--workers 0`` the rank
itself asks, and tells bytes on the wire and questions. ``--tls`` makes certificates and uses mutual TLS. ``--delay-ms``
puts a proxy between the processes that holds every message back by that time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import cpu_s, process_tree, report

from glt_lightning import LoaderSpec, LocalPartition, SamplingOptions, Session
from glt_lightning.base import SecurityOptions, ServingOptions
from glt_lightning.kernels.child import end_with
from glt_lightning.workers import HostsGraph, Link, Ranks, ServedGraph, ServerPlan, ServerProcess

TOKEN = "benchmark-of-a-cluster"
HERE = Path(__file__).resolve().parent
SPEC = LoaderSpec(name="train", split="train", num_neighbors=[15, 10, 5], batch_size=1024, shuffle=True)
OPTIONS = ("workers", "concurrency", "batches", "delay_ms", "method", "batch_dependency", "fanouts", "batch_size")


def link(name: str, role: str, security: SecurityOptions) -> Link:
    return Link(job="bench", role=role, name=name, token=TOKEN, security=security)


class Barrier:
    """Talks to the parent over stdin and stdout: every rank's text to all."""

    def exchange(self, text: str) -> list[str]:
        print("!" + json.dumps(text), flush=True)
        return json.loads(sys.stdin.readline())


def own_processes() -> list[int]:
    """This process and its samplers, without proxies."""
    return [pid for pid in process_tree() if b"proxy.py" not in Path(f"/proc/{pid}/cmdline").read_bytes()]


def endless(loader: Any) -> Any:
    while True:
        yield from loader


def rank_main(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    barrier = Barrier()
    drawn = {"method": args.method, "batch_dependency": args.batch_dependency}
    options = SamplingOptions(num_workers=args.workers, concurrency=args.concurrency, **drawn)
    spec = replace(SPEC, num_neighbors=args.fanouts, batch_size=args.batch_size)
    security = SecurityOptions(**json.loads(args.security))
    partition = LocalPartition.open(args.partition, parts=[args.rank])
    graph = HostsGraph(partition, link(f"rank {args.rank}", "worker", security), "127.0.0.1")

    def exchange(text: str) -> list[str]:
        found = [json.loads(said) for said in barrier.exchange(text)]
        for number, said in enumerate(found):
            if number != args.rank and "addresses" in said:
                said["addresses"] = [proxies.before(address) for address in said["addresses"]]
        return [json.dumps(said) for said in found]

    proxies = Proxies(args.delay_ms)
    ranks = Ranks(args.rank, partition.manifest.num_parts, exchange)
    session = Session(graph, options, ranks=ranks)
    producer = session._producer  # its traffic is that of this process; sampler processes count their own
    with session:
        loader = session.make_loader(spec)
        stream = endless(loader)
        for _ in range(4 + 2 * args.workers * args.concurrency):
            next(stream)
        barrier.exchange("warm")
        pids = own_processes()
        counted = replace(loader.stats().counters)
        before, traffic, start = cpu_s(pids), producer.traffic, time.perf_counter()
        rows = sum(next(stream).num_nodes for _ in range(args.batches))
        wall = time.perf_counter() - start
        barrier.exchange("done")
        cpu, asked = cpu_s(pids) - before, producer.traffic
        spent = {
            name: getattr(asked, name) - getattr(traffic, name) for name in ("bytes_in", "bytes_out", "round_trips")
        }
        spent |= asdict(loader.stats().counters.since(counted))
        barrier.exchange("measured")
        print(json.dumps({"rows": rows, "cpu": cpu, "wall": wall} | spent), flush=True)
    proxies.close()


class Proxies:
    """One proxy process per address, so that its work is not counted."""

    def __init__(self, delay_ms: float | None) -> None:
        self._delay_ms = delay_ms
        self._running: list[subprocess.Popen[str]] = []

    def before(self, address: str) -> str:
        if self._delay_ms is None:
            return address
        command = [sys.executable, str(HERE / "proxy.py"), address, str(self._delay_ms)]
        proxy = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._running.append(proxy)
        assert proxy.stdout is not None
        return proxy.stdout.readline().strip()

    def close(self) -> None:
        for proxy in self._running:
            proxy.kill()
            proxy.wait()


def worker(args: argparse.Namespace) -> dict[str, Any]:
    parts = LocalPartition.open(args.partition).manifest.num_parts
    command = [sys.executable, __file__, "rank", args.partition, "--security", args.security]
    for name in OPTIONS:
        if (given := getattr(args, name)) is not None:
            command += ["--" + name.replace("_", "-"), *map(str, given if isinstance(given, list) else [given])]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    pipes["preexec_fn"] = partial(end_with, os.getpid())
    ranks = [subprocess.Popen([*command, "--rank", str(r)], **pipes) for r in range(parts)]
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
    total = {name: sum(f[name] for f in found) for name in found[0]}
    batches = args.batches * parts
    wire = {
        "mb_in": total["bytes_in"] / batches / 1e6,
        "mb_out": total["bytes_out"] / batches / 1e6,
        "questions": total["round_trips"] / batches,
    }
    return {
        "m_rows_per_cpu_s": total["rows"] / total["cpu"] / 1e6,
        "batches_per_cpu_s": batches / total["cpu"],
        "batches_per_s": batches / (total["wall"] / parts),
        "rows": total["rows"] // batches,
        **of_batches(total, batches),
        **(wire if args.workers == 0 else {}),
    }


def of_batches(counted: dict[str, Any], batches: int) -> dict[str, float]:
    """Where rows came from, MB as stored, and milliseconds of samplers per batch."""
    rows = sum(counted[f"{source}_rows"] for source in ("local", "cached", "remote", "disk"))
    found = {f"{source}_share": counted[f"{source}_rows"] / rows for source in ("cached", "remote")}
    found |= {"remote_rows": counted["remote_rows"] / batches, "cached_rows": counted["cached_rows"] / batches}
    found["remote_mb"] = counted["remote_bytes"] / batches / 1e6
    return found | {f"{stage}_ms": 1e3 * counted[f"{stage}_s"] / batches for stage in ("sample", "remote", "gather")}


def server(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    security = SecurityOptions(**json.loads(args.security))
    options = ServingOptions(num_workers=args.workers, concurrency=args.concurrency, security=security)
    plan = ServerPlan(directory=args.partition, cluster=options, address="127.0.0.1:0", token=TOKEN)
    here = link("client", "client", security)
    served = ServerProcess(plan, 0, print)
    proxies = Proxies(args.delay_ms)
    peer = here.peer("server", [proxies.before(served.address)], here.open_transport())

    try:
        with Session(ServedGraph(peer, options, handover=args.handover)) as session:
            loader = session.make_loader(SPEC)
            stream = endless(loader)
            for _ in range(4 + 4 * args.workers * args.concurrency):
                next(stream)
            pids = own_processes()
            counted = replace(loader.stats().counters)
            before, received, start = cpu_s(pids), peer.stats.bytes_in, time.perf_counter()
            rows = sum(next(stream).num_nodes for _ in range(args.batches))
            cpu, wall = cpu_s(pids) - before, time.perf_counter() - start
            received = peer.stats.bytes_in - received
            counted = loader.stats().counters.since(counted)
    finally:
        peer.close()
        served.close()
        proxies.close()
    return {
        "m_rows_per_cpu_s": rows / cpu / 1e6,
        "batches_per_cpu_s": args.batches / cpu,
        "batches_per_s": args.batches / wall,
        "rows": rows // args.batches,
        **of_batches(asdict(counted), args.batches),
        "mb_in": received / args.batches / 1e6,
    }


def certificates(folder: Path) -> dict[str, str]:
    """Mutual TLS between processes of this host."""
    from glt_lightning.workers import CertificateFolder

    CertificateFolder(folder).make_authority(days=1)
    CertificateFolder(folder).make_certificate("node", ["127.0.0.1"], days=1)
    return {"ca": str(folder / "ca.pem"), "cert": str(folder / "node.pem"), "key": str(folder / "node.key")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["worker", "server", "rank"])
    parser.add_argument("partition")
    parser.add_argument("--workers", type=int, default=1, help="sampler processes per rank or server; 0: in the rank")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--method", default="neighbor")
    parser.add_argument("--batch-dependency", type=int, default=1)
    parser.add_argument("--fanouts", type=int, nargs="+", default=list(SPEC.num_neighbors))
    parser.add_argument("--batch-size", type=int, default=SPEC.batch_size)
    parser.add_argument("--delay-ms", type=float, help="puts proxies in between, also for 0")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--handover", action="store_true")
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--security", default="{}", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.mode == "rank":
        return rank_main(args)
    with tempfile.TemporaryDirectory() as folder:
        if args.tls:
            args.security = json.dumps(certificates(Path(folder)))
        found = worker(args) if args.mode == "worker" else server(args)
    options = {name: getattr(args, name) for name in (*OPTIONS, "tls", "handover")}
    report(bench="cluster", mode=args.mode, **options, **found)


if __name__ == "__main__":
    main()
