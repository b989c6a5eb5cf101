"""The tables of docs/benchmarks.md from the lines of a run.

python benchmarks/table.py results/FILE.jsonl
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Line = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """What is measured, the field that says it, and which lines belong to us, to the peers and to the bound."""

    what: str
    figure: str
    ours: Line
    peers: Line | None = None
    bound: Line | None = None
    target: str = ""
    digits: int = 2


def _sampling(fanouts: str, work: str, target: str) -> Row:
    size = {"15,10,5": "[15, 10, 5] x 1024", "10,25": "[10, 25] x 1000"}[fanouts]
    return Row(
        f"sample and relabel {size}, `{work}`: M edges per CPU s",
        "m_edges_per_cpu_s",
        {"bench": "sampling", "system": "ours", "work": work, "fanouts": fanouts},
        {"bench": "sampling", "fanouts": fanouts, "work": work},
        {"bench": "bound", "work": work, "fanouts": fanouts},
        target,
        1,
    )


ROWS = [
    _sampling("15,10,5", "n_id", ">= 14"),
    _sampling("15,10,5", "e_id", ">= 10"),
    _sampling("15,10,5", "labor", ""),
    _sampling("10,25", "n_id", ">= 18"),
    _sampling("10,25", "e_id", ""),
    Row(
        "loader [15, 10, 5] x 1024, in-process: M rows per CPU s",
        "m_rows_per_cpu_s",
        {"bench": "loader", "system": "ours", "workers": 0},
        {"bench": "loader", "workers": 0},
        {"bench": "bound", "work": "loader", "fanouts": "15,10,5"},
        ">= 4.3",
    ),
    Row(
        "loader, 2 sampler processes: CPU of all, in-process = 1",
        "times_in_process",
        {"bench": "loader", "system": "ours", "workers": 2},
        target="<= 1.15",
    ),
    Row(
        "loader, 2 sampler processes: CPU ms of the trainer per batch",
        "trainer_ms",
        {"bench": "loader", "system": "ours", "workers": 2},
    ),
    Row("page faults per batch, in-process", "faults", {"bench": "loader", "system": "ours", "workers": 0}, digits=0),
    Row(
        "page faults per batch, 2 sampler processes",
        "faults",
        {"bench": "loader", "system": "ours", "workers": 2},
        digits=0,
    ),
    Row(
        "1 seed, [5, 5], 1000 nodes: us per call",
        "us_per_call",
        {"bench": "tiny", "system": "ours"},
        {"bench": "tiny"},
        target="<= 30",
        digits=0,
    ),
    *(
        Row(
            f"process start to first batch, {how}: s, {what}",
            figure,
            {"bench": "startup", "workers": n},
            None,
            None,
            aim,
        )
        for n, how in ((0, "in-process"), (2, "2 sampler processes"))
        for figure, what, aim in (
            ("total_wall_s", "all", "<= 5"),
            ("total_cpu_s", "all, CPU", ""),
            ("ours_wall_s", "of it ours", "<= 1"),
            ("ours_cpu_s", "of it ours, CPU", ""),
        )
    ),
    Row("memory of 2 ranks and 4 samplers, copies of the graph", "ratio", {"bench": "memory"}, target="<= 1.3"),
    Row("the same with what importing torch and PyG takes", "ratio_with_bare", {"bench": "memory"}),
    Row("batches in flight meanwhile: MB", "batches_mb", {"bench": "memory"}, digits=0),
    Row("training, 2 ranks, GraphSAGE(256): wall s per step", "step_wall_s", {"bench": "train"}),
    Row("training: s per epoch at that pace", "epoch_wall_s", {"bench": "train"}, digits=0),
    Row("training: share of the time that the trainer waits", "wait_share", {"bench": "train"}, digits=4),
]
PEERS = {"dgl": "DGL", "pyg": "PyG", "glt": "GLT"}
BOUNDS = {"file": "bound, mapped files", "huge": "bound, huge pages"}
LIMITS = [
    Row("memcpy: GB per s", "memcpy_gb_per_s", {}),
    Row("random reads of 8 bytes: M per s", "random_8_byte_m_reads_per_s", {}),
    Row("random rows of 400 bytes, copied: GB per s", "random_400_byte_rows_gb_per_s", {}),
]


def load(path: Path) -> list[Line]:
    lines: list[dict[str, Any]] = [json.loads(text) for text in path.read_text().splitlines()]
    loaders = [d for d in lines if (d["bench"], d["system"]) == ("loader", "ours")]
    in_process = {d["round"]: d["cpu_ms"] for d in loaders if d["workers"] == 0}
    for line in loaders:
        if line["round"] in in_process:
            line["times_in_process"] = line["cpu_ms"] / in_process[line["round"]]
    return lines


def values(lines: Iterable[Line], wanted: Line | None, figure: str) -> list[float]:
    if wanted is None:
        return []
    chosen = (d for d in lines if figure in d and all(d.get(k) == v for k, v in wanted.items()))
    return [float(str(d[figure])) for d in chosen]


def cell(found: list[float], digits: int, spread: bool = True) -> str:
    if not found:
        return "-"
    median = f"{statistics.median(found):.{digits}f}"
    return f"{median} ({min(found):.{digits}f}-{max(found):.{digits}f})" if spread and len(found) > 1 else median


def results(lines: list[Line]) -> str:
    """One row a measurement; one column for each peer that was measured. A bound is printed for both kinds of pages."""
    peers = [name for name in PEERS if any(line["system"] == name for line in lines)]
    head = ["what", "ours", "to reach", *(PEERS[name] for name in peers), *BOUNDS.values(), "ours to bounds"]
    out = ["| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]
    for row in ROWS:
        ours = values(lines, row.ours, row.figure)
        if not ours:
            continue
        beside = [values(lines, row.peers and row.peers | {"system": name}, row.figure) for name in peers]
        bounds = [values(lines, row.bound and row.bound | {"pages": pages}, row.figure) for pages in BOUNDS]
        shares = [f"1 : {statistics.median(bound) / statistics.median(ours):.2f}" for bound in bounds if bound]
        cells = [cell(found, row.digits) for found in (ours, *beside, *bounds)]
        out.append("| " + " | ".join([row.what, cells[0], row.target, *cells[1:], ", ".join(shares)]) + " |")
    return "\n".join(out)


def limits(lines: list[Line]) -> str:
    out = ["| limit of one core | 4 KiB pages | huge pages |", "| --- | --- | --- |"]
    for row in LIMITS:
        cells = [cell(values(lines, {"pages": p}, row.figure), 1) for p in ("small", "huge")]
        out.append(f"| {row.what} | {cells[0]} | {cells[1]} |")
    return "\n".join(out)


if __name__ == "__main__":
    found = load(Path(sys.argv[1]))
    print(results(found), limits(found), sep="\n\n")
