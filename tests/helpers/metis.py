"""The process in which METIS works, stopped: METIS is then at work, and never finishes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil


def metis_at_work(processes: Callable[[], list[psutil.Process]], timeout_s: float) -> psutil.Process:
    """That of the processes which has METIS loaded, as soon as there is one."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for process in processes():
            with suppress(psutil.Error, OSError):
                # In this order: before its exec a child has our maps, and we may have METIS loaded.
                if _is_metis(process) and "pymetis" in Path(f"/proc/{process.pid}/maps").read_text():
                    return process
        time.sleep(0.001)
    raise AssertionError("METIS did not start")


def stop_metis(processes: Callable[[], list[psutil.Process]], timeout_s: float) -> psutil.Process:
    """Stops the process of METIS; if it ends before, the next one."""
    while True:
        process = metis_at_work(processes, timeout_s)
        with suppress(psutil.NoSuchProcess):
            process.suspend()
            while process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
                time.sleep(0.001)
            if process.status() == psutil.STATUS_STOPPED:
                return process


def _is_metis(process: psutil.Process) -> bool:
    return "metis/child" in " ".join(process.cmdline())
