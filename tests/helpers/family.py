"""Finds every process that a test started, also those whose parent died or which made a session of their own.

Each process inherits the environment of the one that started it, so a mark there names the whole family; process groups
and parent ids do not survive a ``kill -9`` in the middle of the tree.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

MARK = "GLT_TEST_FAMILY"

# Started once per process by multiprocessing and kept until that process ends; it ends by itself.
_KEPT_BY_PYTHON = "multiprocessing.resource_tracker"


def marked(prefix: str) -> list[psutil.Process]:
    """Live processes that were started with an environment whose mark begins with `prefix`."""
    wanted = f"{MARK}={prefix}".encode()
    found = []
    for pid in psutil.pids():
        # A zombie has an empty environment; a process of another user is none of ours.
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if any(entry.startswith(wanted) for entry in _environment(Path(f"/proc/{pid}")).split(b"\0")):
                found.append(psutil.Process(pid))
    return [process for process in found if _alive(process)]


def _environment(process: Path) -> bytes:
    """That of a folder of /proc. A process that is just being started has none, and no arguments, until its program is loaded,
    and its starter goes on before that. Threads of the kernel and zombies have no program: `OSError`."""
    deadline = time.monotonic() + 5
    while not (found := (process / "environ").read_bytes()) and not (process / "cmdline").read_bytes():
        os.readlink(process / "exe")
        if time.monotonic() > deadline:
            break
        time.sleep(0.001)
    return found


def children() -> list[psutil.Process]:
    """Live descendants of this process, also forked ones, whose environment carries no mark."""
    return [process for process in psutil.Process().children(recursive=True) if _alive(process)]


def end(processes: list[psutil.Process]) -> None:
    """Kills the processes and waits until they are gone."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=10)


def describe(process: psutil.Process) -> str:
    try:
        return f"process {process.pid}: {' '.join(process.cmdline())[:200] or process.name()}"
    except psutil.NoSuchProcess:
        return f"process {process.pid}, gone meanwhile"


def settle(leftovers: Callable[[], list], grace_s: float) -> list:
    """What `leftovers` still finds when it finds nothing any more, or after `grace_s` seconds."""
    deadline = time.monotonic() + grace_s
    while (found := leftovers()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and _KEPT_BY_PYTHON not in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
