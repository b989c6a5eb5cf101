"""All measurements in interleaved rounds: raw lines to results/, then the tables of docs/benchmarks.md.

    python benchmarks/run.py GRAPH [--rounds 5] [--dgl PYTHON_OF_DGL] [--work FOLDER]

GRAPH is a folder of make_graph.py; the published figures are of its full size. It is partitioned into one part below
--work first. Each round begins with another measurement. Memory and training are measured once, at the end.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path

import table

from glt_lightning import PartitionOptions
from glt_lightning.partition import open_source, partition_graph

HERE = Path(__file__).resolve().parent


def repeated(part: str, bound: str, dgl: str | None) -> list[list[str]]:
    python = sys.executable
    commands = [
        [python, "sampling.py", part],
        [bound, part, "15,10,5", "1024", "3", "file"],
        [bound, part, "10,25", "1000", "3", "file"],
        [python, "loader.py", part],
        [python, "loader.py", part, "--workers", "2"],
        [python, "startup.py", part],
        [python, "startup.py", part, "--workers", "2"],
        [bound, "limits"],
    ]
    return commands + ([[dgl, "peer_dgl.py", part]] if dgl else [])


def run(command: list[str], results: Path, number: int) -> None:
    print(f"round {number}: {' '.join(Path(word).name for word in command)}", file=sys.stderr, flush=True)
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    with results.open("a") as file:
        for text in done.stdout.splitlines():
            if text.startswith("{"):
                file.write(json.dumps(json.loads(text) | {"round": number}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dgl", help="an interpreter that has DGL")
    parser.add_argument("--work", type=Path, default=Path("data/benchmarks"))
    args = parser.parse_args()
    graph, work = args.graph.resolve(), args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    part, bound = str(work / "parts1"), str(work / "bound")
    subprocess.run(["cc", "-O3", "-pthread", str(HERE / "bound.c"), "-o", bound], check=True)
    partition_graph(open_source(graph, work), part, PartitionOptions())
    results = HERE / "results" / f"{time.strftime('%Y-%m-%d-%H%M')}-{platform.machine()}.jsonl"
    results.parent.mkdir(exist_ok=True)
    commands = repeated(part, bound, args.dgl)
    for number in range(args.rounds):
        first = number % len(commands)
        for command in commands[first:] + commands[:first]:
            run(command, results, number)
    run([sys.executable, "memory.py", part], results, args.rounds)
    run([sys.executable, "train.py", str(graph), part], results, args.rounds)
    lines = table.load(results)
    print(results, table.results(lines), table.limits(lines), sep="\n\n")


if __name__ == "__main__":
    main()
