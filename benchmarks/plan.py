"""How right plans are: each configuration is planned, then run, and both stand side by side.

    python benchmarks/plan.py DATA [DATA ...] [--cases "1 sampler" "2 ranks"] [--epochs 2] [--hidden 128] \
        [--limits 0.9 1.1] [--grid 0 1 2]

DATA: graphs of nodes with labels, homogeneous, as of ``data.dataset``, or for one host partitions of them, beside which the
probe is kept; `.npz` files for embeddings, which learn in place of ``x``. CPU seconds of an epoch of all processes (the first
epoch is not counted), wall seconds, bytes of rows in the first epoch, and the peak of memory that is no file's, of all ranks.
Every plan and run is a process of its own. CPU time grows with other work on the machine, too: compare on a quiet one.

Cases of hosts need root and iproute2: a host is a network namespace with a part of the graph, at most one core of this machine
and a link of the speed in the case's name; the plan is told what plain sockets carry over it. Their wall time is planned twice:
by the rules of `plan`, and event by event (`simulate.py`).

--grid: each case runs with these numbers of sampler processes, and with what `plan --choose` fills in, in turns.
--limits: each case runs in a memory control group with these shares of the memory that its plan says; below 1 a plan refuses it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import numpy as np
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from measure import cpu_s, process_tree, report
from simulate import simulate

from glt_lightning.graph import usable_cores
from glt_lightning.lightning.planner.rules import BatchCost, Connection, Layout, RemoteCost
from glt_lightning.workers import placed_parts

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from tests.helpers.hosts import Hosts, hosts  # noqa: E402
from tests.helpers.memory_group import memory_group  # noqa: E402

CORES = usable_cores()
MARK = "RESULT "
SAMPLER = "kernels/child.py"
QUEUE = "5ms"  # before a link; requests wait there behind rows
LINK_BYTES = 20_000_000
END = """
import socket, sys, threading, time
mine, other, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with socket.create_server((mine, 29502)) as server:
    time.sleep(0.5)
    with socket.create_connection((other, 29502)) as sender, server.accept()[0] as receiver:
        began = time.perf_counter()
        sending = threading.Thread(target=sender.sendall, args=(bytes(count),))
        sending.start()
        while count > 0:
            count -= len(receiver.recv(1 << 20))
        print(time.perf_counter() - began)
        sending.join()
        time.sleep(0.5)
"""
LIMIT_S = 3600.0
LIMITED_S = 600.0  # of a run with little memory, which may come to a halt


class Watch(Callback):
    """Prints of a rank, as one line: CPU and wall seconds of each epoch of it and its children, bytes of rows of the first epoch,
    and the peak of memory."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.marks: list[tuple[float, float]] = []
        self.nbytes = 0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.marks.append((cpu_s(), time.perf_counter()))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        counters = trainer.train_dataloader.stats().counters  # type: ignore[union-attr]
        self.nbytes = self.nbytes or counters.local_bytes + counters.remote_bytes + counters.cached_bytes

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.marks.append((cpu_s(), time.perf_counter()))
        peak = sum(map(own_peak, [os.getpid(), *own_samplers()]))
        spent = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(self.marks)]
        found = {"spent": spent, "peak": peak, "bytes": self.nbytes}
        found |= {"first": trainer.local_rank == 0}  # the launcher, whose children the other ranks of a host are
        sys.stdout.write(f"{MARK}{json.dumps(found)}\n")  # at once, beside the lines of other ranks
        sys.stdout.flush()


def own_samplers() -> list[int]:
    """Samplers of this rank. The launcher is above the other ranks of the host, which count theirs."""
    words = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in process_tree()[1:]}
    others = {below for pid, line in words.items() if "\0fit\0" in line for below in process_tree(pid)}
    return [pid for pid, line in words.items() if SAMPLER in line and pid not in others]


def own_peak(pid: int) -> int:
    """Most bytes of a process that are no file's. Batches that it shares with others are not counted in samplers, and once what
    is mapped twice, as the cache by the rank that fills it."""
    status = Path(f"/proc/{pid}/status").read_text()
    sizes = {name: int(kb) * 1024 for name, kb in re.findall(r"(VmHWM|RssFile|RssShmem):\s+(\d+)", status)}
    again = mapped_again() if pid == os.getpid() else sizes["RssShmem"]
    return sizes["VmHWM"] - sizes["RssFile"] - again


def mapped_again() -> int:
    """Bytes of shared memory that this process maps more than once, beyond the first time."""
    found: dict[str, list[int]] = {}
    inode = "0"
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if name.endswith(":"):
            if name == "Rss:":
                found.setdefault(inode, []).append(int(rest[0]) * 1024)
        else:
            inode = rest[3] if rest[4:] and rest[4].startswith(("/memfd:", "/dev/shm/")) else "0"
    return sum(sum(sizes) - max(sizes) for inode, sizes in found.items() if inode != "0")


@dataclass(frozen=True, kw_only=True)
class Case:
    """data, model, trainer, cache: options of the configuration.  hosts, rate: their number, and the speed of their links."""

    data: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    cache: dict[str, Any] = field(default_factory=dict)
    hosts: int = 1
    rate: str = ""


WORKER = {"strategy": "glt_worker"}
CASES = {
    "in-process": Case(),
    "1 sampler": Case(data={"sampling": {"num_workers": 1}}),
    "LABOR": Case(data={"sampling": {"method": "labor"}}),
    "half fan-outs": Case(data={"num_neighbors": [8, 5]}),
    "embeddings": Case(model={"node_embedding": "sparse", "encoder": "SAGE"}),
    "2 ranks": Case(trainer={**WORKER, "devices": 2}),
    "2 ranks, 1 sampler each": Case(trainer={**WORKER, "devices": 2}, data={"sampling": {"num_workers": 1}}),
    "graph server": Case(trainer={"strategy": "glt_server_client"}, data={"sampling": {"num_workers": 1}}),
    "2 hosts, 1 Gbit/s": Case(trainer=WORKER, hosts=2, rate="1gbit"),
    "2 hosts, 100 Mbit/s": Case(trainer=WORKER, hosts=2, rate="100mbit"),
    "2 hosts, 100 Mbit/s, cache": Case(
        trainer=WORKER, cache={"policy": "degree", "ratio": 0.2}, hosts=2, rate="100mbit"
    ),
    "2 hosts, 100 Mbit/s, 1 sampler": Case(
        trainer=WORKER, data={"sampling": {"num_workers": 1}}, hosts=2, rate="100mbit"
    ),
    "4 hosts, 1 Gbit/s": Case(trainer=WORKER, hosts=4, rate="1gbit"),
    "4 hosts, 100 Mbit/s": Case(trainer=WORKER, hosts=4, rate="100mbit"),
}


class Job:
    """A case on a graph, in a folder."""

    def __init__(self, args: argparse.Namespace, data: str, case: Case, folder: Path) -> None:
        self.case, self._folder = case, folder
        self._path, self._partitioned = folder / "run.yaml", (Path(data) / "manifest.json").exists()
        if case.model:  # nodes without attributes
            arrays = {key: value for key, value in np.load(data).items() if key != "x"}
            data = str(folder / "bare.npz")
            np.savez(data, **arrays)
        self._given = self._configuration(args, data)
        self._write(self._path, self._given)

    def _configuration(self, args: argparse.Namespace, data: str) -> dict[str, Any]:
        case = self.case
        trainer = {"accelerator": "cpu", "devices": 1, "max_epochs": args.epochs + 1, "logger": False}
        trainer |= {"callbacks": [{"class_path": "plan.Watch"}]}
        trainer |= {"enable_checkpointing": False, "enable_progress_bar": False, "default_root_dir": str(self._folder)}
        given = {"dataset": data, "root": str(self._folder), "num_neighbors": [15, 10], "batch_size": 512}
        given |= {"undirected": not Path(data).is_dir(), "partition": {"num_parts": case.hosts}, "cache": case.cache}
        if self._partitioned:
            given |= {"dataset": None, "partition": {"dir": data}}
        name = "NodePredictor" if case.model else "GraphSAGE"
        return {
            "seed_everything": 1,
            "trainer": trainer | case.trainer,
            "model": {
                "class_path": f"glt_lightning.{name}",
                "init_args": {"hidden_channels": args.hidden, "num_layers": 2, **case.model},
            },
            "data": {"class_path": "glt_lightning.GLTDataModule", "init_args": given | case.data},
        }

    def _write(self, path: Path, given: Mapping[str, Any]) -> None:
        path.write_text(yaml.safe_dump(dict(given)))

    def plan(self, network: float | None = None) -> dict[str, Any]:
        """Partitions the graph, and plans the run. network: bits per second that a link carries; None without links."""
        if not self._partitioned:
            run("partition", "--config", str(self._path), "--batches", "1", "--json")
        more, cores = [], []
        if network is not None:
            more = ["--hosts", str(self.case.hosts), "--network", f"{network / 1e6:.0f}Mbit", "--cores", "1"]
            cores = ["taskset", "-c", "0"]
        said = run("plan", "--config", str(self._path), "--batches", "0", "--json", *more, before=cores)
        plan: dict[str, Any] = json.loads(said)
        return plan

    def fit(self, *options: str, made: Hosts | None = None) -> list[dict[str, Any]]:
        """Runs it; returns what `Watch` of each rank has found."""
        commands = [command("fit", "--config", str(self._path), *options)]
        environments: list[Mapping[str, str]] = [{}]
        if made is not None:
            commands, environments = self._on_hosts(made)
        outputs = finish(commands, environments)
        lines = [line for text in outputs for line in text.splitlines() if line.startswith(MARK)]
        return [json.loads(line[len(MARK) :]) for line in lines]

    def chosen(self) -> tuple[str, ...]:
        """Options of ``fit`` with what a plan chooses."""
        path = self._folder / "chosen.yaml"
        path.write_text(run("plan", "--config", str(self._path), "--choose"))
        return "--config", str(path)

    def status(self, limit: int) -> int:
        """Exit status of a run in so many bytes; 1 for one that does not end."""
        with memory_group(limit) as group:
            joined = ["sh", "-c", f'echo $$ > {group.procs} && exec "$@"', "sh"]
            with (self._folder / "output").open("w") as output:
                started = subprocess.Popen(
                    [*joined, *command("fit", "--config", str(self._path))], stdout=output, stderr=output, cwd=HERE
                )
                try:
                    status = started.wait(LIMITED_S)
                except subprocess.TimeoutExpired:
                    status = 1
            while pids := group.procs.read_text().split():
                for pid in pids:
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                started.poll()
                time.sleep(0.1)
        return status

    def _on_hosts(self, made: Hosts) -> tuple[list[list[str]], list[Mapping[str, str]]]:
        """The commands of all hosts, each of which has a folder with its parts alone, and their environments."""
        numbers = range(self.case.hosts)
        (partition,) = (self._folder / "partitions").glob("*/")
        certs = self._folder / "certs"
        names = ",".join(made.address(n) for n in numbers)
        run("certs", "--dir", str(certs), "--hosts", names, "--token")
        commands = []
        for n in numbers:
            folder = self._folder / f"host{n}"
            others = [f"part{p}" for p in numbers if p not in placed_parts(n, self.case.hosts, self.case.hosts)]
            copytree(partition, folder / "part", ignore=ignore_patterns(*others))
            address = made.address(n)
            files = {"ca": "ca.pem", "token_file": "token", "cert": f"{address}.pem", "key": f"{address}.key"}
            security = {name: str(certs / file) for name, file in files.items()}
            given: dict[str, Any] = self._given | {"cluster": {"security": security}}
            given["trainer"] = given["trainer"] | {"num_nodes": self.case.hosts}
            data = given["data"]["init_args"] | {"dataset": None, "partition": {"dir": str(folder / "part")}}
            given["data"] = given["data"] | {"init_args": data}
            self._write(folder / "run.yaml", given)
            own = ["taskset", "-c", str(n % CORES), *command("fit", "--config", str(folder / "run.yaml"))]
            commands.append(made.command(n, own))
        return commands, [made.environment(n, 0, 29_501) for n in numbers]


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "glt_lightning", *argv]


def run(*argv: str, before: Sequence[str] = ()) -> str:
    """What a command prints. Its folder is this one, so that it finds `Watch`."""
    return finish([[*before, *command(*argv)]], [{}])[0]


def finish(commands: list[list[str]], environments: Sequence[Mapping[str, str]]) -> list[str]:
    """Runs commands side by side; returns what each prints."""
    with stopped_at_the_end() as started:
        for argv, more in zip(commands, environments, strict=True):
            pipe = subprocess.PIPE
            started.append(subprocess.Popen(argv, stdout=pipe, text=True, cwd=HERE, env={**os.environ, **more}))
        outputs = [each.communicate(timeout=LIMIT_S)[0] for each in started]
        for argv, each in zip(commands, started, strict=True):
            if each.returncode:
                sys.exit(f"{' '.join(argv)}: exit status {each.returncode}")
    return outputs


@contextmanager
def stopped_at_the_end() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    try:
        yield started
    finally:
        for each in started:
            if each.poll() is None:
                each.terminate()
                each.wait(30)


def link_speed(made: Hosts) -> float:
    """Bits per second that plain sockets carry from each of two hosts to the other at the same time; the lower one."""
    ends = [[sys.executable, "-c", END, made.address(n), made.address(1 - n), str(LINK_BYTES)] for n in range(2)]
    outputs = finish([made.command(n, end) for n, end in enumerate(ends)], [{}, {}])
    return 8 * LINK_BYTES / max(float(output) for output in outputs)


def simulated_s(plan: dict[str, Any]) -> float:
    """Wall seconds of an epoch, event by event."""
    layout, counted = Layout(**plan["layout"]), plan["counted"]
    layout = replace(layout, cores=min(1, CORES / layout.hosts))  # type: ignore[arg-type]  # a share of a core
    link = Connection(**plan["probe"]["hosts_link"])
    remote = RemoteCost(**counted["remote"])
    cost = BatchCost(**plan["probe"]["train"]["mid"])
    epoch = plan["epoch"]["mid"]
    cost = cost.of_seeds(epoch["seeds"] / epoch["batches"])
    steps = round(epoch["batches"] / layout.world_size)
    return simulate(cost, steps, layout, remote, link) + epoch["validation_s"] / layout.world_size


def compare(args: argparse.Namespace, data: str, name: str, folder: Path) -> dict[str, float]:
    job = Job(args, data, CASES[name], folder)
    with hosts(job.case.hosts, job.case.rate, QUEUE) if job.case.rate else nullcontext() as made:
        network = None if made is None else link_speed(made)
        plan, found = job.plan(network), job.fit(made=made)
    planned, memory, ranks = plan["epoch"]["mid"], plan["memory"], len(found)
    counters = planned["counters"]
    launchers = [each for each in found if each["first"]]
    epochs = range(1, args.epochs + 1)
    cpu = [sum(each["spent"][epoch][0] for each in launchers) for epoch in epochs]
    compared = {
        "planned_cpu_s": planned["cpu_s"],
        "cpu_s": statistics.median(cpu),
        "planned_mb": job.case.hosts * memory["needed"] / 1e6,
        "mb": sum(each["peak"] for each in found) / 1e6,
        "planned_bytes": sum(counters[f"{kind}_bytes"] for kind in ("local", "remote", "cached")),
        "bytes": sum(each["bytes"] for each in found),
        "planned_wall_s": (planned["elapsed_s"] + planned["validation_s"]) / ranks,
        "wall_s": statistics.median(wall for _, wall in launchers[0]["spent"][1:]),
        "load": plan["probe"]["load"],
    }
    if network is not None:
        compared |= {"simulated_wall_s": simulated_s(plan), "network_mbit": network / 1e6}
    report(bench="plan", data=Path(data).stem, case=name, **compared)
    return compared


def confine(args: argparse.Namespace, data: str, name: str, folder: Path) -> None:
    """Runs a case with little memory."""
    job = Job(args, data, CASES[name], folder)
    needed = job.plan()["memory"]["needed"]
    for share in args.limits:
        status = job.status(int(share * needed))
        right = (status == 0) == (share >= 1)
        report(bench="limit", data=Path(data).stem, case=name, mb=needed / 1e6, share=share, status=status, right=right)


def choose(args: argparse.Namespace, data: str, name: str, folder: Path) -> None:
    """Runs a case with each number of samplers, and with what a plan chooses; wall seconds of an epoch."""
    job = Job(args, data, CASES[name], folder)
    job.plan()
    ways: dict[str, tuple[str, ...]] = {str(n): ("--data.sampling.num_workers", str(n)) for n in args.grid}
    ways["chosen"] = job.chosen()
    took: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(args.rounds):
        for way, options in ways.items():
            (launcher,) = (each for each in job.fit(*options) if each["first"])
            took[way] += [wall for _, wall in launcher["spent"][1:]]
    medians = {way: statistics.median(found) for way, found in took.items()}
    best = min(seconds for way, seconds in medians.items() if way != "chosen")
    report(bench="choose", data=Path(data).stem, case=name, to_best=medians["chosen"] / best, **medians)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--limits", nargs="+", type=float, default=[])
    parser.add_argument("--grid", nargs="+", type=int, default=[])
    parser.add_argument("--rounds", type=int, default=2, help="of a grid")
    parser.add_argument("--work", type=Path, help="where the graphs are partitioned")
    args = parser.parse_args()
    cpu, memory = [], []
    for data in args.data:
        given = str(Path(data).resolve()) if Path(data).exists() else data
        for name in args.cases:
            with tempfile.TemporaryDirectory(dir=args.work) as folder:
                if args.limits or args.grid:
                    (confine if args.limits else choose)(args, given, name, Path(folder))
                    continue
                found = compare(args, given, name, Path(folder))
            cpu.append(abs(found["planned_cpu_s"] / found["cpu_s"] - 1))
            memory.append(found["planned_mb"] / found["mb"] - 1)
    if args.limits or args.grid:
        return
    worst = max(memory, key=abs)
    report(bench="plan", cpu_error=statistics.median(cpu), worst_cpu_error=max(cpu), worst_memory_error=worst)


if __name__ == "__main__":
    main()
