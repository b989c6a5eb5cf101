"""What the benchmarks share: CPU time of a process tree, memory by kind, results as JSON lines."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path


def process_tree() -> list[int]:
    """This process and all below it."""
    pids = [os.getpid()]
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            pids += [int(child) for child in (thread / "children").read_text().split()]
    return pids


def cpu_s(pids: list[int] | None = None) -> float:
    """User and system seconds of the live processes of the tree, threads included."""
    tick = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for pid in pids or process_tree():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / tick
    return total


def own_cpu_s() -> float:
    """The same for this process alone, finer."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def memory_mb(pids: list[int]) -> dict[str, int]:
    """Proportional set size in MB: ``graph`` (mapped partition files), ``batches`` (slots), ``rest``."""
    kinds = {"graph": 0, "batches": 0, "rest": 0}
    for pid in pids:
        kind = "rest"
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            fields = line.split()
            if not fields[0].endswith(":"):
                name = fields[5] if len(fields) > 5 else ""
                kind = "batches" if "memfd:glt" in name else "graph" if name.endswith(".npy") else "rest"
            elif fields[0] == "Pss:":
                kinds[kind] += int(fields[1])
    return {kind: kb // 1024 for kind, kb in kinds.items()}


def report(**values: object) -> None:
    """One JSON line, floats short."""
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()}), flush=True)
