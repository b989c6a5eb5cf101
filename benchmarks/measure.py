"""What the benchmarks share: CPU time, page faults and memory of processes, results as JSON lines."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def process_tree(root: int | None = None) -> list[int]:
    """``root`` (this process if None) and all below it."""
    pids = [root or os.getpid()]
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            pids += [int(child) for child in (thread / "children").read_text().split()]
    return pids


def cpu_s(pids: list[int] | None = None) -> float:
    """User and system seconds of the live processes of the tree, threads included."""
    return sum(time.clock_gettime(_cpu_clock(pid)) for pid in pids or process_tree())


def _cpu_clock(pid: int) -> int:
    """Of a process; in nanoseconds, where ``/proc`` counts hundredths of a second, of which a short run may take none."""
    return (~pid << 3) | 2  # as clock_getcpuclockid(3) of glibc makes it


def age_s(pid: int) -> float:
    """Seconds since the process was started, to a hundredth."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(_stat(pid)[19]) / _TICKS


def with_bytecode() -> dict[str, str]:
    """The environment, in which Python keeps the bytecode of modules, as an installed package has it."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def tell_step() -> None:
    """Prints how long this process has run, at its first step."""
    print(f"first_step wall_s {age_s(os.getpid()):.2f} cpu_s {cpu_s():.3f}", flush=True)


def minor_faults(pid: int) -> int:
    return int(_stat(pid)[7])


def rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def memory_mb(pids: list[int]) -> dict[str, float]:
    """Proportional set size, a page of n processes counting 1/n in each: ``graph`` (mapped partition files), ``batches``
    (slots), ``rest``."""
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
    return {kind: kb / 1e3 for kind, kb in kinds.items()}


def report(**values: object) -> None:
    """One JSON line, floats short."""
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()}), flush=True)


def _stat(pid: int) -> list[str]:
    # the name of the program may hold spaces, so count from its closing bracket: [0] is field 3, the state
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
