"""How long a server has been away, as seen by its client."""

from __future__ import annotations

import time
from collections.abc import Callable


class Outage:
    """Counts the time without a stream since the last message from a server.

    The time for which a stream was open is not counted, whatever it delivered: a client may want no batch for an hour, and
    a restart of the server after it is a new outage. (Once the time was counted from the opening of the broken stream, and
    each restart killed every job older than ``reconnect_s``.) Streams that break at once add up, so the client also gives
    up a server that accepts each stream and drops it.

    limit_s: a stream that was open for longer than this ends the outage before it, even without a message.
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
        """A message has arrived: the outage is over."""
        self._since_s = None

    def broke(self) -> float:
        """The stream, or the attempt to open one, has failed. Returns the seconds of the outage so far."""
        now = self._clock()
        open_s = 0.0 if self._opened_s is None else now - self._opened_s
        if self._since_s is None or open_s > self._limit_s:
            self._since_s = now
        else:
            self._since_s += open_s
        return now - self._since_s
