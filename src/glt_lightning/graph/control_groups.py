"""Limits that the system sets for this process: its control groups, and the cores that it may use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

_MOUNTED = Path("/sys/fs/cgroup")


def control_groups(
    controller: str, mounted: Path = _MOUNTED, mine: Path = Path("/proc/self/cgroup")
) -> Iterator[tuple[int, Path]]:
    """Yields version (1 or 2) and folder of each control group of this process that may limit ``controller``, innermost first."""
    for line in mine.read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            version, root = 2, mounted
        elif controller in controllers.split(","):
            version, root = 1, mounted / controller
        else:
            continue
        folder = root / group.lstrip("/")
        while True:
            yield version, folder if folder.exists() else root
            if folder in (root, folder.parent):
                break
            folder = folder.parent


def usable_cores(mounted: Path = _MOUNTED, mine: Path = Path("/proc/self/cgroup")) -> int:
    """Returns the number of cores on which this process may run, or that the CPU quota of a control group is worth, if less."""
    found = [float(len(os.sched_getaffinity(0)))]
    for version, folder in control_groups("cpu", mounted, mine):
        try:
            if version == 2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        except OSError:
            continue  # not mounted here, or the root group, which has no limit
        if quota != "max" and float(quota) > 0:
            found.append(float(quota) / float(period))
    return max(1, math.ceil(min(found)))
