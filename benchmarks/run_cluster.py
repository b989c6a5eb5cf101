"""Batches from other processes beside local ones, in interleaved rounds: raw lines to results/, and the table.

    python benchmarks/run_cluster.py GRAPH [--rounds 5] [--work FOLDER] [--quick]

GRAPH is a folder of make_graph.py; the published figures are of --scale 0.1. It is partitioned into one and two parts.
--quick measures two batches each: it shows that all of it runs.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

from glt_lightning import PartitionOptions
from glt_lightning.partition import open_source, partition_graph

HERE = Path(__file__).resolve().parent

# name in the table, to reach, script and options; {n} is the folder of n parts
RUNS = [
    ("local, in-process", ">= 4.3", ["loader.py", "{1}"]),
    ("worker mode, 2 ranks with a part each, in-process", ">= 1.8", ["cluster.py", "worker", "{2}", "--workers", "0"]),
    ("worker mode, 1 sampler process each", ">= 1.8", ["cluster.py", "worker", "{2}"]),
    ("the same with mutual TLS", "", ["cluster.py", "worker", "{2}", "--tls"]),
    ("server-client, within a host (ring)", ">= 3", ["cluster.py", "server", "{1}", "--handover"]),
    ("server-client, Flight", ">= 1.6", ["cluster.py", "server", "{1}"]),
    ("the same with mutual TLS", "", ["cluster.py", "server", "{1}", "--tls"]),
    (
        "worker mode, concurrency 8, proxy",
        "",
        ["cluster.py", "worker", "{2}", "--concurrency", "8", "--delay-ms", "0"],
    ),
    (
        "worker mode, concurrency 8, proxy, 5 ms a message",
        "batches/s >= 0.85 of the line above",
        ["cluster.py", "worker", "{2}", "--concurrency", "8", "--delay-ms", "5"],
    ),
]


def measure(command: list[str]) -> dict[str, float]:
    done = subprocess.run([sys.executable, *command], cwd=HERE, capture_output=True, text=True, timeout=900)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    if "batches_per_s" not in found:  # of loader.py
        found |= {"batches_per_cpu_s": 1e3 / found["cpu_ms"], "batches_per_s": 1e3 / found["wall_ms"]}
    return found


def spread(values: list[float], digits: int) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def table(lines: list[list[dict[str, float]]]) -> str:
    """Per run its lines of all rounds -> Markdown."""
    rows = ["| | M rows per CPU s | to reach | batches per CPU s | batches/s |", "| --- | --- | --- | --- | --- |"]
    for (name, target, _), found in zip(RUNS, lines, strict=True):
        columns = [("m_rows_per_cpu_s", 2), ("batches_per_cpu_s", 1), ("batches_per_s", 1)]
        first, *others = [spread([line[figure] for line in found], digits) for figure, digits in columns]
        rows.append(f"| {name} | {first} | {target} | {' | '.join(others)} |")
    asked = lines[1][-1]
    rows += [
        "",
        f"In worker mode, of a batch's {asked['rows']:.0f} rows {100 * asked['remote_share']:.0f} % are remote: "
        f"{asked['mb_in']:.1f} MB come and {asked['mb_out']:.2f} MB go in {asked['questions']:.0f} questions. "
        f"From a server come {lines[5][-1]['mb_in']:.1f} MB.",
    ]
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, default=Path("data/benchmarks"))
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder for the raw lines")
    parser.add_argument("--quick", action="store_true", help="shows that everything runs; the figures mean nothing")
    args = parser.parse_args()
    graph, work = args.graph.resolve(), args.work.resolve()
    folders = {n: work / f"{graph.name}-parts{n}" for n in (1, 2)}
    for n, folder in folders.items():
        partition_graph(open_source(graph, work), folder, PartitionOptions(num_parts=n))
    args.results.mkdir(parents=True, exist_ok=True)
    results = args.results / f"{time.strftime('%Y-%m-%d-%H%M')}-{platform.machine()}-cluster.jsonl"
    lines: list[list[dict[str, float]]] = [[] for _ in RUNS]
    for number in range(args.rounds):
        for k in range(len(RUNS)):
            index = (k + number) % len(RUNS)  # each round begins with another one
            command = [str(folders[int(word[1])]) if word.startswith("{") else word for word in RUNS[index][2]]
            found = measure(command + (["--batches", "2"] if args.quick else []))
            lines[index].append(found)
            with results.open("a") as file:
                file.write(json.dumps(found | {"round": number, "run": RUNS[index][0]}) + "\n")
            print(f"round {number}: {RUNS[index][0]}: {found['m_rows_per_cpu_s']:.2f}", file=sys.stderr, flush=True)
    print(results, table(lines), sep="\n\n")


if __name__ == "__main__":
    main()
