"""Notices that this process itself was stopped, so that deadlines of other processes do not count that time."""

from __future__ import annotations

import time
from collections.abc import Callable

STEP_S = 5.0  # the longest single wait between two calls of `happened`
_LATE_S = 5.0  # a wait that ends later than this was a stop, and not a busy machine


class StandStill:
    """Whether this process was stopped (a terminal's Ctrl-Z, a scheduler that suspends jobs): the processes that it waits for
    probably were, too, and what they sent before is not read yet.

    clock: the monotonic clock, or that of a test.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._looked_s = clock, clock()

    def happened(self) -> bool:
        """Whether it was stopped since the last call. To be called after each wait, of at most `STEP_S`."""
        before, self._looked_s = self._looked_s, self._clock()
        return self._looked_s - before > STEP_S + _LATE_S
