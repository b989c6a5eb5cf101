"""A queue of calls that other threads hand to a thread which waits in ``poll``."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

Callback = Callable[[], None]


class CallbackQueue:
    """Calls that one thread makes on behalf of others. `post` is thread-safe, and may be called by a finalizer at any moment."""

    def __init__(self) -> None:
        self._waiting: deque[Callback] = deque()
        # Guards the descriptor against `close`. Reentrant: the garbage collector may run a finalizer, which posts, while its
        # thread is inside `post`.
        self._lock = threading.RLock()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False

    def fileno(self) -> int:
        """Readable while calls wait."""
        return self._fd

    def post(self, callback: Callback) -> bool:
        """Queues a call. Returns False if the queue is closed: the call will not be made."""
        with self._lock:
            if self._closed:
                return False
            self._waiting.append(callback)
            os.eventfd_write(self._fd, 1)
            return True

    def run(self) -> None:
        """Makes the calls that were posted so far, also after `close`. Without the lock, so that a call may post another."""
        with self._lock, suppress(BlockingIOError):
            if not self._closed:
                os.eventfd_read(self._fd)
        for _ in range(len(self._waiting)):  # by count: calls that post calls would else keep this thread here
            self._waiting.popleft()()

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._fd)
