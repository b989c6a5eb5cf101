"""The lock of a table's writers, held by one thread of one process of the host at a time."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glt_lightning.base import PeerError

_FIRST_S, _MOST_S = 20e-6, 5e-3  # between attempts; a write of 1,000 rows of 64 floats holds the lock for about 50 us


class WriteLock:
    """A lock on the memory of a table: ``flock`` on its descriptor, which the kernel frees when its holder dies.

    fd: of this process alone, since processes that share an open file share its locks.  wait_s: for another writer.
    """

    def __init__(self, fd: int, name: str, wait_s: float) -> None:
        self._fd, self._name, self._wait_s = fd, name, wait_s
        self._threads = threading.Lock()  # the kernel does not tell threads of a process apart

    @contextmanager
    def held(self) -> Iterator[None]:
        """Raises `PeerError`, with the pid of who holds it, after ``wait_s``."""
        if not self._threads.acquire(timeout=self._wait_s):
            raise PeerError(self._late(f"another thread of this process (pid {os.getpid()})"))
        try:
            self._lock()
            try:
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def _lock(self) -> None:
        end_s, pause_s = time.monotonic() + self._wait_s, _FIRST_S
        while True:
            try:
                return fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end_s:
                    raise PeerError(self._late(_holder(self._fd))) from None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_S)

    def _late(self, who: str) -> str:
        return (
            f"tensor {self._name!r}: {who} has been writing to it for more than {self._wait_s:g} s "
            "(cluster.deadlines.call_s). Is that process stopped?"
        )


def _holder(fd: int) -> str:
    """Which process holds the ``flock`` of a file, for an error."""
    inode = os.fstat(fd).st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
            return f"pid {fields[4]}"
    return "another process"
