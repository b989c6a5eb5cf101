"""How long a server has been away, as its client sees it."""

from __future__ import annotations

import time
from collections.abc import Callable


class Outage:
    """Counts the time without a stream since the last message from a server.

    The time a stream stood is not counted, whatever it delivered: a client that wants nothing for an hour, and whose
    server is then restarted, has lost nothing in that hour. Streams that break at once add up, so a server that accepts
    each one and drops it is given up, too.

    limit_s: a stream that stood for longer than this was well; what had happened before it does not count any more.
    clock: the monotonic clock, or that of a test.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._since_s: float | None = None
        self._opened_s: float | None = None

    def begin_attempt(self) -> None:
        """A stream is about to be opened."""
        self._opened_s = None
        if self._since_s is None:
            self._since_s = self._clock()

    def opened(self) -> None:
        """The stream is open."""
        self._opened_s = self._clock()

    def heard(self) -> None:
        """A message has come."""
        self._since_s = None

    def broke(self) -> float:
        """The stream, or the attempt to open one, has failed. Returns for how many seconds there has been none."""
        now = self._clock()
        stood_s = 0.0 if self._opened_s is None else now - self._opened_s
        if self._since_s is None or stood_s > self._limit_s:
            self._since_s = now
        else:
            self._since_s += stood_s
        return now - self._since_s
