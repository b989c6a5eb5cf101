"""A deadline for work that cannot ask for it: starts of processes, waits, batches that take long."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_AGAIN_S = 5.0  # what swallows the exception, or is stuck in closing, gets another one


class Late(BaseException):
    """Ends work at a deadline. No Exception, so that nobody takes it for an error of the work, and tries again."""


class Deadline:
    """So many seconds from now. clock: gives seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._clock, self._end_s = seconds, clock, clock() + seconds

    @property
    def left_s(self) -> float:
        return self._end_s - self._clock()

    @contextmanager
    def cut(self, share: float = 1.0, enough: Callable[[], object] = lambda: True) -> Iterator[None]:
        """Raises `Late` in the block, at the latest at the end; from a ``share`` of all seconds on, once there is ``enough``.

        In the main thread it interrupts, by a timer, whatever runs in Python or waits; a native call ends first. In another
        thread it raises only before the block, and what has begun ends by deadlines of its own: those of samplers, of calls,
        of gloo.
        """
        if self.left_s <= 0:
            raise Late
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ring(*_: object) -> None:
            if self.left_s <= 0 or enough():
                signal.setitimer(signal.ITIMER_REAL, _AGAIN_S, _AGAIN_S)
                raise Late

        began_s, handler = time.monotonic(), signal.signal(signal.SIGALRM, ring)
        first_s = max(1e-3, self.left_s - (1 - share) * self.seconds)
        # from then on it looks often
        after_s, every_s = signal.setitimer(signal.ITIMER_REAL, first_s, min(1.0, self.seconds / 10))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            if after_s:  # somebody else's timer goes on
                signal.setitimer(signal.ITIMER_REAL, max(1e-3, after_s - (time.monotonic() - began_s)), every_s)
