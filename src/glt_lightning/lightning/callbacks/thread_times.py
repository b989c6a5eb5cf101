"""What the threads of this process got of the cores: the scheduler's own count, which also sees other processes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

ThreadTimes = dict[str, tuple[float, float]]

_TASKS = Path("/proc/self/task")


def thread_times(tasks: Path = _TASKS) -> ThreadTimes:
    """Seconds of each thread, by its id: on a core, and of waiting for one. Empty where the kernel does not count them."""
    found = {}
    for task in tasks.iterdir() if tasks.exists() else ():
        with suppress(OSError):  # the thread has just ended, or the kernel has no schedstat
            ran_ns, waited_ns, _ = (task / "schedstat").read_text().split()
            found[task.name] = int(ran_ns) / 1e9, int(waited_ns) / 1e9
    return found


def times_since(before: ThreadTimes, tasks: Path = _TASKS) -> tuple[float, float]:
    """Seconds on a core and of waiting for one since `thread_times` gave ``before``, over the threads that still live."""
    ran_s = waited_s = 0.0
    for thread, now in thread_times(tasks).items():
        then = before.get(thread, (0.0, 0.0))
        ran_s, waited_s = ran_s + now[0] - then[0], waited_s + now[1] - then[1]
    return ran_s, waited_s
