"""How much memory a host has left."""

from __future__ import annotations

from pathlib import Path


def available_memory() -> int:
    """Bytes that processes can take without swapping; 0 where the kernel does not say."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
