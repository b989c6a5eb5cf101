"""All measurements in interleaved rounds; prints a table of medians and appends the raw lines to results/.

    python benchmarks/run.py GRAPH [--rounds 5] [--dgl PYTHON_OF_DGL] [--work FOLDER]

GRAPH is a folder of .npy files (indptr, indices, feat, label, train); the published figures are of a graph like
ogbn-products: 2.45 M nodes, 124 M edges, 100 floats. It is partitioned into one part below --work first.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from glt_lightning.options import PartitionOptions
from glt_lightning.partition import open_source, partition_graph

HERE = Path(__file__).parent
FIGURES = ("m_edges_per_cpu_s", "m_rows_per_cpu_s", "us_per_call", "total_wall_s", "ratio")


def commands(args: argparse.Namespace, partition: Path, bound: Path) -> list[list[str]]:
    python, part = sys.executable, str(partition)
    ours = [
        [python, "sampling.py", part],
        [python, "loader.py", part],
        [python, "loader.py", part, "--workers", "2"],
        [python, "startup.py", part],
        [python, "startup.py", part, "--workers", "2"],
        [python, "memory.py", part],
        [str(bound), part, "15,10,5", "1024", "2", "file"],
        [str(bound), part, "10,25", "1000", "2", "file"],
        [str(bound), "limits"],
    ]
    return ours + ([[args.dgl, "peer_dgl.py", part]] if args.dgl else [])


def run(command: list[str]) -> list[dict[str, object]]:
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def key(line: dict[str, object]) -> tuple[str, ...]:
    names = ("system", "bench", "work", "variant", "pages", "fanouts", "workers")
    return tuple(str(line[n]) for n in names if n in line)


def table(lines: list[dict[str, object]]) -> None:
    """Median (minimum to maximum) of each figure."""
    groups: dict[tuple[str, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        for name, value in line.items():
            if name in FIGURES or (line.get("bench") == "limits" and isinstance(value, float)):
                groups[key(line)][name].append(float(str(value)))
    print("| what | figure | median (min to max) |\n| --- | --- | --- |")
    for what, figures in groups.items():
        for name, values in figures.items():
            spread = f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"
            print(f"| {' '.join(what)} | {name} | {spread} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dgl", help="an interpreter that has DGL")
    parser.add_argument("--work", default="data/benchmarks")
    args = parser.parse_args()
    work = Path(args.work).resolve()
    work.mkdir(parents=True, exist_ok=True)
    bound = work / "bound"
    subprocess.run(["cc", "-O3", "-pthread", str(HERE / "bound.c"), "-o", str(bound)], check=True)
    partition_graph(
        open_source(args.graph, str(work)), work / "parts1", PartitionOptions(), undirected=None, normalize="none"
    )
    lines: list[dict[str, object]] = []
    for number in range(args.rounds):
        for command in commands(args, work / "parts1", bound):
            for line in run(command):
                lines.append(
                    line | ({"fanouts": command[2], "system": "bound"} if "variant" in line else {}) | {"round": number}
                )
    results = HERE / "results" / f"{time.strftime('%Y-%m-%d')}-{platform.machine()}.jsonl"
    results.parent.mkdir(exist_ok=True)
    results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    table(lines)


if __name__ == "__main__":
    main()
