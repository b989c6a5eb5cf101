"""Partitioning algorithms on one graph: what they cost, and what the parts save. Each runs in a process of its own.

    python benchmarks/partitioning.py GRAPH [--parts 2,4,8] [--algorithms random,frequency,streaming,metis,pymetis]
        [--rounds 3] [--undirected] [--memory 2GiB] [--options '{"seed": 1}'] [--work FOLDER] [--results FILE]
    python benchmarks/partitioning.py --table FILE...

GRAPH is a folder of make_graph.py or any data set in a file. CPU seconds and peak memory are of the whole process and
those that it starts, imports included; cut, balance and remote rows are those of `python -m lightning report`: batches
of [15, 10, 5] x 1024, seeds placed by owner. ``pymetis`` is METIS without us: the same graph loaded into memory,
``pymetis.part_graph``, its cut counted; the table compares CPU seconds. Each round is a line of the results; what the
parts save is told in the first.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

from measure import report

from glt_lightning import LocalPartition
from glt_lightning.base import Progress
from glt_lightning.lightning import PartitionReport
from glt_lightning.loader import TrafficOptions

ALGORITHMS = ["random", "frequency", "streaming", "metis", "pymetis"]
CACHE = 0.1

OURS = """
import json, sys
from glt_lightning.base import (PartitionOptions, parse_bytes)
from glt_lightning.partition import open_source, partition_graph
graph, parts, undirected, out, algorithm, memory, more = sys.argv[1:]
options = {"num_parts": int(parts), "algorithm": algorithm, "memory_bytes": parse_bytes("memory", memory)}
options = PartitionOptions(**options | json.loads(more))
partition_graph(open_source(graph, "."), out, options, undirected=undirected == "True", progress=False)
"""

ALONE = """
import json, sys
from pathlib import Path
import numpy as np
import pymetis
graph, parts, undirected = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "True"
if graph.is_dir():
    indptr, indices = np.load(graph / "indptr.npy"), np.load(graph / "indices.npy").astype(np.int64)
else:
    import scipy.sparse
    with np.load(graph) as file:
        src, dst = file["edge_index"]
        n = len(file["y"])
    matrix = scipy.sparse.csr_array((np.ones(len(src), np.int8), (src, dst)), shape=(n, n))
    matrix = (matrix + matrix.T) if undirected else matrix
    matrix.setdiag(0)
    matrix.eliminate_zeros()
    indptr, indices = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64)
_, part = pymetis.part_graph(parts, xadj=indptr, adjncy=indices)
part = np.asarray(part, np.int32)
rows = np.repeat(part, np.diff(indptr))
print(json.dumps({"cut": float((rows != part[indices]).mean())}))
"""

_SAMPLE_S = 0.05


class Peak(threading.Thread):
    """The most memory that a process and its children had at once, in bytes; pages that they share count once."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.bytes, self._pid, self._over = 0, pid, threading.Event()

    def run(self) -> None:
        while not self._over.wait(_SAMPLE_S):
            self.bytes = max(self.bytes, self._now())

    def stop(self) -> int:
        self._over.set()
        self.join()
        return self.bytes

    def _now(self) -> int:
        own, shared = 0, 0
        with suppress(OSError):  # ended meanwhile
            children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
            for pid in [str(self._pid), *children]:
                kib = dict(_RSS.findall(Path(f"/proc/{pid}/status").read_text()))
                own += int(kib.get("Anon", 0)) + int(kib.get("File", 0))
                shared = max(shared, int(kib.get("Shmem", 0)))
        return 1024 * (own + shared)


_RSS = re.compile(r"Rss(Anon|File|Shmem):\s*(\d+) kB")


def run(script: str, words: list[object]) -> tuple[dict[str, float], str]:
    """Cost of a script in a process of its own with those that it starts, and what it printed."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen([sys.executable, "-c", script, *map(str, words)], stdout=out, stderr=errors)
        peak = Peak(process.pid)
        peak.start()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        most = peak.stop()  # while the number is still that process's
        assert most, "needs Linux with /proc/PID/task/TID/children"
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        said, complaints = (file.seek(0) or file.read() for file in (out, errors))
    if process.returncode:
        sys.exit(f"{words} ended with status {process.returncode}:\n{complaints[-2000:]}")
    return {
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "sys_s": usage.ru_stime,
        "wall_s": wall,
        "peak_mb": most / 1e6,
    }, said


def quality(folder: Path) -> dict[str, Any]:
    """Cut, balance and remote rows of a partition."""
    found = PartitionReport.of(LocalPartition.open(folder), TrafficOptions(cache=[CACHE]), Progress(False))
    balance = {f"{c.kind}:{c.name}": c.balance for c in found.contents.counts if c.kind != "edges"}
    traffic = next(t for t in found.traffic if t.placement == "owner").parts
    nodes = sum(p.nodes.mean for p in traffic)
    remote = sum(p.remote_nodes.mean for p in traffic)
    missed = sum(p.remote_nodes.mean * (1 - (p.caches[0].hit_rate or 0)) for p in traffic)  # nodes only, no edges
    return {
        "cut": found.contents.edge_cut,
        "balance": balance,
        "edge_balance": max(c.balance or 1 for c in found.contents.counts if c.kind == "edges"),
        "batch_rows": nodes / len(traffic),
        "remote_rows": remote / len(traffic),
        "remote_rows_cached": missed / len(traffic),
        "remote_share": remote / nodes,
        "remote_share_cached": missed / nodes,
        "ranked_by": traffic[0].caches[0].policy,
        "disk_bytes": sum(path.stat().st_size for path in folder.rglob("*.npy")),
    }


def measure(args: argparse.Namespace, algorithm: str, parts: int, number: int) -> dict[str, Any]:
    line = {"bench": "partitioning", "graph": args.graph.stem, "algorithm": algorithm, "parts": parts, "round": number}
    line |= {"memory": args.memory, "options": args.options, "undirected": args.undirected}
    line |= {"load": os.getloadavg()[0], "date": time.strftime("%Y-%m-%d %H:%M")}
    if algorithm == "pymetis":
        cost, said = run(ALONE, [args.graph, parts, args.undirected])
        return line | cost | json.loads(said)
    out = args.work / "partition"
    shutil.rmtree(out, ignore_errors=True)
    try:
        cost, _ = run(OURS, [args.graph, parts, args.undirected, out, algorithm, args.memory, args.options])
        return line | cost | (quality(out) if number == 0 else {})
    finally:
        shutil.rmtree(out, ignore_errors=True)


def spread(values: list[float]) -> str:
    middle, low, high = (f"{v:.1f}" for v in (statistics.median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low}-{high})"


Rounds = Mapping[tuple[str, int, str], list[dict[str, Any]]]


def load(paths: Iterable[Path]) -> Rounds:
    """The lines of each graph, number of parts and algorithm, the first round first."""
    found: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for line in (json.loads(text) for path in paths for text in path.read_text().splitlines()):
        found.setdefault((line["graph"], line["parts"], line["algorithm"]), []).append(line)
    return found


def costs(rounds: Rounds) -> str:
    """Markdown: medians, smallest and largest."""
    rows = []
    for (graph, parts, algorithm), lines in rounds.items():
        cpu, wall, peak = ([line[key] for line in lines] for key in ("cpu_s", "wall_s", "peak_mb"))
        alone = [line["cpu_s"] for line in rounds.get((graph, parts, "pymetis"), [])]
        ratio = f"{statistics.median(cpu) / statistics.median(alone):.2f}" if alone and algorithm == "metis" else ""
        rows.append([graph, parts, algorithm, spread(cpu), spread(wall), f"{max(peak):,.0f}", ratio])
    head = ["graph", "parts", "algorithm", "CPU s", "wall s", "peak MB", "CPU s to pymetis alone"]
    return markdown(head, sorted(rows, key=lambda row: row[:2]))


def savings(rounds: Rounds) -> str:
    """Markdown: cut, and the share of a batch's rows that are remote, without and with a cache."""
    kinds = [algorithm for algorithm in ALGORITHMS if algorithm != "pymetis"]
    rows = []
    for graph, parts in sorted({key[:2] for key in rounds}):
        lines = [rounds[key][0] if (key := (graph, parts, kind)) in rounds else None for kind in kinds]
        shares = ("cut", "remote_share", "remote_share_cached")
        cells = [" / ".join(f"{line[share]:.2f}" for share in shares) if line else "" for line in lines]
        uneven = max(max(line["balance"].values()) for line in lines[2:] if line)
        rows.append([graph, parts, *cells, f"{uneven:.2f}"])
    return markdown(["graph", "parts", *kinds, "most uneven of the last two"], rows)


def markdown(head: list[str], rows: list[list[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path, nargs="?")
    parser.add_argument("--parts", default="2,4,8")
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--undirected", action="store_true")
    parser.add_argument("--memory", default="2GiB", help="partition.memory_bytes")
    parser.add_argument("--options", default="{}", help="further options of the partition, as JSON")
    parser.add_argument("--work", type=Path, default=Path("data/benchmarks"))
    parser.add_argument("--results", type=Path)
    parser.add_argument("--table", type=Path, nargs="+", help="shows the results of earlier runs")
    args = parser.parse_args()
    if args.table:
        rounds = load(args.table)
        print(costs(rounds), savings(rounds), sep="\n\n")
        return
    if args.graph is None or not set(args.algorithms.split(",")) <= set(ALGORITHMS):
        parser.error(f"give a graph, and algorithms of {', '.join(ALGORITHMS)}")
    args.graph, args.work = args.graph.resolve(), args.work.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    name = f"{time.strftime('%Y-%m-%d')}-{platform.machine()}-partitioning.jsonl"
    results = args.results or Path(__file__).resolve().parent / "results" / name
    for number, parts in product(range(args.rounds), map(int, args.parts.split(","))):
        for algorithm in args.algorithms.split(","):
            line = measure(args, algorithm, parts, number)
            report(**line)
            with results.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
