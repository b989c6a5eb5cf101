"""Latency and throughput of an endpoint, whose clients run beside it on the same cores.

    python benchmarks/endpoint.py PARTITION [--rate 100] [--seconds 20] [--clients 8] [--hidden 128] [--fanouts 10 10]
        [--new 10] [--version latest]

An endpoint of GraphSAGE without training, in a process of its own with one thread of torch. First an open loop: requests for one
node each come at --rate a second whether earlier ones are answered or not, and the latency of each is counted from the moment
when it was due. Then a closed loop: --clients ask one after the other, as fast as they are answered. Memory is that of the
endpoint after each loop. With --new each request is for a new node with as many edges from nodes of the graph; --version is that
of the graph. `endpoint_pyg.py` is what a PyG user would write.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import subprocess
import sys
import time

import numpy as np
from measure import cpu_s, memory_mb, process_tree, report


def serve(args: argparse.Namespace) -> None:
    import torch
    from lightning.pytorch import Trainer

    import glt_lightning as glt

    torch.set_num_threads(1)
    data = glt.GLTDataModule(
        partition={"dir": args.partition, "version": args.version},
        num_neighbors=args.fanouts,
        evaluation={"num_neighbors": args.fanouts},
    )
    model = glt.GraphSAGE(
        data.num_features, data.num_classes, hidden_channels=args.hidden, num_layers=len(args.fanouts)
    )
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    glt.deploy(Trainer(accelerator="cpu", devices=1, **quiet), model, data, options={"port": 0})


class Client:
    """A connection that stays open."""

    def __init__(self, port: int) -> None:
        self._port, self._streams = port, None

    async def ask(self, body: bytes) -> None:
        if (
            self._streams is None or self._streams[0].at_eof()
        ):  # the server closes one that has no requests for some seconds
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = f"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", answer)
        assert answer.startswith(b"HTTP/1.1 200"), answer
        assert found is not None
        await reader.readexactly(int(found[1]))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def open_loop(port: int, bodies: list[bytes], rate: float) -> np.ndarray:
    """Seconds of each request from the moment when it was due."""
    free: list[Client] = []
    everyone: list[Client] = []
    taken = np.zeros(len(bodies))

    async def one(number: int, due: float) -> None:
        client = free.pop() if free else Client(port)
        if client not in everyone:
            everyone.append(client)
        await client.ask(bodies[number])
        taken[number] = time.perf_counter() - due
        free.append(client)

    begin, tasks = time.perf_counter() + 0.1, []
    for number in range(len(bodies)):
        due = begin + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(number, due)))
    await asyncio.gather(*tasks)
    for client in everyone:
        client.close()
    return taken


async def closed_loop(port: int, bodies: list[bytes], clients: int, seconds: float) -> int:
    """The number of answers."""
    until, count = time.perf_counter() + seconds, 0

    async def one(own: list[bytes]) -> None:
        nonlocal count
        client = Client(port)
        for body in itertools.cycle(own):
            if time.perf_counter() >= until:
                break
            await client.ask(body)
            count += 1
        client.close()

    await asyncio.gather(*(one(bodies[number::clients]) for number in range(clients)))
    return count


def measure(args: argparse.Namespace, port: int, server: int) -> None:
    from glt_lightning.graph import Manifest
    from glt_lightning.partition import Versions

    manifest, rng = Manifest.load(args.partition), np.random.default_rng(0)
    nodes = rng.integers(0, manifest.num_nodes[0], (max(args.clients, int(args.rate * args.seconds)), args.new or 1))
    if args.new:  # without ids of their own, new nodes are numbered behind those of the version
        last = Versions(args.partition).manifest_at(manifest, args.version).num_nodes[0]
        new = {"x": [0.5] * manifest.arrays["part0/nodes/0/x.npy"].shape[1]}
        questions = [
            {"nodes": [new], "edges": [{"source": node, "destination": last} for node in each]}
            for each in nodes.tolist()
        ]
    else:
        questions = [{"ids": each} for each in nodes.tolist()]
    bodies = [json.dumps(each).encode() for each in questions]
    asyncio.run(open_loop(port, bodies[:100], args.rate))  # warm
    pids = process_tree(server)
    cpu = cpu_s(pids)
    taken = asyncio.run(open_loop(port, bodies, args.rate)) * 1e3
    cpu = cpu_s(pids) - cpu
    p50, p90, p99 = (round(float(np.quantile(taken, q)), 2) for q in (0.5, 0.9, 0.99))
    shape = {"fanouts": args.fanouts, "hidden": args.hidden, "new_edges": args.new, "version": args.version}
    report(
        bench="endpoint", loop="open", **shape, rate=args.rate, requests=len(bodies), p50_ms=p50, p90_ms=p90, p99_ms=p99
    )
    report(bench="endpoint", loop="open", cpu_ms_per_answer=round(cpu / len(bodies) * 1e3, 3), **memory_mb(pids))
    cpu, begin = cpu_s(pids), time.perf_counter()
    answers = asyncio.run(closed_loop(port, bodies, args.clients, args.seconds))
    cpu, seconds = cpu_s(pids) - cpu, time.perf_counter() - begin
    report(
        bench="endpoint",
        loop="closed",
        clients=args.clients,
        answers=answers,
        answers_per_s=round(answers / seconds, 1),
        answers_per_cpu_s=round(answers / cpu, 1),
        **memory_mb(pids),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition")
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 10])
    parser.add_argument("--new", type=int, default=0, help="edges of the new node of each request; 0: old nodes")
    parser.add_argument("--version", type=lambda given: int(given) if given.isdecimal() else given, default=0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args)
        return
    command = [sys.executable, __file__, args.partition, "--serve", "--version", str(args.version)]
    command += ["--hidden", str(args.hidden), "--fanouts"]
    process = subprocess.Popen([*command, *map(str, args.fanouts)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = next(
            match for line in process.stdout if (match := re.search(r"endpoint: http://127.0.0.1:(\d+)/", line))
        )
        measure(args, int(found[1]), process.pid)
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    main()
