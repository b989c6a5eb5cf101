"""A limit of bytes per second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Rate:
    """Lets threads through so that together they take ``limit`` bytes per second; None: at once.

    clock, sleep: in seconds; for tests.
    """

    def __init__(
        self,
        limit: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._limit, self._clock, self._sleep = limit, clock, sleep
        self._lock = threading.Lock()  # of `_free_at`, which all streams move
        self._free_at = clock()

    def take(self, nbytes: int) -> None:
        """Waits until the bytes of earlier calls are due."""
        if self._limit is None:
            return
        with self._lock:
            now = self._clock()
            begin = max(now, self._free_at)
            self._free_at = begin + nbytes / self._limit
        if begin > now:
            self._sleep(begin - now)
