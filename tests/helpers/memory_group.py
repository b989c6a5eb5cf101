"""A memory control group for a child process, which tells how much that took at most, its part of the page cache included."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class MemoryGroup:
    """Join it by writing a process id into ``procs``."""

    folder: Path
    peak_file: str

    @property
    def procs(self) -> Path:
        return self.folder / "cgroup.procs"

    def peak(self) -> int:
        """Most bytes so far."""
        return int((self.folder / self.peak_file).read_text())


@contextmanager
def memory_group(limit: int | None = None) -> Iterator[MemoryGroup]:
    """A group below that of this process, with a limit in bytes or without one. Skips the test where there can be none."""
    folder, peak_file = _own_group()
    folder /= f"glt-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no memory control group of its own: {error}")
    try:
        if not (folder / peak_file).exists():
            pytest.skip(f"{folder} has no {peak_file}")
        if limit is not None:
            limit_file = "memory.max" if peak_file == "memory.peak" else "memory.limit_in_bytes"
            (folder / limit_file).write_text(str(limit))
        yield MemoryGroup(folder, peak_file)
    finally:
        folder.rmdir()


def _own_group() -> tuple[Path, str]:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / group.lstrip("/"), "memory.max_usage_in_bytes"
    return Path("/sys/fs/cgroup") / group.lstrip("/"), "memory.peak"
