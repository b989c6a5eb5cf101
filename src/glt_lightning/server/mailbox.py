"""What other threads have for one that waits in ``poll``."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

Letter = Callable[[], None]


class Mailbox:
    """Letters for one thread: calls that it makes for others. Anybody may post, also a finalizer at any moment."""

    def __init__(self) -> None:
        self._letters: deque[Letter] = deque()
        self._lock = threading.RLock()  # a finalizer may run while its thread posts
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False

    def fileno(self) -> int:
        """Readable while there are letters."""
        return self._fd

    def post(self, letter: Letter) -> bool:
        """False if the mailbox is closed: the letter will not be read."""
        with self._lock:
            if self._closed:
                return False
            self._letters.append(letter)
            os.eventfd_write(self._fd, 1)
            return True

    def read(self) -> None:
        """Makes the calls that were posted so far; also after `close`."""
        with self._lock, suppress(BlockingIOError):
            if not self._closed:
                os.eventfd_read(self._fd)
        for _ in range(len(self._letters)):
            self._letters.popleft()()

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._fd)
