"""The memory that this process may still take."""

from __future__ import annotations

from pathlib import Path

from glt_lightning.graph.control_groups import control_groups

RESERVE = 64 << 20  # bytes left to the rest of the process


def available_memory() -> int:
    """Returns the bytes that the host has left, or that the control groups of this process allow, if that is less."""
    return min(_host(), *_groups())


def require_memory(nbytes: int) -> None:
    """Raises MemoryError unless this process can allocate ``nbytes`` more."""
    free = available_memory()
    if nbytes + RESERVE > free:
        raise MemoryError(f"{nbytes:,} bytes are needed, {free:,} are available on this host")


def _host() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 62


def _groups() -> list[int]:
    """Returns the bytes left in each memory control group of this process, of version 1 or 2; the page cache counts as free."""
    left = [1 << 62]
    for version, folder in control_groups("memory"):
        if version == 2:
            left += _left(folder, "memory.max", "memory.current", "")
        else:
            left += _left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
    return left


def _left(folder: Path, limit: str, used: str, total: str) -> list[int]:
    try:
        most = (folder / limit).read_text().strip()
        if most == "max":
            return []
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        cached = sum(int(stat.get(f"{total}{kind}_file", 0)) for kind in ("inactive", "active"))
        return [int(most) - int((folder / used).read_text()) + cached]
    except OSError:
        return []  # not mounted here, or the root group, which has no limit
