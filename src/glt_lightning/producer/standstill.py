"""Notices that this process itself stood still, so that nobody else is blamed for the time."""

from __future__ import annotations

import time
from collections.abc import Callable

STEP_S = 5.0  # most that one wait may last where this is asked
_LATE_S = 5.0  # more than that a busy machine does not add


class StandStill:
    """Whether this process was stopped (a terminal's Ctrl-Z, a scheduler that suspends jobs): the processes that it waits for
    probably were, too, and what they sent before is not read yet.

    clock: the monotonic clock, or that of a test.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._looked_s = clock, clock()

    def happened(self) -> bool:
        """Since the last time. To be asked after each wait, of `STEP_S` at most."""
        before, self._looked_s = self._looked_s, self._clock()
        return self._looked_s - before > STEP_S + _LATE_S
