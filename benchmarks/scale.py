"""Scale on paper: epochs of graphs that no machine of ours holds, by the rules of ``plan`` from what was measured here.

    python benchmarks/scale.py [--cores 32] [--memory 256GB] [--network 25Gbit] [--price 1.5] [--cut 0.63] [--hosts 1 8 64]

Each host has one rank; its samplers, a quarter of the cores, and its model share them. --price: of one host for an hour, in any
currency. --cut: remote rows, as a share of those where nodes are dealt to hosts at random; 0.63 is what `streaming` comes to on
the full graph of docs/benchmarks.md. --efficiency: how much a thread more brings to a step, as a share; not measured. Prints the
figures of docs/scale.md, which are computed from the constants below.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

from simulate import Scenario, simulate

from glt_lightning.base import numbers, parse_bytes, parse_rate
from glt_lightning.lightning.planner.rules import (
    BatchCost,
    Connection,
    Counted,
    Layout,
    RemoteCost,
    epoch_steps,
    expect_epoch,
)

# Measured, docs/benchmarks.md (machine A, and C for the step): one thread of a core
EDGES_PER_S = 25.4e6  # sampled and relabelled
ROWS_S, SAMPLE_EDGES = 534e3 / 5.38e6, 789e3  # a batch of [15, 10, 5] x 1024: with its 400-byte rows, and its edges
BYTES_PER_S = 534e3 * 400 / (ROWS_S - SAMPLE_EDGES / EDGES_PER_S)
STEP_S, STEP_NODES = 0.71, 534e3  # GraphSAGE(256), forward, backward; of a batch with so many nodes
REMOTE_BYTE_S = 1.76e-9  # CPU seconds of both ends, from worker mode with one remote half
CALL_S = 7.2e-4  # CPU seconds of both ends of an encrypted call at the pace of training, by the probe of `plan`, quiet
PARTITION_EDGE_S = {"random": 0.07e-6, "streaming": 0.30e-6}  # CPU seconds, with the rows
LINK = Connection(round_trip_s=2e-4, call_cpu_s=CALL_S, byte_cpu_s=REMOTE_BYTE_S)
FANOUTS, BATCH = [15, 10, 5], 1024
EDGES, NODES = (
    SAMPLE_EDGES,
    STEP_NODES,
)  # of a batch of the full graph; in graphs with fewer edges a node batches have less
HOSTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """nodes, edges: as stored, reverse edges included.  row_bytes: attributes of a node.  seeds: of training."""

    name: str
    nodes: float
    edges: float
    row_bytes: float
    seeds: int

    @property
    def nbytes(self) -> float:
        """The partition: sources, edge ids and row pointers, attributes, ids."""
        id_bytes = 4 if self.nodes < 2**31 else 8
        edge_bytes = 4 if self.edges < 2**31 else 8
        return self.edges * (id_bytes + edge_bytes) + self.nodes * (self.row_bytes + 8 + 3 * id_bytes)


GRAPHS = (
    Graph(name="ogbn-papers100M", nodes=111e6, edges=3.2e9, row_bytes=128 * 4, seeds=1_207_179),
    Graph(name="MAG240M", nodes=244e6, edges=3.4e9, row_bytes=768 * 2, seeds=1_112_392),
    Graph(name="IGBH-Full", nodes=547e6, edges=11.6e9, row_bytes=1024 * 4, seeds=157_675_969),
    Graph(name="10^12 edges", nodes=2e10, edges=1e12, row_bytes=128 * 2, seeds=200_000_000),
)


def cost_of(graph: Graph, threads: int, efficiency: float) -> BatchCost:
    """A batch of [15, 10, 5] x 1024. threads, efficiency: of the step."""
    step_s = STEP_S / max(1.0, efficiency * threads)
    return BatchCost(
        seeds=BATCH,
        nodes=NODES,
        edges=EDGES,
        rows=NODES,
        row_bytes=NODES * graph.row_bytes,
        nbytes=NODES * graph.row_bytes + 16 * EDGES,
        sample_s=EDGES / EDGES_PER_S,
        gather_s=NODES * graph.row_bytes / BYTES_PER_S,
        step_s=step_s,
        step_cpu_s=step_s * threads,
    )


@dataclass(frozen=True, kw_only=True)
class Row:
    """An epoch on a number of hosts."""

    hosts: int
    seconds: float
    bound: str
    host_bytes: float
    network: float
    price: float


def job_of(graph: Graph, hosts: int, args: argparse.Namespace) -> tuple[BatchCost, Layout, RemoteCost]:
    """A batch, and what it asks of others, on ``hosts`` hosts with one rank each, whose samplers take a quarter of the cores."""
    workers = max(1, args.cores // 4)
    cost = cost_of(graph, max(1, args.cores - workers), args.efficiency)
    layout = Layout(
        hosts=hosts,
        owners=hosts,
        workers=workers,
        concurrency=1,
        cores=args.cores,
        bytes_per_s=parse_rate("--network", args.network),
        latency_s=1e-4,
        parameter_bytes=1.2e6,
    )
    counted = Counted(seeds=BATCH, nodes=NODES, edges=EDGES, rows=NODES, row_bytes=cost.row_bytes)
    remote = counted.with_hosts(hosts, len(FANOUTS) + 1).remote
    cut = {name: args.cut * getattr(remote, name) for name in ("rows", "row_bytes", "nbytes")}
    return cost, layout, replace(remote, **cut)


def row(graph: Graph, hosts: int, args: argparse.Namespace) -> Row:
    """The epoch of a graph on ``hosts`` hosts."""
    cost, layout, remote = job_of(graph, hosts, args)
    steps = epoch_steps(graph.seeds, BATCH, hosts)
    totals = expect_epoch(cost, steps, layout, remote=remote, link=LINK)
    seconds = totals.elapsed_s / hosts
    network = steps * remote.nbytes / layout.bytes_per_s / seconds
    fits = graph.nbytes / hosts <= parse_bytes("--memory", args.memory)
    calls = remote.requests * CALL_S > cost.sample_s + cost.gather_s
    bound = "network" if network > 0.9 else "calls" if calls and totals.wait_share > 0.1 else totals.verdict
    bound = bound if fits else "memory"
    return Row(
        hosts=hosts,
        seconds=seconds,
        bound=bound,
        host_bytes=graph.nbytes / hosts,
        network=network,
        price=hosts * seconds / 3600 * args.price,
    )


def table(graph: Graph, args: argparse.Namespace) -> list[str]:
    lines = [
        f"| {graph.name}, {numbers.size(graph.nbytes)}: hosts | epoch | limited by | graph per host | of the network | price |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for hosts in args.hosts:
        each = row(graph, hosts, args)
        seconds = "-" if each.bound == "memory" else numbers.duration(each.seconds)
        rest = ("-", "-") if each.bound == "memory" else (numbers.percent(each.network), f"{each.price:,.2f}")
        lines.append(f"| {hosts} | {seconds} | {each.bound} | {numbers.size(each.host_bytes)} | {' | '.join(rest)} |")
    return lines


def simulated(graph: Graph, args: argparse.Namespace) -> list[str]:
    """Steps 9 to 24 of an epoch, event by event, to those of the rules."""
    scenarios = {
        "all alike": Scenario(),
        "batches differ by 10 %": Scenario(spread=0.1),
        "and one host has half the speed": Scenario(spread=0.1, slow=0.5),
        "and one network has half the speed": Scenario(spread=0.1, slow_link=0.5),
    }
    lines = [f"| {graph.name}: hosts | {' | '.join(scenarios)} |", "| --- " * (1 + len(scenarios)) + "|"]
    for hosts in (hosts for hosts in args.hosts if 1 < hosts <= 16):
        cost, layout, remote = job_of(graph, hosts, args)
        many, few = (expect_epoch(cost, n, layout, remote=remote, link=LINK).elapsed_s / hosts for n in (24, 8))
        found = (
            (simulate(cost, 24, layout, remote, LINK, each) - simulate(cost, 8, layout, remote, LINK, each))
            / (many - few)
            for each in scenarios.values()
        )
        lines.append(f"| {hosts} | {' | '.join(f'{ratio:.2f}' for ratio in found)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=32)
    parser.add_argument("--memory", default="256GB")
    parser.add_argument("--network", default="25Gbit")
    parser.add_argument("--price", type=float, default=1.0)
    parser.add_argument("--cut", type=float, default=1.0)
    parser.add_argument("--efficiency", type=float, default=0.5)
    parser.add_argument("--hosts", type=int, nargs="+", default=list(HOSTS))
    parser.add_argument("--simulate", action="store_true", help="simulate the first graph on at most 16 hosts, too")
    args = parser.parse_args()
    for graph in GRAPHS:
        print("\n".join(table(graph, args)), end="\n\n")
    if args.simulate:
        print("\n".join(simulated(GRAPHS[0], args)), end="\n\n")
    print("| partitioning, CPU hours | random | streaming |\n| --- | --- | --- |")
    for graph in GRAPHS:
        hours = (f"{graph.edges * seconds / 3600:,.2f}" for seconds in PARTITION_EDGE_S.values())
        print(f"| {graph.name} | {' | '.join(hours)} |")


if __name__ == "__main__":
    main()
