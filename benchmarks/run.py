"""All measurements in interleaved rounds: raw lines to results/, then the tables of docs/benchmarks.md.

    python benchmarks/run.py GRAPH [--rounds 5] [--dgl PYTHON] [--pyg PYTHON] [--glt PYTHON] [--work FOLDER] [--quick]

GRAPH is a folder of make_graph.py; the published figures are of its full size. It is partitioned into one part below
--work first. Each round begins with another measurement, so that drift of the machine meets all of them; the peers, whose
interpreters are given, take part in the same rounds. Memory and training are measured once, at the end. --quick measures
next to nothing: it shows that all of it runs.
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
from table import PEERS

from glt_lightning import PartitionOptions
from glt_lightning.partition import open_source, partition_graph

HERE = Path(__file__).resolve().parent


def repeated(part: str, bound: str, peers: dict[str, str], quick: bool) -> list[list[str]]:
    """The commands of a round.  peers: the interpreter of each."""
    python, seconds = sys.executable, "0.05" if quick else "3"
    batches = ["--batches", "50"] if quick else []
    of_peer = ["--seconds", seconds, *batches]
    return [
        [python, "sampling.py", part, "--seconds", seconds],
        *(
            [bound, part, fanouts, size, seconds, pages]
            for fanouts, size in (("15,10,5", "1024"), ("10,25", "1000"))
            for pages in ("file", "huge")
        ),
        [python, "loader.py", part, *batches],
        [python, "loader.py", part, "--workers", "2", *batches],
        [python, "startup.py", part],
        [python, "startup.py", part, "--workers", "2"],
        [bound, "limits"],
        *([interpreter, f"peer_{name}.py", part, *of_peer] for name, interpreter in peers.items()),
    ]


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
    for name in PEERS:
        parser.add_argument(f"--{name}", help=f"an interpreter that can run peer_{name}.py")
    parser.add_argument("--work", type=Path, default=Path("data/benchmarks"))
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder for the raw lines")
    parser.add_argument("--quick", action="store_true", help="shows that everything runs; the figures mean nothing")
    args = parser.parse_args()
    graph, work = args.graph.resolve(), args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    part, bound = str(work / "parts1"), str(work / "bound")
    subprocess.run(["cc", "-O3", "-pthread", str(HERE / "bound.c"), "-o", bound], check=True)
    partition_graph(open_source(graph, work), part, PartitionOptions())
    results = args.results / f"{time.strftime('%Y-%m-%d-%H%M')}-{platform.machine()}.jsonl"
    results.parent.mkdir(parents=True, exist_ok=True)
    peers = {name: found for name in PEERS if (found := getattr(args, name))}
    commands = repeated(part, bound, peers, args.quick)
    for number in range(args.rounds):
        first = number % len(commands)
        for command in commands[first:] + commands[:first]:
            run(command, results, number)
    few = ["--batches", "1", "--batch_size", "256"] if args.quick else []
    for last in (["memory.py", part], ["train.py", str(graph), part, *few]):
        run([sys.executable, *last], results, args.rounds)
    lines = table.load(results)
    print(results, table.results(lines), table.limits(lines), sep="\n\n")


if __name__ == "__main__":
    main()
